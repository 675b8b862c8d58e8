"""Scaling efficiency, from runs that differ only in topology, and from rows of published tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from trainmark.record import metrics
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.metrics import THROUGHPUTS, Quantity
from trainmark.record.numbers import around, average_repeats, half_width, is_too_noisy
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record

FORMULA = "throughput(NxM) / (devices(NxM) / devices(base) x throughput(base))"

EXPLAINING = ("exchange", "rank_skew")
"""Metrics of a run that say where the missing part of the efficiency went."""

BATCH_SHAPE = ("batch_per_device", "accumulate")
"""Recipe values that strong scaling changes with the number of devices, so that their product stays the same."""

CONTRADICTION = 0.15
"""Waiting, evaluating and saving do not shrink with more devices: p_whole may not scale better by more than this.

Less than it is what a different number of evaluations, or of files in the cache, makes of honest rows."""

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
    value = _require_value(throughput) / (devices / base_devices * _require_value(base))
    if throughput.interval is None or base.interval is None:
        return Efficiency(value=value)
    half = math.hypot(half_width(throughput.interval), half_width(base.interval))
    return Efficiency(value=value, interval=around(value, half))


def compute_scaling(records: Sequence[Record], metric: str = "p_core") -> Scaling:
    """The efficiency of runs that are alike; any others are refused with what differs."""
    alias = find_throughput(metric)
    topologies = {record.plan.topology for record in records}
    if len(topologies) < 2:
        seen = f"all are {topologies.pop()}" if topologies else "there is none"
        raise UsageError(f"scaling compares runs of different topologies, and {seen}; name runs of at least two")
    return _scaling(records, _find_kind(records), alias)


def find_scalings(records: Iterable[Record], metric: str = "p_core") -> list[Scaling]:
    """Every group of like runs with two topologies or more. A run can stand in a weak and in a strong one."""
    alias = find_throughput(metric)
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.created):
        quantity = record.metrics.get(alias)
        if record.status == "valid" and quantity and quantity.value is not None:
            alike = tuple(_conditions(record).items())
            groups.setdefault(("weak", batch_shape(record), alike), []).append(record)
            groups.setdefault(("strong", global_batch(record), alike), []).append(record)
    return [
        _scaling(members, "weak" if key[0] == "weak" else "strong", alias)
        for key, members in groups.items()
        if len({record.plan.topology for record in members}) > 1
    ]


def find_throughput(word: str) -> str:
    """The tables' word for a throughput, by either of its names."""
    alias = metrics.find_metric(word).alias
    if not metrics.METRICS[alias].is_rate:
        rates = ", ".join(known.alias for known in metrics.METRICS.values() if known.is_rate)
        raise UsageError(f"metric {word!r} is not a throughput; scaling is by {rates}")
    return alias


def points_by_topology(records: Sequence[Record], alias: str) -> tuple[Point, ...]:
    """Pools repeats, smallest topology first; refuses runs that are not valid or not alike."""
    _find_kind(records)
    return _points(records, alias)


def batch_shape(record: Record) -> tuple[int, int]:
    """Batch per device and micro-batches of a step."""
    batch, micro_batches = (int(record.plan.recipe.get(name, 1)) for name in BATCH_SHAPE)
    return batch, micro_batches


def global_batch(record: Record) -> int:
    """Samples in one step over all devices and micro-batches."""
    return math.prod(batch_shape(record)) * Topology.parse(record.plan.topology).devices


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


def pool(quantities: Sequence[Quantity]) -> Quantity:
    """The mean of repeats with the interval that `compare` gives them as well; a single run keeps its own."""
    mean, interval = average_repeats([_require_value(quantity) for quantity in quantities])
    if len(quantities) == 1:
        return quantities[0]
    return Quantity(value=mean, unit=quantities[0].unit, interval=interval)


def _scaling(records: Sequence[Record], kind: Kind, alias: str) -> Scaling:
    points = _points(records, alias)
    first = records[0]
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
        notes=(*_efficiency_notes(points), *_record_notes(_sort_by_size(records))),
    )


def _points(records: Sequence[Record], alias: str) -> tuple[Point, ...]:
    by_topology: dict[Topology, list[Record]] = {}
    for record in _sort_by_size(records):
        by_topology.setdefault(Topology.parse(record.plan.topology), []).append(record)
    throughputs = {
        topology: pool([_throughput(record, alias) for record in members]) for topology, members in by_topology.items()
    }
    base = next(iter(throughputs))
    return tuple(
        Point(
            topology=topology,
            global_batch=global_batch(members[0]),
            runs=tuple(record.run_id for record in members),
            throughput=throughputs[topology],
            speed_up=_require_value(throughputs[topology]) / _require_value(throughputs[base]),
            efficiency=Efficiency(value=1.0)
            if topology == base
            else scaling_efficiency(throughputs[topology], topology.devices, throughputs[base], base.devices),
            explaining=_mean_explaining(members),
        )
        for topology, members in by_topology.items()
    )


def _sort_by_size(records: Iterable[Record]) -> list[Record]:
    sized = [(Topology.parse(record.plan.topology), record) for record in records]
    return [record for _, record in sorted(sized, key=lambda pair: (pair[0].devices, pair[0].nodes))]


