"""Predicts how the gradient exchange changes a step's length with the topology, from the links a run measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from msgspec import structs

from trainmark.record.links import Collective, LinkLevel, fit_level
from trainmark.record.machine import ExchangeShape
from trainmark.record.plan import Topology
from trainmark.record.record import Record
from trainmark.record.timeline import Timeline

Level = Literal["node", "nodes"]
PARALLEL = ("", "ddp", "fsdp", "hsdp")
"""Kinds of parallelism whose exchange is modelled; older records do not name theirs."""
BACKWARD = 2 / 3
"""Share of computing where it was not measured: backward computes about twice what forward does."""


@dataclass(frozen=True, kw_only=True)
class ExchangeModel:
    """A step as computing plus the exchange that computing does not hide, calibrated to one run."""

    base: Topology
    """Of that run."""
    computing_s: float
    cover: float
    """Share of computing that an exchange can be hidden behind."""
    shape: ExchangeShape
    levels: Mapping[tuple[Level, Collective], LinkLevel]
    overlap: float = 0.0
    """Share of the exchange that could be hidden behind computing and was."""
    slowdown: float = 1.0
    """Length of the exchange in training over what the links were measured to take."""

    def step_s(self, topology: Topology, computing: float = 1.0) -> float | None:
        """Of one step whose computing takes `computing` times as long; None where a link was not measured."""
        wire_s = self.wire_s(topology)
        if wire_s is None:
            return None
        wire_s, computing_s = self.slowdown * wire_s, self.computing_s * computing
        return computing_s + wire_s - self.overlap * min(wire_s, self.cover * computing_s)

    def log_kept(self, topology: Topology, computing: float = 1.0) -> float:
        """Logarithm of the speed a device keeps against the run; without links between nodes, as inside one of them."""
        here = self.step_s(self.base)
        there = self.step_s(topology, computing) or self.step_s(replace(topology, nodes=1), computing)
        return math.log(here / there) if here and there else 0.0

    def wire_s(self, topology: Topology) -> float | None:
        """All messages of a step one after the other; None where they use links that were not measured.

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
    """From a run that measured its links and its exchange; None where it did not, or splits layers across devices."""
    shape, levels, timeline = record.environment.exchange, links_of(record), record.timeline
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
    """Weights are gathered during forward, too."""
    return shape.parallel in ("fsdp", "hsdp") or shape.gathered_bytes > 0


def _exposed_s(timeline: Timeline, counted: int) -> float:
    """The exchange in a step of the rank that waits for nobody."""
    steps = slice(timeline.warmup_steps, timeline.steps)
    if any(trace.sums for trace in timeline.ranks):
        return min(timeline.sum_counted(trace).exchange_ns for trace in timeline.ranks) / counted / 1e9
    return float(np.min([trace.exchange_ns[steps] for trace in timeline.ranks], axis=0).mean()) / 1e9


def links_of(record: Record) -> dict[tuple[Level, Collective], LinkLevel]:
    """By level and collective; records of one level that did not measure levels apart give what all ranks saw."""
    environment, topology = record.environment, Topology.parse(record.plan.topology)
    levels = list(environment.link_levels)
    if not levels and environment.link and 1 in (topology.nodes, topology.devices_per_node) and topology.devices > 1:
        times = [(row.size_bytes, row.median_s) for row in environment.link]
        levels = [fit_level("node" if topology.nodes == 1 else "nodes", "all-reduce", topology.devices, 1, times)]
    return {(level.level, level.collective): level for level in levels}
