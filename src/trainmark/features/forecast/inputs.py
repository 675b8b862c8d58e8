"""Collects the inputs of a forecast: measured sizes of one training, and a model of its gradient exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from msgspec import structs

from trainmark.analysis import scaling
from trainmark.analysis.scaling import PublishedScaling
from trainmark.features.forecast import scaling_law
from trainmark.features.forecast.scaling_law import Size
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.links import Collective, LinkLevel, fit_level
from trainmark.record.machine import ExchangeShape
from trainmark.record.metrics import Quantity
from trainmark.record.numbers import CONFIDENCE, half_width, quantile, share
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.timeline import Timeline

Level = Literal["node", "nodes"]
PARALLEL = ("", "ddp", "fsdp", "hsdp")
"""Kinds of parallelism with a model of their exchange; older records do not name theirs."""
BACKWARD = 2 / 3
"""Assumed share of compute: the backward pass computes about twice the forward pass."""


@dataclass(frozen=True, kw_only=True)
class ExchangeModel:
    """A step as compute plus the exposed exchange, calibrated to one run."""

    base: Topology
    """Topology of that run."""
    computing_s: float
    cover: float
    """Share of compute that can overlap the exchange."""
    shape: ExchangeShape
    levels: Mapping[tuple[Level, Collective], LinkLevel]
    overlap: float = 0.0
    """Share of the possible overlap that was reached."""
    slowdown: float = 1.0
    """Exchange time in training over the time by measured links."""

    def step_s(self, topology: Topology, computing: float = 1.0) -> float | None:
        """Seconds of a step whose compute takes `computing` times as long; None where a link was not measured."""
        wire_s = self.wire_s(topology)
        if wire_s is None:
            return None
        wire_s, computing_s = self.slowdown * wire_s, self.computing_s * computing
        return computing_s + wire_s - self.overlap * min(wire_s, self.cover * computing_s)

    def log_kept(self, topology: Topology, computing: float = 1.0) -> float:
        """Logarithm of a device's speed over that in the run; without links between nodes, as inside one."""
        here = self.step_s(self.base)
        there = self.step_s(topology, computing) or self.step_s(replace(topology, nodes=1), computing)
        return math.log(here / there) if here and there else 0.0

    def wire_s(self, topology: Topology) -> float | None:
        """Seconds of all messages of a step in sequence; None where a link was not measured.

        Gradients are reduced inside each node, then across nodes, where every rank sends its share of them.
        """
        shape = self.shape
        gradients = shape.size_bytes - shape.gathered_bytes
        gathers = shape.messages * shape.gathered_bytes / max(1, shape.size_bytes)
        if _is_sharded(shape):
            sent: list[tuple[Collective, float, float]] = [
                ("all-gather", shape.gathered_bytes, gathers),
                ("reduce-scatter", gradients, shape.messages - gathers),
            ]
        else:
            sent = [("all-reduce", shape.size_bytes, shape.messages)]
        inside, nodes = topology.devices_per_node, topology.nodes
        times = [self._link_s("node", inside, *each) for each in sent]
        if shape.parallel == "hsdp":
            sent = [("all-reduce", gradients, shape.messages - gathers)]
        times += [self._link_s("nodes", nodes, kind, size / inside, messages) for kind, size, messages in sent]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    def _link_s(
        self, level: Level, ranks: int, collective: Collective, size_bytes: float, messages: float
    ) -> float | None:
        if ranks == 1 or not size_bytes:
            return 0.0
        link = self.levels.get((level, collective))
        if link is None and (all_reduce := self.levels.get((level, "all-reduce"))):
            link = structs.replace(all_reduce, collective=collective)
        return link.seconds(size_bytes, messages, ranks) if link else None


def fit_exchange(record: Record) -> ExchangeModel | None:
    """Fits the model to a run; None where it did not measure links and exchange, or splits layers across devices."""
    shape, levels, timeline = record.environment.exchange, read_links(record), record.timeline
    counted = timeline.steps - timeline.warmup_steps
    if shape is None or shape.parallel not in PARALLEL or counted <= 0 or not timeline.exchange_known:
        return None
    exposed_s = _exposed_s(timeline, counted)
    step_s = timeline.sum_counted(timeline.slowest).compute_ns / counted / 1e9
    computing_s = step_s - exposed_s
    if computing_s <= 0:
        return None
    backward = BACKWARD if shape.backward_s is None else min(1.0, shape.backward_s / computing_s)
    model = ExchangeModel(
        base=Topology.parse(record.plan.topology),
        computing_s=computing_s,
        cover=1.0 if _is_sharded(shape) else backward,
        shape=shape,
        levels=levels,
    )
    wire_s = model.wire_s(model.base)
    if not wire_s:
        return None
    hidden_s, coverable_s = max(0.0, wire_s - exposed_s), min(wire_s, model.cover * computing_s)
    overlap = min(1.0, hidden_s / coverable_s) if coverable_s else 0.0
    return replace(model, overlap=overlap, slowdown=max(1.0, exposed_s / wire_s))


def _is_sharded(shape: ExchangeShape) -> bool:
    """Whether weights are gathered in the forward pass."""
    return shape.parallel in ("fsdp", "hsdp") or shape.gathered_bytes > 0


def _exposed_s(timeline: Timeline, counted: int) -> float:
    """Exposed exchange per step, of the rank that does not wait for others."""
    steps = slice(timeline.warmup_steps, timeline.steps)
    if any(trace.sums for trace in timeline.ranks):
        return min(timeline.sum_counted(trace).exchange_ns for trace in timeline.ranks) / counted / 1e9
    return float(np.min([trace.exchange_ns[steps] for trace in timeline.ranks], axis=0).mean()) / 1e9


