"""Number types of documents, bounded so that arithmetic stays finite, and their formatting."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from statistics import NormalDist, fmean
from typing import Annotated, Literal

from msgspec import Meta

from trainmark.record.errors import UsageError

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LONGEST_S = 366 * 24 * 3600.0


def parse_seconds(text: str, *, option: str) -> float:
    """Seconds of a duration; a bare number is seconds. UsageError names the option."""
    found = re.fullmatch(
        r"(?:([\d.]{1,12})d)?(?:([\d.]{1,12})h)?(?:([\d.]{1,12})m(?:in)?)?(?:([\d.]{1,12})s?)?", text.strip().lower()
    )
    try:
        parts = [float(part) if part else 0.0 for part in found.groups()] if found and text.strip() else []
    except ValueError:
        parts = []
    seconds = sum(part * unit_s for part, unit_s in zip(parts, UNITS_S.values(), strict=False))
    if not 0 < seconds <= LONGEST_S:
        raise UsageError(f"{option} {text[:40]!r} is not a duration; try '90s', '3m' or '1h'")
    return seconds


def parse_since(text: str, *, option: str, now: datetime) -> datetime:
    """The time of a date, or so long ago; without a zone it is UTC. UsageError names the option."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        try:
            return now - timedelta(seconds=parse_seconds(text, option=option))
        except UsageError:
            raise UsageError(
                f"{option} {text[:40]!r} is neither a date nor a duration; try '2d', '36h' or '2026-11-15'"
            ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def format_seconds(seconds: float) -> str:
    """`90 s`, `3 min`, `1.5 h`."""
    for unit, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size_s and seconds % (size_s / 2) == 0:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:.3g} s"


CONFIDENCE = 0.95
TOO_NOISY = 0.5
"""An interval beyond ±50 % is shown as "too noisy"."""
WIDEST = 50.0
"""Cap on the half-width: a factor of 5e21."""

_EXPANDED_FROM = 4  # degrees of freedom from which on Fisher's expansion is within 0.2 % of the quantile

Bounds = tuple[float, float]


def around(value: float, half_width: float) -> Bounds:
    """From value / f to value x f, where f is e to the half-width; "±4 %" says that f is 1.04."""
    factor = math.exp(min(half_width, WIDEST))
    return value / factor, value * factor


def half_width(bounds: Bounds) -> float:
    """Of an interval, on the logarithm; without end where it holds zero."""
    low, high = bounds
    if low == high:
        return 0.0
    return abs(math.log(high / low)) / 2 if low > 0 and high > 0 else math.inf


def share(bounds: Bounds) -> float:
    """0.04 reads "±4 %": larger or smaller by a factor of 1.04."""
    return math.expm1(min(half_width(bounds), WIDEST))


def is_too_noisy(bounds: Bounds) -> bool:
    return share(bounds) > TOO_NOISY


def average_repeats(values: Sequence[float]) -> tuple[float, Bounds | None]:
    """The geometric mean of repeats with Student's 95 % interval; a single one has none.

    The spread of repeats covers variation between processes and within one.
    """
    mean, count = math.exp(fmean(map(math.log, values))), len(values)
    if count < 2:
        return mean, None
    return mean, around(mean, quantile(0.5 + CONFIDENCE / 2, count - 1) * math.sqrt(log_variance(values) / count))


def log_variance(values: Sequence[float]) -> float:
    """Variance of the logarithm between repeats."""
    logs = [math.log(value) for value in values]
    middle = fmean(logs)
    return math.fsum((value - middle) ** 2 for value in logs) / (len(logs) - 1)


def quantile(probability: float, degrees: float) -> float:
    """Student's t: exact where few degrees make it large, else by Fisher's expansion of the normal quantile.

    Importing scipy takes longer than a training step, and this is called between steps.
    """
    if degrees < _EXPANDED_FROM:
        from scipy.special import stdtrit  # a lighter import than scipy.stats

        return float(stdtrit(degrees, probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    """The published name: `acc1`, `val_loss`."""
    unit: str
    better: Literal["higher", "lower"]

    def is_reached(self, value: float, goal: float) -> bool:
        return meets_goal(value, goal, self.better)


def meets_goal(value: float, goal: float, better: str) -> bool:
    return value >= goal if better == "higher" else value <= goal


def digits_to_tell_apart(value: float, goal: float, better: str, least: int = 4) -> int:
    """Digits needed not to round a miss onto the target."""
    for digits in range(least, 9):
        if meets_goal(float(f"{value:.{digits}g}"), goal, better) == meets_goal(value, goal, better):
            break
    return digits


Finite = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""Excludes NaN and infinity, too."""
Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]


def number(value: float, digits: int = 3) -> str:
    """Rounded to significant digits: 5.83, 797, 11 874."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) < 1e-4:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    if decimals <= 0 or abs(rounded) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{decimals}f}"
