"""Forecasts the throughput of a size that was not run, from measured sizes of one training and its exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from trainmark.analysis import clusters, scaling
from trainmark.analysis.scaling import PublishedScaling
from trainmark.features.forecast import scaling_law
from trainmark.features.forecast.scaling_law import Reach, Size
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name
from trainmark.record.links import LinkLevel
from trainmark.record.machine import ExchangeShape
from trainmark.record.metrics import Quantity
from trainmark.record.numbers import CONFIDENCE, Bounds, half_width, quantile, share
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.timeline import Timeline

Level = Literal["node", "nodes"]
PARALLEL = ("", "ddp", "fsdp", "hsdp")
"""Kinds of parallelism with a model of their exchange; older records do not name theirs."""
BACKWARD = 2 / 3
"""Assumed share of compute: the backward pass computes about twice the forward pass."""
MAX_NOISE = 0.05
"""Largest relative half-width of a run's interval."""
FAR = 16
"""Times the largest measured size, beyond which a forecast is an order of magnitude."""
MAX_BATCH_CUT = 2.0
"""Largest ratio of the runs' batch to a smaller one."""
FIXED, FIXED_ERROR = 0.03, 0.06
"""Share of compute per step that does not depend on the batch, and its standard deviation, by published sizes."""
MEASURED, FORECAST, ROUGH, RANGE, REFUSED = "measured", "forecast", "order of magnitude", "usual range", "refused"


@dataclass(frozen=True, kw_only=True)
class ExchangeModel:
    """A step as compute plus the exposed exchange, calibrated to one run."""

    base: Topology
    """Topology of that run."""
    computing_s: float
    cover: float
    """Share of compute that can overlap the exchange."""
    shape: ExchangeShape
    levels: Mapping[Level, LinkLevel]
    """How long an all-reduce takes inside a node, and between nodes."""
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
        """Logarithm of a device's steps per second over those in the run.

        Without links between nodes as inside one, without any by compute alone.
        """
        here = self.step_s(self.base)
        there = self.step_s(topology, computing) or self.step_s(replace(topology, nodes=1), computing)
        return math.log(here / there) if here and there else -math.log(computing)

    def wire_s(self, topology: Topology) -> float | None:
        """Seconds of all messages of a step in sequence; None where a link was not measured.

        Gradients are reduced inside each node, then across nodes, where every rank sends its share of them. A sharded
        network gathers weights and scatters gradients, of which one each is an all-reduce.
        """
        shape, inside = self.shape, topology.devices_per_node
        part = 0.5 if _is_sharded(shape) else 1.0
        between = 1 - shape.gathered_bytes / max(1, shape.size_bytes) if shape.parallel == "hsdp" else part
        sent: Sequence[tuple[Level, int, float, float]] = (
            ("node", inside, part, shape.size_bytes),
            ("nodes", topology.nodes, between, shape.size_bytes / inside),
        )
        seconds = 0.0
        for level, ranks, part, size_bytes in sent:
            link = self.levels.get(level)
            if ranks > 1 and link is None:
                return None
            seconds += link.seconds(part * size_bytes, part * shape.messages, ranks) if link and ranks > 1 else 0.0
        return seconds


def fit_exchange(record: Record) -> ExchangeModel | None:
    """Fits the model to a run; None where it did not measure links and exchange, or splits layers across devices."""
    environment, timeline = record.environment, record.timeline
    shape = environment.exchange
    counted = timeline.steps - timeline.warmup_steps
    if shape is None or shape.parallel not in PARALLEL or counted <= 0 or not timeline.exchange_known:
        return None
    exposed_s = _exposed_s(timeline, counted)
    computing_s = timeline.sum_counted(timeline.slowest).compute_ns / counted / 1e9 - exposed_s
    if computing_s <= 0:
        return None
    backward = BACKWARD if shape.backward_s is None else min(1.0, shape.backward_s / computing_s)
    model = ExchangeModel(
        base=Topology.parse(record.plan.topology),
        computing_s=computing_s,
        cover=1.0 if _is_sharded(shape) else backward,
        shape=shape,
        levels={link.level: link for link in environment.link_levels if link.collective == "all-reduce"},
    )
    wire_s = model.wire_s(model.base)
    if not wire_s:
        return None
    hidden_s, coverable_s = max(0.0, wire_s - exposed_s), min(wire_s, model.cover * computing_s)
    overlap = min(1.0, hidden_s / coverable_s) if coverable_s else 0.0
    return replace(model, overlap=overlap, slowdown=max(1.0, exposed_s / wire_s))


def _exposed_s(timeline: Timeline, counted: int) -> float:
    """Exposed exchange per step, of the rank that does not wait for others; of a long run there are sums alone."""
    if any(trace.sums for trace in timeline.ranks):
        return min(timeline.sum_counted(trace).exchange_ns for trace in timeline.ranks) / counted / 1e9
    steps = slice(timeline.warmup_steps, timeline.steps)
    return float(np.min([trace.exchange_ns[steps] for trace in timeline.ranks], axis=0).mean()) / 1e9


def _is_sharded(shape: ExchangeShape) -> bool:
    """Whether weights are gathered in the forward pass."""
    return shape.parallel in ("fsdp", "hsdp") or shape.gathered_bytes > 0


