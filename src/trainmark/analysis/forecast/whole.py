"""Puts a forecast together: every size asked for, from what it is known, and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainmark.analysis.forecast import law, rates
from trainmark.analysis.forecast.physics import StepModel
from trainmark.analysis.forecast.rates import BatchAsked, RateForecast
from trainmark.analysis.forecast.sizes import Known
from trainmark.analysis.forecast.until import DEVICE_HOURS_A_FAILURE, FAILURES_FROM, WholeTraining, Work, outcome
from trainmark.spec.format import number
from trainmark.spec.links import passes
from trainmark.spec.price import Price
from trainmark.spec.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What nobody measured, and anybody may change."""

    price: Price = field(default_factory=Price)
    device_hours_a_failure: float = DEVICE_HOURS_A_FAILURE
    batch: BatchAsked | None = None
    """None is that of the runs."""


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
        rate = rates.forecast(known, topology, assumed.batch)
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
    *first, last = (str(size.topology) for size in known.sizes)
    sizes = f"{', '.join(first)} and {last}" if first else last
    if known.basis == "one device":
        return f"Known from {sizes} alone: inside a node a range of what published clusters keep, beyond it nothing."
    if known.basis == "one node" and known.model is None:
        return (
            f"Known from {sizes} alone: beyond it a device loses {-100 * law.USUAL_LOSS:.0f} % a doubling, "
            "as published clusters do."
        )
    if known.model is None:
        loss = -100 * law.loss_a_doubling(known.sizes)
        return f"Known from {sizes}: there a device loses {loss:.1f} % a doubling, published clusters 2 %."
    if known.basis == "one node":
        told = [
            f"Known from {sizes} and its links.",
            _reached(known.model),
            f"In all a device loses at least {-100 * law.USUAL_LOSS:.0f} % a doubling, as published clusters do.",
        ]
        return " ".join(told)
    loss = round(-100 * rates.loss(known, known.largest.topology), 1) + 0.0  # not -0.0
    told = [
        f"Known from {sizes} and the links there.",
        _reached(known.model),
        f"Beyond what that explains a device loses {loss:.1f} % a doubling.",
    ]
    return " ".join(told)


def _reached(model: StepModel) -> str:
    levels = {level for level, _ in model.exchange.levels}
    if levels == {"node", "nodes"}:
        return "Links inside a node and between nodes are known, so computing, exchange and slow ranks are added up."
    if levels == {"node"}:
        return "Inside a node computing, exchange and slow ranks are added up; between nodes no link is known."
    return "Between nodes computing, exchange and slow ranks are added up; inside a node no link is known."


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
    yield from _batch_notes(known, [rate for rate, _ in found], assumed.batch)
    yield from _model_notes(known, [rate for rate, _ in found])
    if work is not None:
        yield from _work_notes(work, found)
    if work is not None and any(rate.topology.devices >= FAILURES_FROM for rate, _ in found):
        yield (
            f"from {FAILURES_FROM} devices on one failure in {assumed.device_hours_a_failure:,.0f} device-hours is "
            f"reckoned with, and checkpoints of {work.checkpoint_s:.0f} s ({work.checkpoint_why}) as often as pays; "
            "--mtbf changes it"
        )


def _work_notes(work: Work, found: Sequence[tuple[RateForecast, WholeTraining | None]]) -> Iterator[str]:
    if work.reference is None:
        yield f"time is that of {work.items:,.0f} items: {work.why}; a larger global batch may need more of them"
    else:
        batch = f"{work.global_batch:,.0f}"
        yield f"time is that of as many items {work.why}: {work.items:,.0f} at a global batch of {batch}"
        beyond = [str(rate.topology) for rate, after in found if rate.interval and after is None]
        if beyond:
            yield (
                f"{', '.join(beyond)}: no reference run has so large a global batch, so nobody knows how much training "
                "it takes and no time is forecast"
            )
    yield from work.notes


def _batch_notes(known: Known, found: Sequence[RateForecast], asked: BatchAsked | None) -> Iterator[str]:
    if asked is None:
        if known.batch_per_device is not None:
            yield (
                f"every size has batches of {known.batch_per_device} a device, "
                "so the global batch grows with the devices"
            )
        return
    batches = {rate.batch_per_device for rate in found if rate.batch_per_device is not None}
    if known.line is None or not batches - {known.batch_per_device}:
        return
    fixed = f"{100 * known.line.fixed:.0f} %"
    if known.line.source:
        yield f"{fixed} of a step's computing does not depend on its batch, as {known.line.source} show"
    else:
        yield (
            f"one batch is known, {known.batch_per_device} a device; {fixed} of a step's computing is taken not to "
            "depend on it, as in published trainings: a run of another batch would make the range far narrower"
        )
    if max(batches) > known.line.batches[-1]:
        yield f"nobody tried whether batches of {max(batches)} a device fit into its memory"


def _model_notes(known: Known, found: Sequence[RateForecast]) -> Iterator[str]:
    if known.model is not None:
        if known.model.assumed_cover:
            yield "how long backward takes was not measured; two thirds of computing are assumed"
        if known.model.stragglers is not None and not known.model.stragglers.by_step:
            yield "of slow ranks only whole runs are known, not single steps"
        yield from _speed_needed(known.model, [rate.topology for rate in found])
    last = next((rate for rate in reversed(found) if rate.kind in (rates.FORECAST, rates.ROUGH)), None)
    if last is not None and last.batch_per_device == known.batch_per_device:
        rules = rates.alternatives(known, last.topology)
        said = ", ".join(f"{name} {number(rate)}" for name, rate in rules.items())
        yield f"how far the rule matters, at {last.topology}: {said} {known.unit}"


def _speed_needed(model: StepModel, asked: Sequence[Topology]) -> Iterator[str]:
    """How fast the links between nodes must be for the usual loss to hold, where nobody measured them."""
    beyond = [topology for topology in asked if model.parts(topology) is None]
    inside = model.parts(replace(beyond[-1], nodes=1)) if beyond else None
    if inside is None:
        return
    sent = passes("all-reduce", beyond[-1].nodes) * model.exchange.shape.size_bytes / beyond[-1].devices_per_node
    spare_s = max(0.0, model.overlap * model.cover_s - inside.hidden_s) - law.USUAL_LOSS * inside.step_s
    yield (
        f"at {beyond[-1]} every rank has {number(sent / 1e6)} MB to send to other nodes in a step: links of less than "
        f"{number(sent / spare_s / 1e9)} GB/s for each rank would cost more than the usual loss"
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
                "batch_per_device": rate.batch_per_device,
                "parts": {**asdict(rate.parts), "step_s": rate.parts.step_s} if rate.parts else None,
                "alternatives": rates.alternatives(found.known, rate.topology) if rate.rate else {},
                **(asdict(after) if after else {"time_s": None, "energy_kwh": None, "cost": None}),
            }
            for rate, after in found.sizes
        ],
        "currency": found.assumed.price.currency,
        "notes": list(found.notes),
    }
