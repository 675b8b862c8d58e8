"""Tells how much of the ideal speed-up more devices brought, from runs that differ in nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from trainmark.spec import metrics
from trainmark.spec.errors import UsageError
from trainmark.spec.format import device_name, number
from trainmark.spec.intervals import around, half_width, of_repeats, too_noisy
from trainmark.spec.metrics import Quantity
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

FORMULA = "throughput(NxM) / (devices(NxM) / devices(base) x throughput(base))"

EXPLAINING = ("exchange", "rank_skew")
"""Metrics of a run that say where the missing part of the efficiency went."""

SHARED_OUT = ("batch_per_device", "accumulate")
"""Recipe values that strong scaling changes with the number of devices, so that their product stays the same."""

Kind = Literal["weak", "strong"]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    value: float
    interval: tuple[float, float] | None = None
    """95 % confidence; None where a side has no interval, and for the base, which is 1 by definition."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One topology: a run, or repeats of it pooled."""

    topology: Topology
    global_batch: int
    runs: tuple[str, ...]
    throughput: Quantity
    speed_up: float
    """Over the base, whatever its number of devices."""
    efficiency: Efficiency
    explaining: Mapping[str, Quantity]
    """Those of `EXPLAINING` that the records hold, as means over the runs."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Topologies of one training, smallest first; the first is the base."""

    kind: Kind
    metric: str
    workload: str
    recipe_name: str
    precision: str
    platform: str
    device: str
    data: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]


def scaling_efficiency(throughput: Quantity, devices: int, base: Quantity, base_devices: int) -> Efficiency:
    """How much of the ideal speed-up a larger topology reached: 1 where twice the devices train twice the items.

    The base is the smallest topology there is, 1x1 where it was run. Weak scaling keeps the batch of each device, so
    the global batch grows with the devices; strong scaling keeps the global batch, so each device gets less to do.
    Both sides must agree in workload, recipe, precision, platform, device and kind of data. The metric is named with
    the number, for p_whole, p_train and p_core scale differently.

    The two throughputs were measured apart and do not know of each other's errors. So the half-widths of their 95 %
    intervals, on the logarithm, are added in quadrature; where one of them has no interval, neither has the efficiency.
    """
    value = _known(throughput) / (devices / base_devices * _known(base))
    if throughput.interval is None or base.interval is None:
        return Efficiency(value=value)
    half = math.hypot(half_width(throughput.interval), half_width(base.interval))
    return Efficiency(value=value, interval=around(value, half))


def scaling(records: Sequence[Record], metric: str = "p_core") -> Scaling:
    """The efficiency of runs that are alike; any others are refused with what differs."""
    alias = throughput_alias(metric)
    for record in records:
        if record.status != "valid":
            raise UsageError(f"run {record.run_id} is {record.status} ({record.ended}); scaling needs valid runs")
    ordered = sorted(records, key=lambda record: _size(Topology.parse(record.plan.topology)))
    if len({record.plan.topology for record in ordered}) < 2:
        seen = f"all are {ordered[0].plan.topology}" if ordered else "there is none"
        raise UsageError(f"scaling compares runs of different topologies, and {seen}; name runs of at least two")
    return _measured(ordered, _kind(ordered), alias)


def all_scalings(records: Iterable[Record], metric: str = "p_core") -> list[Scaling]:
    """Every group of like runs with two topologies or more. A run can stand in a weak and in a strong one."""
    alias = throughput_alias(metric)
    found = []
    alike: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if record.status == "valid" and _value(record, alias) is not None:
            alike.setdefault(tuple(_conditions(record).items()), []).append(record)
    for members in alike.values():
        members.sort(key=lambda record: (*_size(Topology.parse(record.plan.topology)), record.created))
        kinds: dict[tuple[Kind, object], list[Record]] = {}
        for record in members:
            kinds.setdefault(("weak", shared_out(record)), []).append(record)
            kinds.setdefault(("strong", global_batch(record)), []).append(record)
        for (kind, _), group in kinds.items():
            if len({record.plan.topology for record in group}) > 1:
                found.append(_measured(group, kind, alias))
    return found


