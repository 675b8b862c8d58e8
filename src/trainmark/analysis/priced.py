"""Adds cost and kWh to records, from the reader's price."""

from __future__ import annotations

from dataclasses import replace

from trainmark.record.machine import Sensed
from trainmark.record.metrics import Measured, measure_priced, withhold
from trainmark.record.record import Record
from trainmark.record.site import Price


def add_cost(record: Record, price: Price) -> Record:
    """The record with kWh where energy was measured, and cost where there is a price; for views only."""
    energy = record.metrics.get("energy")
    reasons = {"energy_j": energy.unavailable} if energy and energy.unavailable else {}
    sensed = Sensed(energy_j=energy.value if energy else None, reasons=reasons)
    found = measure_priced(Measured(item=record.item, timeline=record.timeline, sensed=sensed, price=price))
    if record.status == "invalid":
        found = withhold(found)
    asked = price.device_hour is not None
    shown = {alias: quantity for alias, quantity in found.items() if quantity.value is not None or asked}
    return replace(record, metrics={**record.metrics, **shown})
