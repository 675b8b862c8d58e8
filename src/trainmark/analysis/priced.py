"""Records as a reader sees them who knows a price: beside what was measured stands what it cost."""

from __future__ import annotations

from dataclasses import replace

from trainmark.record.machine import Sensed
from trainmark.record.metrics import Measured, measure_priced, withhold
from trainmark.record.price import Price
from trainmark.record.record import Record


def add_cost(record: Record, price: Price) -> Record:
    """With kWh where energy was measured, and with cost where there is a price; for views, never to be stored."""
    energy = record.metrics.get("energy")
    reasons = {"energy_j": energy.unavailable} if energy and energy.unavailable else {}
    sensed = Sensed(energy_j=energy.value if energy else None, reasons=reasons)
    found = measure_priced(Measured(item=record.item, timeline=record.timeline, sensed=sensed, price=price))
    if record.status == "invalid":
        found = withhold(found)
    asked = price.device_hour is not None
    shown = {alias: quantity for alias, quantity in found.items() if quantity.value is not None or asked}
    return replace(record, metrics={**record.metrics, **shown})