def throughput_alias(word: str) -> str:
    """The tables' word for a throughput, by either of its names."""
    alias = metrics.find(word).alias
    if not metrics.METRICS[alias].is_rate:
        rates = ", ".join(known.alias for known in metrics.METRICS.values() if known.is_rate)
        raise UsageError(f"metric {word!r} is not a throughput; scaling is by {rates}")
    return alias


def global_batch(record: Record) -> int:
    """Samples in one step over all devices and micro-batches."""
    batch, micro_batches = shared_out(record)
    return batch * micro_batches * Topology.parse(record.plan.topology).devices


def unlike(one: Record, other: Record) -> str:
    """What differs between two runs that must be alike but for topology and batch; nothing where nothing does."""
    return _differences(_conditions(one), _conditions(other))


def to_json(found: Scaling) -> dict[str, Any]:
    """For programs; intervals are [low, high] at 95 %, null where unknown."""
    facts = ("kind", "metric", "workload", "recipe_name", "precision", "platform", "device", "data")
    return {
        **{name: getattr(found, name) for name in facts},
        "base": str(found.points[0].topology),
        "points": [
            {
                "topology": str(point.topology),
                "devices": point.topology.devices,
                "global_batch": point.global_batch,
                "runs": list(point.runs),
                "throughput": metrics.quantity_to_json(point.throughput),
                "speed_up": point.speed_up,
                "efficiency": point.efficiency.value,
                "efficiency_interval": list(point.efficiency.interval) if point.efficiency.interval else None,
                **{
                    alias: metrics.quantity_to_json(point.explaining[alias]) if alias in point.explaining else None
                    for alias in EXPLAINING
                },
            }
            for point in found.points
        ],
        "notes": list(found.notes),
    }


def pooled(quantities: Sequence[Quantity]) -> Quantity:
    """The mean of repeats with the interval that `compare` gives them as well; a single run keeps its own."""
    mean, interval = of_repeats([_known(quantity) for quantity in quantities])
    if len(quantities) == 1:
        return quantities[0]
    return Quantity(value=mean, unit=quantities[0].unit, interval=interval)


def _measured(ordered: Sequence[Record], kind: Kind, alias: str) -> Scaling:
    by_topology: dict[Topology, list[Record]] = {}
    for record in ordered:
        by_topology.setdefault(Topology.parse(record.plan.topology), []).append(record)
    throughputs = {
        topology: pooled([_throughput(record, alias) for record in members])
        for topology, members in by_topology.items()
    }
    base = next(iter(throughputs))
    points = tuple(
        Point(
            topology=topology,
            global_batch=global_batch(members[0]),
            runs=tuple(record.run_id for record in members),
            throughput=throughputs[topology],
            speed_up=_known(throughputs[topology]) / _known(throughputs[base]),
            efficiency=Efficiency(value=1.0)
            if topology == base
            else scaling_efficiency(throughputs[topology], topology.devices, throughputs[base], base.devices),
            explaining=_explaining(members),
        )
        for topology, members in by_topology.items()
    )
    first = ordered[0]
    return Scaling(
        kind=kind,
        metric=alias,
        workload=first.plan.workload,
        recipe_name=first.plan.recipe_name,
        precision=first.precision,
        platform=first.plan.platform_word,
        device=device_name(first),
        data=_data(first),
        points=points,
        notes=(*_efficiency_notes(points), *_coverage_notes(ordered), *_doubts(ordered)),
    )


def _kind(ordered: Sequence[Record]) -> Kind:
    """Weak or strong, or a refusal that names the two runs and what differs between them."""
    base = ordered[0]
    for other in ordered[1:]:
        if said := _differences(_conditions(base), _conditions(other)):
            raise UsageError(f"{_pair(base, other)} are not alike: {said}; only the topology may differ")
    if len({shared_out(record) for record in ordered}) == 1:
        return "weak"
    if len({global_batch(record) for record in ordered}) == 1:
        return "strong"
    other = next(record for record in ordered if shared_out(record) != shared_out(base))
    sizes = _differences(
        {**dict(zip(SHARED_OUT, shared_out(base), strict=True)), "global batch": global_batch(base)},
        {**dict(zip(SHARED_OUT, shared_out(other), strict=True)), "global batch": global_batch(other)},
    )
    raise UsageError(
        f"{_pair(base, other)} are neither weak nor strong scaling: {sizes}; "
        "keep batch_per_device the same, or the global batch"
    )


