"""Names the values that do not belong to the others, and of fleets in which all do at most one in a hundred names any.

The centre is the median. The spread is Rousseeuw and Croux's Qn, made of the shorter distances between two values: up
to nearly half of the hosts may be bad before it breaks, and it wastes less than the median absolute deviation.
Each distance from the centre becomes a probability, and Benjamini and Hochberg's rule names the least of them: where
all hosts are good it names one as rarely as Bonferroni's, and where several are bad it misses fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import numpy as np
import numpy.typing as npt

from trainmark.record.links import PairLink, best_pairs, cables
from trainmark.record.tournament import all_rounds

FLOOR = 0.10
"""A cable that carries less by no more than this is as good as the others."""
FLOOR_OF_WAY = 1 / 3
"""And a way: it is known by one pair alone, where a cable is by many, and what else two nodes do disturbs it more."""
ASSUMED_LINK_SPREAD = 0.05
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
class HostPair:
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
    ways: tuple[HostPair, ...]
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


def judge_links(hosts: Sequence[str], measured: Sequence[PairLink]) -> FleetLinks:
    """`hosts` are the nodes in the order in which they were numbered when they were measured."""
    known = best_pairs(measured)
    carries = {node: math.log(value) for node, value in cables(known).items()}
    short = [math.log(pair.bus_gigabytes_per_s) - min(carries[pair.first], carries[pair.second]) for pair in known]
    centre, smallest = median(carries.values()), None
    slow_cables = dict.fromkeys(carries, False)
    slow_ways = [False] * len(known)
    if len(carries) >= MIN_HOSTS:
        found = find_outliers(
            list(carries.values()), [0.0] * len(carries), floor=-math.log1p(-FLOOR), assumed=ASSUMED_LINK_SPREAD
        )
        centre, smallest = found.centre, -math.expm1(-found.smallest)
        slow_cables = {node: named and carries[node] < centre for node, named in zip(carries, found.named, strict=True)}
        ways = find_outliers(short, [0.0] * len(short), floor=-math.log1p(-FLOOR_OF_WAY), assumed=ASSUMED_LINK_SPREAD)
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
            HostPair(
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


FALSE_ALARMS = 0.01
"""Of fleets without a bad host, how many may name one."""
_AIMED_AT = 0.007
"""What is aimed at, as the spread is only estimated; bench/fleet.py counts what comes of it."""
MIN_VALUES = 10
"""Fewer values do not tell their own spread: it is then taken to be at least the assumed one."""
ASSUMED_SPREAD = 0.02
"""Good nodes of one kind are taken to differ by so much, as a standard deviation, where too few are there to tell."""
POWER = 0.8
"""How often a value that lies off by the smallest difference would be named."""

_QN = 2.2219
_QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
"""Makes Qn of so few normal values right on average; Croux and Rousseeuw, 1992."""
_FEW_ARE_UNSURE = 5.5
"""The spread of n values is taken (1 + this / n) times as wide, for it may have come out too narrow."""
_MARGIN = 1.06
"""So much wider than assumed, lest hosts that differ just so are accused more often than promised."""
_MAX_FOR_QN = 2000
"""Of more values the median absolute deviation is as good, and needs no distance of each to each."""
_MAD = 1.4826

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """All in logarithms, as ratios are what is judged."""

    centre: float
    error: float
    """Standard error of the centre."""
    spread: float
    """What one good value is taken to lie off by, as a standard deviation."""
    assumed: bool
    """The spread was not found in the values, but assumed."""
    named: tuple[bool, ...]
    limit: float
    """A single value that lies further off than this is named."""
    smallest: float
    """One that truly lies so far off would be named four times in five."""


def find_outliers(
    values: Sequence[float], errors: Sequence[float], *, floor: float, assumed: float = ASSUMED_SPREAD
) -> Outliers:
    """Of three values or more, those too far from the rest; none that lies within the `floor` is ever named.

    `errors` are the standard errors of the values. The spread holds what is usual of them; a value that is known worse
    than most is allowed as much more.
    """
    all_values, own = np.asarray(values, dtype=np.float64), np.square(np.asarray(errors, dtype=np.float64))
    more = np.maximum(0.0, own - np.median(own))
    count = len(all_values)
    few = count < MIN_VALUES
    named = np.zeros(count, dtype=bool)
    while True:
        good = all_values[~named]
        centre, found = float(np.median(good)), _estimate_spread(good)
        spread = _MARGIN * max(found, assumed) if few else found * (1 + _FEW_ARE_UNSURE / len(good))
        away = np.abs(all_values - centre)
        now = named | (_is_unlikely(away / np.sqrt(np.square(spread) + more + 1e-18)) & (away > floor))
        # bad ones widen the spread they are judged by: without them the rest is looked at again
        if (now == named).all() or now.sum() * 2 >= count:
            break
        named = now
    limit = NormalDist().inv_cdf(1 - _AIMED_AT / 2 / count) * spread
    return Outliers(
        centre=centre,
        error=math.sqrt(math.pi / 2 / len(good)) * spread,
        spread=spread,
        assumed=few and found < assumed,
        named=tuple(bool(one) for one in named),
        limit=max(floor, limit),
        smallest=max(floor, limit) + NormalDist().inv_cdf(POWER) * spread,
    )


def _is_unlikely(sizes: Floats) -> npt.NDArray[np.bool_]:
    """Benjamini and Hochberg's rule over the two-sided probabilities of normal deviates."""
    chances = np.array([math.erfc(size / math.sqrt(2)) for size in sizes])
    ordered = np.sort(chances)
    passed = ordered <= _AIMED_AT * np.arange(1, len(ordered) + 1) / len(ordered)
    most = ordered[np.flatnonzero(passed)[-1]] if passed.any() else -1.0
    return np.asarray(chances <= most)


def _estimate_spread(values: Floats) -> float:
    """The standard deviation of the greater part of normal values."""
    count = len(values)
    if count > _MAX_FOR_QN:
        return float(_MAD * np.median(np.abs(values - np.median(values))))
    half = count // 2 + 1
    place = half * (half - 1) // 2 - 1
    first, second = np.triu_indices(count, 1)
    distances = np.abs(values[first] - values[second])
    right = _QN_SMALL.get(count) or count / (count + (1.4 if count % 2 else 3.8))
    return float(right * _QN * np.partition(distances, place)[place])
