"""Names the slow cable and the slow way between two nodes, from pairs of which not all need to be measured.

A pair carries what the lesser of its two cables does. So what a node carried with its better partners tells of its own
cable, and a pair that carries less than both its nodes can, tells of the way between them. Adding up a share of each
node would blame the good partners of a bad one, and among three nodes could not tell who is bad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trainmark.features.fleet import outliers
from trainmark.record.links import PairLink, best_pairs, estimate_node_bandwidths
from trainmark.record.tournament import all_rounds

FLOOR = 0.10
"""A cable that carries less by no more than this is as good as the others."""
FLOOR_OF_WAY = 1 / 3
"""And a way: it is known by one pair alone, where a cable is by many, and what else two nodes do disturbs it more."""
ASSUMED_SPREAD = 0.05
"""What good cables are taken to differ by where few were measured: a network is less even than the nodes."""
MIN_HOSTS = 3
"""Of two nodes there is one pair, and nothing to hold it against."""


@dataclass(frozen=True, kw_only=True)
class Cable:
    """What a host's own link carries, as its better pairs show."""

    host: str
    gigabytes_per_s: float
    away: float
    """From the fleet's median, as a part of it."""
    slow: bool


@dataclass(frozen=True, kw_only=True)
class Way:
    """One pair of hosts that was measured."""

    hosts: tuple[str, str]
    gigabytes_per_s: float
    latency_s: float
    short: float
    """How much less it carries than both its cables can, as a part of that; negative where it carries more."""
    slow: bool


@dataclass(frozen=True, kw_only=True)
class FleetLinks:
    cables: tuple[Cable, ...]
    ways: tuple[Way, ...]
    median: float
    """GB/s of the median cable."""
    rounds: int
    smallest: float | None
    """A cable that carries less by this share would be named four times in five; None where none could be."""

    @property
    def slow(self) -> bool:
        """By its cables, each known by many pairs; a way is known by one, and only casts doubt."""
        return any(cable.slow for cable in self.cables)

    @property
    def whole(self) -> bool:
        """All pairs were measured."""
        return len(self.ways) * 2 == len(self.cables) * (len(self.cables) - 1)

    @property
    def all_rounds(self) -> int:
        return all_rounds(len(self.cables))


def judge(hosts: Sequence[str], measured: Sequence[PairLink]) -> FleetLinks:
    """`hosts` are the nodes in the order in which they were numbered when they were measured."""
    known = best_pairs(measured)
    carries = {node: math.log(value) for node, value in estimate_node_bandwidths(known).items()}
    short = [math.log(pair.bus_gigabytes_per_s) - min(carries[pair.first], carries[pair.second]) for pair in known]
    centre, smallest = median(carries.values()), None
    slow_cables = dict.fromkeys(carries, False)
    slow_ways = [False] * len(known)
    if len(carries) >= MIN_HOSTS:
        found = outliers.find(
            list(carries.values()), [0.0] * len(carries), floor=-math.log1p(-FLOOR), assumed=ASSUMED_SPREAD
        )
        centre, smallest = found.centre, -math.expm1(-found.smallest)
        slow_cables = {node: named and carries[node] < centre for node, named in zip(carries, found.named, strict=True)}
        ways = outliers.find(short, [0.0] * len(short), floor=-math.log1p(-FLOOR_OF_WAY), assumed=ASSUMED_SPREAD)
        slow_ways = [named and one < ways.centre for named, one in zip(ways.named, short, strict=True)]
    return FleetLinks(
        cables=tuple(
            Cable(
                host=hosts[node],
                gigabytes_per_s=math.exp(value),
                away=math.expm1(value - centre),
                slow=slow_cables[node],
            )
            for node, value in carries.items()
        ),
        ways=tuple(
            Way(
                hosts=(hosts[pair.first], hosts[pair.second]),
                gigabytes_per_s=pair.bus_gigabytes_per_s,
                latency_s=pair.latency_s,
                short=-math.expm1(less),
                slow=slow,
            )
            for pair, less, slow in zip(known, short, slow_ways, strict=True)
        ),
        median=math.exp(centre),
        rounds=math.ceil(len(known) / (len(carries) // 2)),
        smallest=smallest,
    )
