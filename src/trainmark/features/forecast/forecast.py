"""Forecasts a training at several sizes, with the basis and assumptions of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainmark.features.forecast import inputs, rates, scaling_law
from trainmark.features.forecast.cost import FAILURES_FROM, MTBF_DEVICE_HOURS, TrainingCost, Work, forecast_cost
from trainmark.features.forecast.inputs import Known
from trainmark.features.forecast.rates import OtherBatch, RateForecast
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.site import Price

MAX_NODE = 8
"""Devices per node up to which sizes double inside a node."""
NEXT_DOUBLINGS = 3


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Assumptions that the user may change."""

    price: Price = field(default_factory=Price)
    mtbf_device_hours: float = MTBF_DEVICE_HOURS
    batch: OtherBatch | None = None
    """None: the batch of the runs."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One training at every requested size."""

    known: Known
    basis: str
    """What it is based on, as a sentence."""
    sizes: tuple[tuple[RateForecast, TrainingCost | None], ...]
    work: Work | None
    assumed: Assumptions
    notes: tuple[str, ...]


def forecast(known: Known, topologies: Sequence[Topology], work: Work | None, assumed: Assumptions) -> Forecast:
    speeds = [rates.forecast(known, topology, assumed.batch) for topology in topologies]
    hours = assumed.mtbf_device_hours
    costs = [forecast_cost(work, rate, assumed.price, mtbf_device_hours=hours) if work else None for rate in speeds]
    return Forecast(
        known=known,
        basis=_basis(known),
        sizes=tuple(zip(speeds, costs, strict=True)),
        work=work,
        assumed=assumed,
        notes=(
            *known.notes,
            *_size_notes(known, speeds, assumed),
            *(_work_notes(work, speeds, costs, assumed) if work else ()),
        ),
    )


def forecast_next_sizes(
    records: Sequence[Record], assumed: Assumptions | None = None, metric: str = "p_core"
) -> Forecast:
    """Forecasts the sizes of these runs, and three doublings more; UsageError says why it cannot."""
    known = inputs.read_records(records, metric)
    sizes = [size.topology for size in known.sizes]
    return forecast(known, [*sizes, *_next_sizes(sizes[-1])], None, assumed or Assumptions())


def _next_sizes(largest: Topology) -> Iterator[Topology]:
    """Doubles devices inside a node up to MAX_NODE, then nodes."""
    nodes, devices = largest.nodes, largest.devices_per_node
    for _ in range(NEXT_DOUBLINGS):
        if nodes == 1 and 2 * devices <= MAX_NODE:
            devices *= 2
        else:
            nodes *= 2
        yield Topology(nodes=nodes, devices_per_node=devices)


def _basis(known: Known) -> str:
    *first, last = (str(size.topology) for size in known.sizes)
    sizes = f"{', '.join(first)} and {last}" if first else last
    usual = f"{-100 * scaling_law.USUAL_LOSS:.0f} %"
    if known.one_device:
        return f"Known from {sizes} alone: inside a node a range of what published clusters keep, beyond it nothing."
    if known.exchange is None and not known.several:
        return f"Known from {sizes} alone: beyond it a device loses {usual} per doubling, as published clusters do."
    loss = round(-100 * rates.loss(known, known.sizes[0], known.largest.topology), 1) + 0.0  # not -0.0
    if known.exchange is None:
        return f"Known from {sizes}: there a device loses {loss:.1f} % per doubling, published clusters {usual}."
    levels = {level for level, _ in known.exchange.levels}
    missing = "" if levels == {"node", "nodes"} else f", but none {'inside' if 'nodes' in levels else 'between'} nodes"
    beyond = f"{loss:.1f} % per doubling beyond that"
    if not known.several:
        beyond = f"in all at least {usual} per doubling, as published clusters do"
    return f"Known from {sizes} and the links there{missing}: a device loses what its exchange takes, and {beyond}."


def _size_notes(known: Known, speeds: Sequence[RateForecast], assumed: Assumptions) -> Iterator[str]:
    for rate in speeds:
        if rate.why:
            yield f"{rate.topology} is refused: {rate.why}"
    if rough := [str(rate.topology) for rate in speeds if rate.kind == rates.ROUGH]:
        yield (
            f"{', '.join(rough)}: more than {rates.FAR} times {known.largest.topology}, "
            "so this is an order of magnitude only"
        )
    own = known.batch_per_device
    if assumed.batch is None and own is not None:
        yield f"every size has batches of {own} per device, so the global batch grows with the devices"
    batches = {rate.batch_per_device or own for rate in speeds} - {own}
    if assumed.batch and own and batches:
        yield (
            f"the runs have a batch of {own} per device; {100 * rates.FIXED:.0f} % of a step's computing is assumed "
            "not to depend on it, as in published trainings"
        )
        if max(batch or 0 for batch in batches) > own:
            yield f"whether batches of {max(batch or 0 for batch in batches)} per device fit into memory is unknown"


def _work_notes(
    work: Work, speeds: Sequence[RateForecast], costs: Sequence[TrainingCost | None], assumed: Assumptions
) -> Iterator[str]:
    if work.reference is None:
        yield f"time is that of {work.items:,.0f} items: {work.why}; a larger global batch may need more of them"
    else:
        batch = f"{work.global_batch:,.0f}"
        yield f"time is that of as many items {work.why}: {work.items:,.0f} at a global batch of {batch}"
        beyond = [str(rate.topology) for rate, cost in zip(speeds, costs, strict=True) if rate.interval and not cost]
        if beyond:
            yield (
                f"{', '.join(beyond)}: no reference run has so large a global batch, so the items it needs are "
                "unknown and no time is forecast"
            )
    yield from work.notes
    if any(rate.topology.devices >= FAILURES_FROM for rate in speeds):
        yield (
            f"from {FAILURES_FROM} devices on one failure in {assumed.mtbf_device_hours:,.0f} device-hours is "
            f"assumed, and checkpoints of {work.checkpoint_s:.0f} s ({work.checkpoint_why}) as often as pays; "
            "--mtbf changes it"
        )


def to_json(found: Forecast) -> dict[str, Any]:
    """For programs; intervals are 90 %."""
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
                "batch_per_device": rate.batch_per_device,
                **(asdict(cost) if cost else {"time_s": None, "energy_kwh": None, "cost": None}),
            }
            for rate, cost in found.sizes
        ],
        "currency": found.assumed.price.currency,
        "notes": list(found.notes),
    }
