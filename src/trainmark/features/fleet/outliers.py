"""Finds outliers among hosts and links; at most one in a hundred fleets without a bad host names any.

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

from trainmark.record.links import PairLink, all_rounds, best_pairs, estimate_node_bandwidths

FLOOR = 0.10
"""Share below the median from which a cable may be named."""
PATH_FLOOR = 1 / 3
"""The same for a path between two hosts: it is measured by one pair, a cable by many, so it is noisier."""
ASSUMED_LINK_SPREAD = 0.05
"""Assumed spread of good cables where few were measured: networks vary more than nodes."""
MIN_HOSTS = 3
"""Two nodes have one pair, and nothing to compare it with."""


@dataclass(frozen=True, kw_only=True)
class Cable:
    """The bandwidth of a host's own link, by its better pairs."""

    host: str
    gigabytes_per_s: float
    away: float
    """Deviation from the fleet's median, as a share."""
    slow: bool


@dataclass(frozen=True, kw_only=True)
class HostPair:
    """One pair of hosts that was measured."""

    hosts: tuple[str, str]
    gigabytes_per_s: float
    latency_s: float
    short: float
    """Share of the bandwidth of both cables that it falls short of; negative where it exceeds it."""
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
        """Whether a cable is slow; a slow path is measured by one pair only, and is a doubt."""
        return any(cable.slow for cable in self.cables)

    @property
    def whole(self) -> bool:
        """All pairs were measured."""
        return len(self.ways) * 2 == len(self.cables) * (len(self.cables) - 1)

    @property
    def all_rounds(self) -> int:
        return all_rounds(len(self.cables))


def judge_links(hosts: Sequence[str], measured: Sequence[PairLink]) -> FleetLinks:
    """`hosts` are indexed by the node numbers of the pairs."""
    known = best_pairs(measured)
    carries = {node: math.log(value) for node, value in estimate_node_bandwidths(known).items()}
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
        ways = find_outliers(short, [0.0] * len(short), floor=-math.log1p(-PATH_FLOOR), assumed=ASSUMED_LINK_SPREAD)
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
"""Share of fleets without a bad host that may name one."""
_AIMED_AT = 0.007
"""Target rate, lower because the spread is only estimated; bench/fleet.py counts the actual rate."""
MIN_VALUES = 10
"""With fewer values the spread is at least the assumed one."""
ASSUMED_SPREAD = 0.02
"""Assumed standard deviation between good nodes of one kind, where there are too few to measure it."""
POWER = 0.8
"""Probability that a value off by the smallest difference is named."""

_QN = 2.2219
_QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
"""Unbiases Qn for few normal values; Croux and Rousseeuw, 1992."""
_FEW_ARE_UNSURE = 5.5
"""The spread of n values is widened by (1 + this / n), as an estimate may be too narrow."""
_MARGIN = 1.06
"""Widens the assumed spread, so that good hosts are not named more often than promised."""
_MAX_FOR_QN = 2000
"""From here on the median absolute deviation is as good, and needs no pairwise distances."""
_MAD = 1.4826

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """All in logarithms, as ratios are what is judged."""

    centre: float
    error: float
    """Standard error of the centre."""
    spread: float
    """Standard deviation of good values."""
    assumed: bool
    """The spread is assumed, not measured."""
    named: tuple[bool, ...]
    limit: float
    """A single value further from the centre is named."""
    smallest: float
    """A value this far off is named with probability POWER."""


def find_outliers(
    values: Sequence[float], errors: Sequence[float], *, floor: float, assumed: float = ASSUMED_SPREAD
) -> Outliers:
    """Finds outliers among three values or more; none within the `floor` is ever named.

    `errors` are the standard errors of the values. The spread includes their median; a value with a larger error
    is allowed that much more.
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
        # outliers widen the spread they are judged by: judge again without them
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
    """A robust estimate of the standard deviation."""
    count = len(values)
    if count > _MAX_FOR_QN:
        return float(_MAD * np.median(np.abs(values - np.median(values))))
    half = count // 2 + 1
    place = half * (half - 1) // 2 - 1
    first, second = np.triu_indices(count, 1)
    distances = np.abs(values[first] - values[second])
    right = _QN_SMALL.get(count) or count / (count + (1.4 if count % 2 else 3.8))
    return float(right * _QN * np.partition(distances, place)[place])
