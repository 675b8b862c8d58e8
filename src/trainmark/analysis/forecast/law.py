"""How the rate of one device falls as devices are added: by a share a doubling, as published clusters and the runs say.

The usual loss is that of 84 pairs of published sizes, 17 submitters; sizes at hand move it as far as they can carry.
What an interval must hold is not guessed: it is how far the published clusters lie from the same law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from trainmark.analysis.forecast.clusters import Chain
from trainmark.spec.topology import Topology

USUAL_LOSS, USUAL_SPREAD = -0.020, 0.030
"""Of the logarithm of a device's rate, with each doubling of the devices: the middle, and how unlike clusters are."""
RUN_ERROR = 0.01
"""Of the logarithm of a rate, at least, from one run to the next."""
UNBELIEVABLE = 4.0
"""Spreads from the usual loss at which two sizes contradict each other."""
ABOVE_IDEAL = 0.03
"""A gain a doubling that no noise explains: the two did not train the same way."""
LEAST_STEP = math.log2(1.5)
"""Doublings between two published sizes from which on they say something about the law."""
INSIDE = 0.90
"""The share of outcomes an interval shall hold."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one size did: items a second over all its devices."""

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
    """How far outcomes lie below and above the law, as logarithms, after one doubling; more go with the square root."""

    low: float
    high: float

    def after(self, doublings: float) -> Reach:
        widened = math.sqrt(max(doublings, 0.0))
        return Reach(self.low * widened, self.high * widened)


def loss_a_doubling(
    sizes: Sequence[Size], *, explained: Callable[[Topology], float] = lambda size: 0.0, usual: float = USUAL_LOSS
) -> float:
    """The usual loss, moved by what the sizes show: a fit in which the published clusters are one more observation.

    What is explained otherwise, as a logarithm for each size, is taken out of the sizes first.
    """
    weights = [1 / max(size.error, RUN_ERROR) ** 2 for size in sizes]
    places = [size.doublings for size in sizes]
    kept = [size.log_rate - explained(size.topology) for size in sizes]
    total = sum(weights)
    place = sum(weight * at for weight, at in zip(weights, places, strict=True)) / total
    level = sum(weight * rate for weight, rate in zip(weights, kept, strict=True)) / total
    seen = sum(weight * (at - place) ** 2 for weight, at in zip(weights, places, strict=True))
    slope = sum(weight * (at - place) * (rate - level) for weight, at, rate in zip(weights, places, kept, strict=True))
    known = 1 / USUAL_SPREAD**2
    return (slope + usual * known) / (seen + known)


def unexplained(explained: float, doublings: float) -> float:
    """What is usually lost a doubling beyond what is explained: no loss is counted twice, and none is believed to be
    smaller than usual because a part of it is known. A gain that is explained is one."""
    return min(0.0, USUAL_LOSS - min(0.0, explained / doublings)) if doublings else USUAL_LOSS


def nearest(sizes: Sequence[Size], devices: int) -> Size:
    """The size a forecast starts from: that nearest in doublings, the larger of two as near."""
    return min(sizes, key=lambda size: (abs(math.log2(devices) - size.doublings), -size.topology.devices))


def law(sizes: Sequence[Size], devices: int) -> float:
    """Items a second of so many devices."""
    base = nearest(sizes, devices)
    return devices * math.exp(base.log_rate + loss_a_doubling(sizes) * (math.log2(devices) - base.doublings))


def contradictory(
    sizes: Sequence[Size], *, explained: Callable[[Topology], float] = lambda size: 0.0
) -> list[tuple[Size, Size]]:
    """Sizes whose step to the next larger no cluster shows, and nothing explains, each with that one."""
    found = []
    ordered = sorted(sizes, key=lambda size: size.topology.devices)
    for small, large in pairwise(ordered):
        doublings = large.doublings - small.doublings
        if doublings <= 0:
            continue
        change = large.log_rate - small.log_rate - (explained(large.topology) - explained(small.topology))
        noise = 2 * math.hypot(max(small.error, RUN_ERROR), max(large.error, RUN_ERROR))
        too_low = change + noise < (USUAL_LOSS - UNBELIEVABLE * USUAL_SPREAD) * doublings
        too_high = change - noise > ABOVE_IDEAL * doublings
        if too_low or too_high:
            found.append((small, large))
    return found


def reach(chains: Sequence[Chain], *, several: bool) -> Reach:
    """The interval after one doubling: from one known size, or where several gave a loss of their own."""
    off = sorted(error / math.sqrt(doublings) for error, doublings in errors(chains, several=several))
    tail = (1 - INSIDE) / 2
    # of n outcomes and one to come, the k-th is passed below with chance k / (n + 1)
    rank = max(1, math.floor(tail * (len(off) + 1)))
    return Reach(min(off[rank - 1], -RUN_ERROR), max(off[-rank], RUN_ERROR))


def errors(chains: Sequence[Chain], *, several: bool) -> list[tuple[float, float]]:
    """How far every published outcome lies from the law, as a logarithm, and after how many doublings."""
    found = []
    for chain in chains:
        sizes = [Size(topology=Topology(nodes=1, devices_per_node=n), rate=rate) for n, rate in chain.rates]
        for place, larger in enumerate(sizes):
            for known in [sizes[:place]] if several else [[size] for size in sizes[:place]]:
                if len(known) < 1 + several or contradictory(known):
                    continue
                doublings = larger.doublings - known[-1].doublings
                if doublings >= (0.1 if several else LEAST_STEP):
                    predicted = law(known, larger.topology.devices)
                    found.append((math.log(larger.rate / predicted), doublings))
    return found
