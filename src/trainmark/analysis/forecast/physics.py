"""A step as the sum of what is known of it: own computing, exchange that nothing hides, waiting for the slowest rank.

The exchange is what the links were measured to take for the bytes of a step. How much of it computing hides is taken
from a run: of what could have been hidden there, the share that was. So the model meets that run, and says what changes
with the size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainmark.analysis.forecast.computing import own_s
from trainmark.analysis.forecast.exchange import ExchangeOverLinks, exchange
from trainmark.analysis.forecast.stragglers import Stragglers, stragglers
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology

ASSUMED_BACKWARD = 2 / 3
"""Of computing, where it was not measured: backward computes about twice what forward does."""
LEAST_SCALE = 0.25
"""Of what the links were measured to take, so that a run that seems to have exchanged nothing is not believed."""


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What one step takes."""

    computing_s: float
    exchange_s: float
    """What computing does not hide."""
    hidden_s: float
    """What it does; no part of the step."""
    stragglers_s: float

    @property
    def step_s(self) -> float:
        return self.computing_s + self.exchange_s + self.stragglers_s


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """A step at any size, as one run of several ranks tells it."""

    base: Topology
    """Of that run."""
    own_s: float
    measured_s: float
    """A step of it as a whole."""
    exchange: ExchangeOverLinks
    cover_s: float
    """Computing that an exchange may hide behind."""
    assumed_cover: bool
    stragglers: Stragglers | None
    overlap: float = 0.0
    """Of the exchange that could be hidden, what is."""
    scale: float = 1.0
    """Times that an exchange takes what the links were measured to."""

    def parts(self, topology: Topology, times: float = 1.0) -> StepParts | None:
        """Of a step at a size whose computing takes so many times as long; None where its links are not known."""
        wire_s = self.exchange.seconds(topology)
        if wire_s is None:
            return None
        hidden_s = self.overlap * self._hideable_s(self.scale * wire_s, times)
        slowest = self.stragglers.slowest(topology.devices) if self.stragglers else 1.0
        return StepParts(
            computing_s=self.own_s * times,
            exchange_s=self.scale * wire_s - hidden_s,
            hidden_s=hidden_s,
            stragglers_s=self.own_s * times * (slowest - 1),
        )

    def nearest_parts(self, topology: Topology, times: float = 1.0) -> StepParts | None:
        """The same; where nothing is known of what joins nodes, that of one of its nodes."""
        return self.parts(topology, times) or self.parts(replace(topology, nodes=1), times)

    def log_kept(self, topology: Topology, times: float = 1.0) -> float:
        """The logarithm of what a device keeps of its speed in the run, as far as that is explained."""
        here, there = self.parts(self.base), self.nearest_parts(topology, times)
        return math.log(here.step_s / there.step_s) if here and there else 0.0

    def _hideable_s(self, wire_s: float, times: float) -> float:
        return min(wire_s, self.cover_s * times) * (1 - self.exchange.last)


def step_model(record: Record) -> StepModel | None:
    """By a run of several ranks that measured its links and its exchange; None where it did not."""
    sent, timeline = exchange(record), record.timeline
    counted = timeline.steps - timeline.warmup_steps
    base = Topology.parse(record.plan.topology)
    if sent is None or counted <= 0 or not timeline.exchange_known or not sent.knows(base):
        return None
    own = own_s(record)
    backward_s = sent.shape.backward_s
    cover_s = own if sent.sharded else min(own, own * ASSUMED_BACKWARD if backward_s is None else backward_s)
    model = StepModel(
        base=base,
        own_s=own,
        measured_s=timeline.counted(timeline.slowest).compute_ns / counted / 1e9,
        exchange=sent,
        cover_s=cover_s,
        assumed_cover=backward_s is None and not sent.sharded,
        stragglers=stragglers(timeline),
    )
    return _met(model)


def _met(model: StepModel) -> StepModel:
    """With the overlap that makes it meet its run; where none does, with links slower or faster than measured."""
    slowest = model.stragglers.slowest(model.base.devices) if model.stragglers else 1.0
    exposed_s = max(0.0, model.measured_s - model.own_s * slowest)
    wire_s = model.exchange.seconds(model.base) or 0.0
    if not wire_s:
        return model
    hidden_s, most_s = wire_s - exposed_s, model._hideable_s(wire_s, 1.0)
    if hidden_s <= 0:
        return replace(model, overlap=0.0, scale=exposed_s / wire_s)
    if hidden_s <= most_s:
        return replace(model, overlap=hidden_s / most_s)
    whole_s = exposed_s / model.exchange.last
    if whole_s > model.cover_s:
        whole_s = exposed_s + model.cover_s * (1 - model.exchange.last)
    return replace(model, overlap=1.0, scale=max(LEAST_SCALE, whole_s / wire_s))