@dataclass(frozen=True, kw_only=True)
class Known:
    """Measured sizes of one training, smallest first."""

    subject: tuple[str, ...]
    """Workload, device, precision and the like, for a heading."""
    metric: str
    unit: str
    batch_per_device: int | None
    accumulate: int = 1
    """Micro-batches per step, each of that batch."""
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
    points = scaling.points_by_topology(records, alias)
    first = records[0]
    by_size = sorted(records, key=lambda record: Topology.parse(record.plan.topology).devices, reverse=True)
    return _leave_out_contradictions(
        Known(
            subject=(first.plan.workload, first.plan.recipe_name, first.precision, device_name(first)),
            metric=alias,
            unit=points[0].throughput.unit,
            batch_per_device=int(first.plan.recipe["batch_per_device"]),
            accumulate=int(first.plan.recipe.get("accumulate", 1)),
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


def _leave_out_contradictions(known: Known) -> Known:
    """Drops smaller sizes whose scaling contradicts every published cluster."""
    left_out, notes = [], []
    for small, large in scaling_law.find_contradictions(known.sizes, explained=_explain(known)):
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


@dataclass(frozen=True, kw_only=True)
class RateForecast:
    """The forecast of one size."""

    topology: Topology
    kind: str
    rate: float | None = None
    """None where only a range is known, or nothing."""
    interval: Bounds | None = None
    """90 %."""
    efficiency: float | None = None
    """Per device, relative to the smallest known size."""
    batch_per_device: int | None = None
    """None where it is unknown, or a global batch does not divide evenly."""
    why: str = ""
    """Why it is refused."""


def forecast(known: Known, topology: Topology, global_batch: int | None = None) -> RateForecast:
    """`global_batch` is divided over the devices; without it, each has the batch of the runs."""
    batch = known.batch_per_device
    if global_batch is not None:
        per_device, left = divmod(global_batch, topology.devices * known.accumulate)
        batch = None if left else per_device
    if why := _find_refusal(known, topology, global_batch, batch):
        return RateForecast(topology=topology, kind=REFUSED, batch_per_device=batch, why=why)
    times = batch / known.batch_per_device if batch and known.batch_per_device else 1.0
    base = next((size for size in known.sizes if size.topology == topology), None)
    if base:
        kind, log_rate, reach = MEASURED if times == 1 else FORECAST, base.log_rate, Reach(0.0, 0.0)
    else:
        base = scaling_law.nearest(known.sizes, topology.devices)
        far = topology.devices > FAR * known.largest.topology.devices
        kind = RANGE if known.one_device else ROUGH if far else FORECAST
        explained, doublings = _explain(known), math.log2(topology.devices) - base.doublings
        log_rate = base.log_rate + explained(topology) - explained(base.topology)
        log_rate += find_loss(known, base, topology) * doublings
        # the same devices on more nodes are another size
        nodes = abs(math.log2(topology.nodes / base.topology.nodes))
        reach = _reach(known.several).after(max(abs(doublings), nodes))
    computing = FIXED + (1 - FIXED) * times
    kept = known.exchange.log_kept if known.exchange else None
    longer = kept(topology) - kept(topology, computing) if kept else math.log(computing)
    log_rate += math.log(times) - longer
    rate = base.rate if kind == MEASURED else topology.devices * math.exp(log_rate)
    # errors of runs and of another batch are independent of those between clusters
    error = math.hypot(base.error, abs(1 - times) * FIXED_ERROR / computing)
    own = error * NormalDist().inv_cdf((1 + scaling_law.COVERAGE) / 2)
    return RateForecast(
        topology=topology,
        kind=kind,
        rate=None if kind == RANGE else rate,
        interval=(rate * math.exp(-math.hypot(reach.low, own)), rate * math.exp(math.hypot(reach.high, own))),
        efficiency=None if kind == RANGE else math.exp(log_rate - known.sizes[0].log_rate),
        batch_per_device=batch,
    )


def _find_refusal(known: Known, topology: Topology, global_batch: int | None, batch: int | None) -> str:
    """Why the data allows no forecast; empty where it does."""
    if known.one_device and topology.nodes > 1:
        return "one device shows nothing about links between nodes; run one whole node as well"
    if global_batch is None:
        return ""
    if batch is None:
        parts = f" of {known.accumulate} micro-batches" if known.accumulate > 1 else ""
        return f"a global batch of {global_batch} does not divide evenly over {topology.devices} devices{parts}"
    if known.batch_per_device is None:
        return "the batch of the known sizes is not known, so no other batch can be forecast"
    if batch * MAX_BATCH_CUT < known.batch_per_device:
        return (
            f"a batch of {batch} per device is more than {MAX_BATCH_CUT:g} times below that of the runs, "
            f"{known.batch_per_device}; run one size with a smaller batch"
        )
    return ""


def find_loss(known: Known, base: Size, topology: Topology) -> float:
    """The loss per doubling from a known size to another, beyond what the exchange explains.

    No loss is counted twice, and none is smaller than usual because a part of it is explained.
    """
    explained = _explain(known)
    doublings = math.log2(topology.devices) - base.doublings
    per_doubling = (explained(topology) - explained(base.topology)) / doublings if doublings else 0.0
    usual = min(0.0, scaling_law.USUAL_LOSS - min(0.0, per_doubling))
    return scaling_law.fit_loss(known.sizes, explained=explained, usual=usual)


def _explain(known: Known) -> scaling_law.Explained:
    return known.exchange.log_kept if known.exchange else scaling_law.explain_nothing


@cache
def _reach(several: bool) -> Reach:
    return scaling_law.measure_reach(clusters.find_chains(), several=several)