def _find_kind(records: Sequence[Record]) -> Kind:
    """Weak or strong, or a refusal that names the two runs and what differs between them."""
    for record in records:
        if record.status != "valid":
            needs = "scaling and forecasts need valid runs"
            raise UsageError(f"run {record.run_id} is {record.status} ({record.ended}); {needs}")
    base, *others = _sort_by_size(records)
    for other in others:
        if differing := _differences(_conditions(base), _conditions(other)):
            raise UsageError(f"{_pair(base, other)} are not alike: {differing}; only the topology may differ")
    unlike = [other for other in others if batch_shape(other) != batch_shape(base)]
    if not unlike:
        return "weak"
    if len({global_batch(record) for record in records}) == 1:
        return "strong"
    sizes = _differences(_batches(base), _batches(unlike[0]))
    raise UsageError(
        f"{_pair(base, unlike[0])} are neither weak nor strong scaling: {sizes}; "
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
        **{name: value for name, value in sorted(plan.recipe.items()) if name not in BATCH_SHAPE},
    }


def _batches(record: Record) -> dict[str, object]:
    return {**dict(zip(BATCH_SHAPE, batch_shape(record), strict=True)), "global batch": global_batch(record)}


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    missing = "not on the record"
    return ", ".join(f"{name} {one.get(name, missing)} and {other.get(name, missing)}" for name in names)


def _pair(one: Record, other: Record) -> str:
    return f"runs {one.run_id} ({one.plan.topology}) and {other.run_id} ({other.plan.topology})"


def _data(record: Record) -> str:
    return f"{'synthetic' if record.plan.data.synthetic else 'real'} {record.plan.data.name}"


def _mean_explaining(members: Sequence[Record]) -> dict[str, Quantity]:
    means = {}
    for alias in EXPLAINING:
        quantities = [record.metrics[alias] for record in members if alias in record.metrics]
        if values := [quantity.value for quantity in quantities if quantity.value is not None]:
            means[alias] = Quantity(value=fmean(values), unit=quantities[0].unit)
    return means


def _efficiency_notes(points: Sequence[Point]) -> list[str]:
    notes = []
    for point in points[1:]:
        shown = f"{point.topology} with {number(point.efficiency.value)}"
        if point.efficiency.interval is None:
            notes.append(f"{shown} has no interval, as a run behind it has none: more steps or repeats would give one")
        elif is_too_noisy(point.efficiency.interval):
            notes.append(f"{shown} is too noisy to say: more steps, repeats or a quieter machine would help")
        if point.efficiency.value > 1 and (point.efficiency.interval is None or point.efficiency.interval[0] > 1):
            notes.append(f"{shown} is above ideal: check that both ran alike")
    return notes


def _record_notes(ordered: Sequence[Record]) -> list[str]:
    """Unequal coverage, then each doubt once, with the topologies it is about unless that is all of them."""
    notes = []
    if len({record.plan.limits.full for record in ordered}) > 1:
        covered = dict.fromkeys(f"{record.plan.topology} {record.coverage}" for record in ordered)
        notes.append(f"throughputs do not cover the same part of a run: {'; '.join(covered)}")
    about: dict[str, dict[str, None]] = {}
    for record in ordered:
        for doubt in record.doubts:
            about.setdefault(doubt.text, {})[record.plan.topology] = None
    everywhere = len({record.plan.topology for record in ordered})
    notes += [
        text if len(topologies) == everywhere else f"{', '.join(topologies)}: {text}"
        for text, topologies in about.items()
    ]
    return notes


def _throughput(record: Record, alias: str) -> Quantity:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        reason = (quantity.unavailable if quantity else None) or "it is not on the record"
        raise UsageError(f"run {record.run_id} has no {alias}: {reason}; choose another run or --metric")
    return quantity


def _require_value(quantity: Quantity) -> float:
    if quantity.value is None or quantity.value <= 0:
        raise UsageError(f"a throughput of {quantity.value} {quantity.unit} cannot be scaled by")
    return quantity.value


# Published tables: by each throughput, which may contradict each other


@dataclass(frozen=True, kw_only=True)
class PublishedPoint:
    row: PublishedRow
    devices: int
    efficiency: Mapping[str, float | None]
    """By throughput; None where it, or the base's, is not published."""


@dataclass(frozen=True, kw_only=True)
class PublishedScaling:
    """Rows of one page, device, workload, precision label and batch per device, smallest topology first."""

    points: tuple[PublishedPoint, ...]

    @property
    def base(self) -> PublishedRow:
        return self.points[0].row


def find_published_scalings(rows: Iterable[PublishedRow]) -> list[PublishedScaling]:
    """Every group of rows with two topologies or more and a throughput to compare."""
    groups: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in rows:
        if row.devices and any(getattr(row, alias) is not None for alias in THROUGHPUTS):
            recipe = (row.batch_per_device, row.batch_per_device is None and row.fix_hp, _settings(row))
            key = (row.source, row.workload, row.device, row.precision, *recipe)
            groups.setdefault(key, []).append(row)
    return [_measure_group(members) for members in groups.values() if len({row.topology for row in members}) > 1]


def _settings(row: PublishedRow) -> tuple[object, ...]:
    """What else tells rows of one table apart: fine-tuned how, cut into which sizes."""
    return (row.remark, *((detail.name, detail.text) for detail in row.details if detail.value is None))


def _measure_group(members: Sequence[PublishedRow]) -> PublishedScaling:
    base, *_ = ordered = sorted(members, key=lambda row: row.devices or 0)
    return PublishedScaling(
        points=tuple(
            PublishedPoint(
                row=row,
                devices=row.devices or 0,
                efficiency={alias: _measure_efficiency(row, base, alias) for alias in THROUGHPUTS},
            )
            for row in ordered
        )
    )


def _measure_efficiency(row: PublishedRow, base: PublishedRow, alias: str) -> float | None:
    value, of_base = getattr(row, alias), getattr(base, alias)
    if not value or not of_base or not row.devices or not base.devices:  # an imported page may also hold zeros
        return None
    return float(value / (row.devices / base.devices * of_base))
