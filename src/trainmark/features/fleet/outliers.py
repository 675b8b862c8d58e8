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
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from trainmark.features.links.rounds import estimate_node_bandwidths
from trainmark.record.links import PairLink, best_pairs

_AIMED_AT = 0.007
"""Share of fleets without a bad host that may name one: below one in a hundred, because the spread is only estimated;
bench/fleet.py counts the actual rate."""
MIN_HOSTS = 3
"""Of fewer none can be named."""
MIN_VALUES = 10
"""With fewer values the spread is at least the assumed one."""
ASSUMED_SPREAD = 0.02
"""Assumed standard deviation between good nodes of one kind, where there are too few to measure it."""
POWER = 0.8
"""Probability that a value off by the smallest difference is named."""
CABLE_FLOOR = 0.10
"""Share below the median from which a cable may be named."""
PATH_FLOOR = 1 / 3
"""The same for a path between two hosts: it is measured by one pair, a cable by many, so it is noisier."""
ASSUMED_LINK_SPREAD = 0.05
"""Of good cables and paths: networks vary more than nodes."""

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
    smallest: float
    """A value this far off is named with probability POWER."""


def find_outliers(
    values: Sequence[float], errors: Sequence[float], *, floor: float, assumed: float = ASSUMED_SPREAD
) -> Outliers:
    """Finds outliers; none of fewer than three values, and none within the `floor`, is ever named.

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
    """A robust estimate of the standard deviation: Qn."""
    count = len(values)
    if count < 2:
        return 0.0
    if count > _MAX_FOR_QN:
        return float(_MAD * np.median(np.abs(values - np.median(values))))
    half = count // 2 + 1
    place = half * (half - 1) // 2 - 1
    first, second = np.triu_indices(count, 1)
    distances = np.abs(values[first] - values[second])
    right = _QN_SMALL.get(count) or count / (count + (1.4 if count % 2 else 3.8))
    return float(right * _QN * np.partition(distances, place)[place])


@dataclass(frozen=True, kw_only=True)
class Cable:
    """A host's own link, by its better pairs: the slower cable limits a pair."""

    host: str
    gigabytes_per_s: float
    away: float
    """Deviation from the fleet's median, as a share."""
    slow: bool


@dataclass(frozen=True, kw_only=True)
class SlowPath:
    """Two hosts whose pair carries less than both their cables do."""

    hosts: tuple[str, str]
    gigabytes_per_s: float
    short: float
    """Share of the slower cable's bandwidth that is missing."""


@dataclass(frozen=True, kw_only=True)
class FleetLinks:
    cables: tuple[Cable, ...]
    slow_paths: tuple[SlowPath, ...]
    median: float
    """GB/s of the median cable."""
    pairs: int
    """Pairs of hosts that were measured."""
    slowest: tuple[str, str, float]
    """The two hosts with good cables whose pair carries least, and how much."""


def judge_links(hosts: Sequence[str], measured: Sequence[PairLink]) -> FleetLinks:
    """`hosts` are indexed by the node numbers of the pairs."""
    known = best_pairs(measured)
    carries = {node: math.log(value) for node, value in estimate_node_bandwidths(known).items()}
    found = _find_link_outliers([*carries.values()], CABLE_FLOOR)
    slow = {node for node, named in zip(carries, found.named, strict=True) if named and carries[node] < found.centre}
    # a path is compared with the slower of its two cables, which limits it
    short = [math.log(pair.bus_gigabytes_per_s) - min(carries[pair.first], carries[pair.second]) for pair in known]
    paths = _find_link_outliers(short, PATH_FLOOR)
    good = [pair for pair in known if not slow & {pair.first, pair.second}] or known
    least = min(good, key=lambda pair: pair.bus_gigabytes_per_s)
    return FleetLinks(
        cables=tuple(
            Cable(
                host=hosts[node],
                gigabytes_per_s=math.exp(value),
                away=math.expm1(value - found.centre),
                slow=node in slow,
            )
            for node, value in carries.items()
        ),
        slow_paths=tuple(
            SlowPath(
                hosts=(hosts[pair.first], hosts[pair.second]),
                gigabytes_per_s=pair.bus_gigabytes_per_s,
                short=-math.expm1(less),
            )
            for pair, less, named in zip(known, short, paths.named, strict=True)
            if named and less < paths.centre
        ),
        median=math.exp(found.centre),
        pairs=len(known),
        slowest=(hosts[least.first], hosts[least.second], least.bus_gigabytes_per_s),
    )


def _find_link_outliers(values: Sequence[float], floor: float) -> Outliers:
    return find_outliers(values, [0.0] * len(values), floor=-math.log1p(-floor), assumed=ASSUMED_LINK_SPREAD)
