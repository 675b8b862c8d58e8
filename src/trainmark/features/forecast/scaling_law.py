"""Fits the loss of a device's rate per doubling of devices, with ranges from published clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

import numpy as np

from trainmark.analysis.clusters import Chain
from trainmark.record.plan import Topology

DISTANCES = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, math.inf))
"""Ratios of devices: above the first of a pair, up to the second."""


@dataclass(frozen=True, kw_only=True)
class BacktestLine:
    """Backtested forecasts of one kind over one distance."""

    several: bool
    """From several sizes, not from one."""
    beyond: float
    up_to: float
    count: int
    median_error: float
    worst_decile: float
    """The error that one of ten exceeds."""
    inside: int
    """Outcomes inside their 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class Backtest:
    lines: tuple[BacktestLine, ...]
    count: int
    inside: int

    @property
    def coverage(self) -> float:
        return self.inside / self.count if self.count else math.nan


class _Outcome(NamedTuple):
    several: bool
    doublings: float
    error: float
    inside: bool


def backtest(chains: Sequence[Chain]) -> Backtest:
    outcomes = list(_outcomes(chains))
    lines = []
    for several, (beyond, up_to) in product((False, True), DISTANCES):
        # with a margin: 16 devices are 2.0 times 8
        near = [o for o in outcomes if o.several == several and beyond * 1.01 < 2**o.doublings <= up_to * 1.01]
        off = sorted(abs(math.expm1(outcome.error)) for outcome in near)
        if near:
            lines.append(
                BacktestLine(
                    several=several,
                    beyond=beyond,
                    up_to=up_to,
                    count=len(near),
                    median_error=median(off),
                    worst_decile=off[math.ceil(0.9 * len(off)) - 1],
                    inside=sum(outcome.inside for outcome in near),
                )
            )
    return Backtest(lines=tuple(lines), count=len(outcomes), inside=sum(outcome.inside for outcome in outcomes))


def _outcomes(chains: Sequence[Chain]) -> Iterator[_Outcome]:
    for held_out, several in product(dict.fromkeys(map(_source, chains)), (False, True)):
        reach = measure_reach([chain for chain in chains if _source(chain) != held_out], several=several)
        own = [chain for chain in chains if _source(chain) == held_out]
        for error, doublings in measure_errors(own, several=several):
            low, high = reach.after(doublings)
            yield _Outcome(several, doublings, error, low <= error <= high)


def _source(chain: Chain) -> tuple[str, str]:
    """What is held out together: a submitter, or a case of FlagPerf, whose rows are all one project's."""
    return (chain.round, chain.benchmark) if chain.round == "flagperf" else ("mlperf", chain.submitter)


USUAL_LOSS, USUAL_SPREAD = -0.020, 0.030
"""Change of the logarithm of a device's rate per doubling, over 84 pairs of published sizes of 17 submitters: the
median, and the standard deviation between clusters."""
RUN_ERROR = 0.01
"""Smallest error of the logarithm of a rate, from one run to the next."""
MAX_SPREADS = 4.0
"""Spreads from the usual loss beyond which two sizes contradict each other."""
MAX_GAIN = 0.03
"""A gain per doubling that no noise explains: the two did not train the same way."""
MIN_DOUBLINGS = math.log2(1.5)
"""Smallest distance between two published sizes that shows the loss."""
COVERAGE = 0.90
"""Share of outcomes inside an interval."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A measured size: items per second over all devices."""

    topology: Topology
    rate: float
    error: float = RUN_ERROR
    """Standard deviation of the rate's logarithm."""

    @property
    def doublings(self) -> float:
        return math.log2(self.topology.devices)

    @property
    def log_rate(self) -> float:
        """Of one device."""
        return math.log(self.rate / self.topology.devices)


class Reach(NamedTuple):
    """Interval of outcomes around the law, as logarithms, after one doubling; it grows with the square root."""

    low: float
    high: float

    def after(self, doublings: float) -> Reach:
        widened = math.sqrt(max(doublings, 0.0))
        return Reach(self.low * widened, self.high * widened)


Explained = Callable[[Topology], float]
"""The logarithm of a device's rate that the exchange explains, per size."""


def explain_nothing(topology: Topology) -> float:
    return 0.0


def fit_loss(sizes: Sequence[Size], *, explained: Explained = explain_nothing, usual: float = USUAL_LOSS) -> float:
    """The loss per doubling beyond what is explained: a fit in which the usual loss is one more observation."""
    weights = np.array([1 / max(size.error, RUN_ERROR) ** 2 for size in sizes])
    doublings = np.array([size.doublings for size in sizes])
    rates = np.array([size.log_rate - explained(size.topology) for size in sizes])
    doublings -= np.average(doublings, weights=weights)
    rates -= np.average(rates, weights=weights)
    prior = 1 / USUAL_SPREAD**2
    slope, variance = (weights * doublings * rates).sum(), (weights * doublings**2).sum()
    return float((slope + usual * prior) / (variance + prior))


def nearest(sizes: Sequence[Size], devices: int) -> Size:
    """The size a forecast starts from: nearest in doublings, the larger of a tie."""
    return min(sizes, key=lambda size: (abs(math.log2(devices) - size.doublings), -size.topology.devices))


def predict(sizes: Sequence[Size], devices: int) -> float:
    """Items per second of `devices`."""
    base = nearest(sizes, devices)
    return devices * math.exp(base.log_rate + fit_loss(sizes) * (math.log2(devices) - base.doublings))


def find_contradictions(sizes: Sequence[Size], *, explained: Explained = explain_nothing) -> list[tuple[Size, Size]]:
    """Sizes whose scaling to the next larger one contradicts every published cluster, each with that one."""
    found = []
    for small, large in pairwise(sorted(sizes, key=lambda size: size.topology.devices)):
        doublings = large.doublings - small.doublings
        change = large.log_rate - small.log_rate - (explained(large.topology) - explained(small.topology))
        noise = 2 * math.hypot(max(small.error, RUN_ERROR), max(large.error, RUN_ERROR))
        too_low = change + noise < (USUAL_LOSS - MAX_SPREADS * USUAL_SPREAD) * doublings
        too_high = change - noise > MAX_GAIN * doublings
        if doublings > 0 and (too_low or too_high):
            found.append((small, large))
    return found


def measure_reach(chains: Sequence[Chain], *, several: bool) -> Reach:
    """The interval after one doubling: from one known size, or from several."""
    off = sorted(error / math.sqrt(doublings) for error, doublings in measure_errors(chains, several=several))
    tail = (1 - COVERAGE) / 2
    # a new outcome is below the k-th of n with probability k / (n + 1)
    rank = max(1, math.floor(tail * (len(off) + 1)))
    return Reach(min(off[rank - 1], -RUN_ERROR), max(off[-rank], RUN_ERROR))


def measure_errors(chains: Sequence[Chain], *, several: bool) -> list[tuple[float, float]]:
    """The log error of every published outcome, with its distance in doublings."""
    found = []
    for chain in chains:
        sizes = [Size(topology=Topology(nodes=1, devices_per_node=n), rate=rate) for n, rate in chain.rates]
        for place, larger in enumerate(sizes):
            for known in [sizes[:place]] if several else [[size] for size in sizes[:place]]:
                if len(known) < 1 + several or find_contradictions(known):
                    continue
                doublings = larger.doublings - known[-1].doublings
                if doublings >= (0.1 if several else MIN_DOUBLINGS):
                    predicted = predict(known, larger.topology.devices)
                    found.append((math.log(larger.rate / predicted), doublings))
    return found
