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
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

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


def find(
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
        centre, found = float(np.median(good)), _spread(good)
        spread = _MARGIN * max(found, assumed) if few else found * (1 + _FEW_ARE_UNSURE / len(good))
        away = np.abs(all_values - centre)
        now = named | (_too_unlikely(away / np.sqrt(np.square(spread) + more + 1e-18)) & (away > floor))
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


def _too_unlikely(sizes: Floats) -> npt.NDArray[np.bool_]:
    """Benjamini and Hochberg's rule over the two-sided probabilities of normal deviates."""
    chances = np.array([math.erfc(size / math.sqrt(2)) for size in sizes])
    ordered = np.sort(chances)
    passed = ordered <= _AIMED_AT * np.arange(1, len(ordered) + 1) / len(ordered)
    most = ordered[np.flatnonzero(passed)[-1]] if passed.any() else -1.0
    return np.asarray(chances <= most)


def _spread(values: Floats) -> float:
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
