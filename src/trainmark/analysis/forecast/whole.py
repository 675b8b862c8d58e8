"""Puts a forecast together: every size asked for, from what it is known, and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmark.analysis.forecast import law, rates
from trainmark.analysis.forecast.rates import RateForecast
from trainmark.analysis.forecast.sizes import Known
from trainmark.analysis.forecast.until import DEVICE_HOURS_A_FAILURE, FAILURES_FROM, WholeTraining, Work, outcome
from trainmark.spec.price import Price
from trainmark.spec.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What nobody measured, and anybody may change."""

    price: Price = field(default_factory=Price)
    device_hours_a_failure: float = DEVICE_HOURS_A_FAILURE


@dataclass(frozen=True, kw_only=True)
class WholeForecast:
    """All that is said of one training."""

    known: Known
    basis: str
    """From what it is known, in a sentence."""
    sizes: tuple[tuple[RateForecast, WholeTraining | None], ...]
    work: Work | None
    assumed: Assumptions
    notes: tuple[str, ...]


def whole(known: Known, topologies: Sequence[Topology], work: Work | None, assumed: Assumptions) -> WholeForecast:
    found = []
    for topology in topologies:
        rate = rates.forecast(known, topology)
        found.append(
            (
                rate,
                outcome(work, rate, assumed.price, device_hours_a_failure=assumed.device_hours_a_failure)
                if work
                else None,
            )
        )
    return WholeForecast(
        known=known,
        basis=_basis(known),
        sizes=tuple(found),
        work=work,
        assumed=assumed,
        notes=tuple(_notes(known, found, work, assumed)),
    )


def _basis(known: Known) -> str:
    sizes = " and ".join(str(size.topology) for size in known.sizes)
    if known.basis == "one device":
        return f"Known from {sizes} alone: inside a node a range of what published clusters keep, beyond it nothing."
    if known.basis == "one node":
        return (
            f"Known from {sizes} alone: beyond it a device loses {-100 * law.USUAL_LOSS:.0f} % a doubling, "
            "as published clusters do."
        )
    loss = -100 * law.loss_a_doubling(known.sizes)
    return f"Known from {sizes}: there a device loses {loss:.1f} % a doubling, published clusters 2 %."


def _notes(
    known: Known, found: Sequence[tuple[RateForecast, WholeTraining | None]], work: Work | None, assumed: Assumptions
) -> Iterator[str]:
    yield from known.notes
    for rate, _ in found:
        if rate.why:
            yield f"{rate.topology} is refused: {rate.why}"
    rough = [str(rate.topology) for rate, _ in found if rate.kind == rates.ROUGH]
    if rough:
        yield (
            f"{', '.join(rough)}: more than {rates.FAR} times {known.largest.topology}, "
            "so this is an order of magnitude and no number to sign"
        )
    if known.batch_per_device is not None:
        yield f"every size has batches of {known.batch_per_device} a device, so the global batch grows with the devices"
    if work is not None:
        yield f"time is that of {work.items:,.0f} items: {work.why}; a larger global batch may need more of them"
        yield from work.notes
    if work is not None and any(rate.topology.devices >= FAILURES_FROM for rate, _ in found):
        yield (
            f"from {FAILURES_FROM} devices on one failure in {assumed.device_hours_a_failure:,.0f} device-hours is "
            "reckoned with, and checkpoints of a minute as often as pays; --mtbf changes it"
        )


def to_json(found: WholeForecast) -> dict[str, Any]:
    """For programs; intervals hold nine of ten outcomes."""
    return {
        "subject": list(found.known.subject),
        "metric": found.known.metric,
        "unit": found.known.unit,
        "batch_per_device": found.known.batch_per_device,
        "basis": found.basis,
        "known": [
            {"topology": str(size.topology), "rate": size.rate, "error": size.error} for size in found.known.sizes
        ],
        "items": found.work.items if found.work else None,
        "sizes": [
            {
                "topology": str(rate.topology),
                "devices": rate.topology.devices,
                "kind": rate.kind,
                "rate": rate.rate,
                "rate_interval": rate.interval,
                "efficiency": rate.efficiency,
                "alternatives": rates.alternatives(found.known, rate.topology) if rate.rate else {},
                **(asdict(after) if after else {"time_s": None, "energy_kwh": None, "cost": None}),
            }
            for rate, after in found.sizes
        ],
        "currency": found.assumed.price.currency,
        "notes": list(found.notes),
    }