def _conditions(record: Record) -> dict[str, object]:
    """All that must be equal in weak and in strong scaling."""
    plan = record.plan
    return {
        "workload": plan.workload,
        "precision": record.precision,
        "platform": plan.platform_word,
        "device": device_name(record),
        "data": _data(record),
        **{name: value for name, value in sorted(plan.recipe.items()) if name not in SHARED_OUT},
    }


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    missing = "not on the record"
    return ", ".join(f"{name} {one.get(name, missing)} and {other.get(name, missing)}" for name in names)


def _pair(one: Record, other: Record) -> str:
    return f"runs {one.run_id} ({one.plan.topology}) and {other.run_id} ({other.plan.topology})"


def _data(record: Record) -> str:
    return f"{'synthetic' if record.plan.data.synthetic else 'real'} {record.plan.data.name}"


def shared_out(record: Record) -> tuple[int, int]:
    """Batch per device and micro-batches of a step."""
    batch, micro_batches = (int(record.plan.recipe.get(name, 1)) for name in SHARED_OUT)
    return batch, micro_batches


def _size(topology: Topology) -> tuple[int, int]:
    return topology.devices, topology.nodes


def _explaining(members: Sequence[Record]) -> dict[str, Quantity]:
    found = {alias: [record.metrics[alias] for record in members if alias in record.metrics] for alias in EXPLAINING}
    means = {}
    for alias, quantities in found.items():
        values = [quantity.value for quantity in quantities if quantity.value is not None]
        if values:
            means[alias] = Quantity(value=fmean(values), unit=quantities[0].unit)
    return means


def _efficiency_notes(points: Sequence[Point]) -> list[str]:
    notes = []
    for point in points[1:]:
        shown = f"{point.topology} with {number(point.efficiency.value)}"
        if point.efficiency.interval is None:
            notes.append(f"{shown} has no interval, as a run behind it has none: more steps or repeats would give one")
        elif too_noisy(point.efficiency.interval):
            notes.append(f"{shown} is too noisy to say: more steps, repeats or a quieter machine would help")
        if point.efficiency.value > 1 and (point.efficiency.interval is None or point.efficiency.interval[0] > 1):
            notes.append(f"{shown} is above ideal: check that both ran alike")
    return notes


def _coverage_notes(ordered: Sequence[Record]) -> list[str]:
    if len({record.plan.limits.full for record in ordered}) == 1:
        return []
    covered = {f"{record.plan.topology} {record.coverage}": None for record in ordered}
    return [f"throughputs do not cover the same part of a run: {'; '.join(covered)}"]


def _doubts(ordered: Sequence[Record]) -> list[str]:
    """Each doubt once, with the topologies it is about unless that is all of them."""
    about: dict[str, dict[str, None]] = {}
    for record in ordered:
        for doubt in record.doubts:
            about.setdefault(doubt.text, {})[record.plan.topology] = None
    everywhere = len({record.plan.topology for record in ordered})
    return [
        text if len(topologies) == everywhere else f"{', '.join(topologies)}: {text}"
        for text, topologies in about.items()
    ]


def _throughput(record: Record, alias: str) -> Quantity:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        reason = (quantity.unavailable if quantity else None) or "it is not on the record"
        raise UsageError(f"run {record.run_id} has no {alias}: {reason}; choose another run or --metric")
    return quantity


def _value(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return quantity.value if quantity else None


def _known(quantity: Quantity) -> float:
    if quantity.value is None or quantity.value <= 0:
        raise UsageError(f"a throughput of {quantity.value} {quantity.unit} cannot be scaled by")
    return quantity.value