def read_links(record: Record) -> dict[tuple[Level, Collective], LinkLevel]:
    """Links by level and collective; of older records with one level, fitted to all ranks."""
    environment, topology = record.environment, Topology.parse(record.plan.topology)
    levels = list(environment.link_levels)
    if not levels and environment.link and 1 in (topology.nodes, topology.devices_per_node) and topology.devices > 1:
        times = [(row.size_bytes, row.median_s) for row in environment.link]
        levels = [fit_level("node" if topology.nodes == 1 else "nodes", "all-reduce", topology.devices, 1, times)]
    return {(level.level, level.collective): level for level in levels}


MAX_NOISE = 0.05
"""Largest relative half-width of a run's interval."""
MAX_LINK_CHANGE = 3.0
"""Largest ratio of link bandwidths between runs over the same links."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Measured sizes of one training, smallest first."""

    subject: tuple[str, ...]
    """Workload, device, precision and the like, for a heading."""
    metric: str
    unit: str
    batch_per_device: int | None
    sizes: tuple[Size, ...]
    exchange: ExchangeModel | None = None
    """None where no run measured it."""
    notes: tuple[str, ...] = ()

    @property
    def one_device(self) -> bool:
        """No link is known."""
        return self.largest.topology.devices == 1

    @property
    def several(self) -> bool:
        return len({size.topology.devices for size in self.sizes}) > 1

    @property
    def largest(self) -> Size:
        return self.sizes[-1]


def read_records(records: Sequence[Record], metric: str = "p_core") -> Known:
    """Reads runs that differ in topology alone; UsageError where they differ otherwise or are too noisy."""
    alias = scaling.find_throughput(metric)
    if len({scaling.batch_shape(record) for record in records}) > 1:
        raise UsageError("these runs differ in their batch; a forecast needs runs of one batch_per_device")
    _check_links(records)
    points = scaling.points_by_topology(records, alias)
    first = records[0]
    by_size = sorted(records, key=lambda record: Topology.parse(record.plan.topology).devices, reverse=True)
    return _leave_out_contradictions(
        Known(
            subject=(first.plan.workload, first.plan.recipe_name, first.precision, device_name(first)),
            metric=alias,
            unit=points[0].throughput.unit,
            batch_per_device=int(first.plan.recipe["batch_per_device"]),
            sizes=tuple(
                Size(topology=point.topology, rate=point.throughput.value or 0.0, error=_error(point.throughput))
                for point in points
            ),
            exchange=next(filter(None, map(fit_exchange, by_size)), None),
        )
    )


def read_published(group: PublishedScaling, metric: str, below: int) -> Known | None:
    """Reads the rows with fewer devices than `below`; None where there are none."""
    rows = [(Topology.parse(point.row.topology), getattr(point.row, metric)) for point in group.points]
    sizes = tuple(Size(topology=topology, rate=rate) for topology, rate in rows if rate and topology.devices < below)
    if not sizes:
        return None
    base = group.base
    return _leave_out_contradictions(
        Known(
            subject=(base.workload, base.device, f"labelled {base.precision}", base.source.title),
            metric=metric,
            unit=f"{base.item}/s" if base.item else "",
            batch_per_device=base.batch_per_device,
            sizes=sizes,
        )
    )


def _check_links(records: Sequence[Record]) -> None:
    """Raises UsageError where the bandwidth of the same links changed much between runs."""
    seen: dict[tuple[str, str, int], tuple[Record, float]] = {}
    where = {"node": "inside a node", "nodes": "between nodes"}
    for record in records:
        for (level, collective), link in read_links(record).items():
            before, speed = seen.setdefault((level, collective, link.ranks), (record, link.bytes_per_s))
            if max(speed, link.bytes_per_s) > MAX_LINK_CHANGE * min(speed, link.bytes_per_s):
                raise UsageError(
                    f"the links changed between runs {before.run_id} and {record.run_id}: {collective} {where[level]} "
                    f"carried {number(speed / 1e9)} and {number(link.bytes_per_s / 1e9)} GB/s; "
                    "forecast from runs over the same links"
                )


def _leave_out_contradictions(known: Known) -> Known:
    """Drops smaller sizes whose scaling contradicts every published cluster."""
    left_out, notes = [], []
    explained = known.exchange.log_kept if known.exchange else scaling_law.explain_nothing
    for small, large in scaling_law.find_contradictions(known.sizes, explained=explained):
        left_out.append(small)
        kept = large.rate / small.rate / (large.topology.devices / small.topology.devices)
        usual = 1 + scaling_law.USUAL_LOSS
        notes.append(
            f"{small.topology} is left out: a device of {large.topology} does {kept:.2f} of what one does there, "
            f"where published clusters keep {usual:.2f} per doubling; the two hardly measured the same"
        )
    return replace(known, sizes=tuple(size for size in known.sizes if size not in left_out), notes=tuple(notes))


def _error(quantity: Quantity) -> float:
    """Standard error by the interval; RUN_ERROR without one."""
    if quantity.interval is None:
        return scaling_law.RUN_ERROR
    if share(quantity.interval) > MAX_NOISE:
        width = f"±{100 * share(quantity.interval):.0f} %"
        raise UsageError(
            f"a run is known to {width} only, which is too noisy for a forecast; run more steps or repeats, or on a "
            "quieter machine"
        )
    return max(half_width(quantity.interval) / quantile(0.5 + CONFIDENCE / 2, 1e6), scaling_law.RUN_ERROR)
