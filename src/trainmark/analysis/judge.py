"""Decides whether one side's runs are faster than the other's, from their values and the spread behind each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainmark.record.language import Say
from trainmark.record.numbers import (
    CONFIDENCE,
    WIDEST,
    Bounds,
    around,
    average_repeats,
    is_too_noisy,
    log_variance,
    quantile,
)

POWER = 0.8
"""Power at which the smallest detectable difference is given."""

BETWEEN_RUNS = 0.01
"""What one run is taken to differ from the next, as a standard deviation, where neither side was repeated: one run of
each says nothing about memory layout, clocks and neighbours, which change from process to process."""
ONE_RUN_BASIS = "the steps of one run each, and 1 % a run for what changes between processes"

MAX_STEPS = 20
"""A series is not asked to become more than so many times as long: repeats tell more."""
MAX_REPEATS = 100
"""Needing more, the two are too close to the threshold."""
USUAL_REPEATS = 5

Outcome = Literal["above", "below", "same", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How surely one run's value is known from its own steps."""

    error: float
    """Standard error as a part of the value."""
    degrees: int
    steps: int
    disturbed: float = 0.0
    """The share of the machine that others used meanwhile, where that is in doubt: the run may be off by as much, and
    its steps do not show it."""

    @property
    def between(self) -> float:
        """Variance that is allowed for beside what the steps show."""
        return BETWEEN_RUNS**2 + self.disturbed**2


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """What is known of one side: a value for each run of one plan."""

    values: tuple[float, ...]
    spreads: tuple[Spread | None, ...]
    """One per run; None where a run has no spread of its own."""
    published: bool = False
    """A figure from a page: it has neither steps nor repeats."""

    @property
    def mean(self) -> float:
        """Of logarithms, as ratios are what is compared."""
        return average_repeats(self.values)[0]


@dataclass(frozen=True, kw_only=True)
class More:
    """What would decide: about so many steps more in each run, or so many runs of each side in all."""

    steps: int | None = None
    repeats: int | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    ratio: float
    """Value of B / value of A."""
    interval: Bounds | None
    """95 % confidence; None where the spread of a side is not known."""
    outcome: Outcome
    """Where the ratio lies beside 1 and the threshold."""
    basis: str
    """Which spread the interval rests on, in words."""
    others: float = 0.0
    """What others used of the machine meanwhile, where the interval allows for it."""
    smallest_difference: float | None
    """What these data would show four times in five, as a part of A's value; None where they are too noisy to say."""
    more: More | None
    """None where nothing more is needed, or nothing sensible would help."""

    def basis_in(self, say: Say) -> str:
        """All that the interval rests on, in the reader's language."""
        if not self.others:
            return say(self.basis)
        return say("{basis}, and the {percent} % of the machine that others used").format(
            basis=say(self.basis), percent=f"{100 * self.others:.0f}"
        )

    @property
    def is_too_noisy(self) -> bool:
        """The ratio is not even known to ±50 %."""
        return self.interval is not None and is_too_noisy(self.interval)


@dataclass(frozen=True, kw_only=True)
class _Error:
    """The uncertainty of the difference of two means of logarithms."""

    variance: float
    degrees: float
    basis: str
    others: float = 0.0

    def half_width(self) -> float:
        return quantile(0.5 + CONFIDENCE / 2, self.degrees) * math.sqrt(self.variance)


def judge(a: RunValues, b: RunValues, *, threshold: float) -> Judgement:
    """Compares B with A.

    The interval of the ratio decides, beside the two bounds 1 - threshold and 1 + threshold: wholly outside of them the
    sides differ (above or below), wholly between them they are the same, across one of them it is inconclusive. So with
    ever more data the outcome becomes what is true, and a false alarm at no true difference needs an error of more than
    the interval and the threshold together. With threshold 0 any significant difference is one and nothing is the same.

    Values are compared as logarithms, so that twice as fast and half as fast are equally far. Repeats on both sides:
    Welch's t of the runs' values, which holds all that changes between processes. Repeats on one side: their spread
    stands for both. One run each: the standard errors from the two step series, which respect that neighbouring steps
    resemble each other, and an allowance of 1 % a run for what one run cannot show, by Welch and Satterthwaite; where
    others used the computing machine meanwhile, the share that they used is allowed for as well.
    """
    difference = math.log(b.mean / a.mean)
    error = _combine_errors(a, b)
    if error is None:
        return Judgement(
            ratio=math.exp(difference),
            interval=None,
            outcome="inconclusive",
            basis=_explain_no_interval(a, b),
            smallest_difference=None,
            more=None if a.published or b.published else More(repeats=USUAL_REPEATS),
        )
    half = error.half_width()
    interval = around(math.exp(difference), half)
    outcome = place_interval(interval, threshold)
    smallest = math.expm1(min(WIDEST, half + quantile(POWER, error.degrees) * math.sqrt(error.variance)))
    return Judgement(
        ratio=math.exp(difference),
        interval=interval,
        outcome=outcome,
        basis=error.basis,
        others=error.others,
        smallest_difference=None if is_too_noisy(interval) else smallest,
        more=_estimate_more(a, b, difference, threshold, error.degrees) if outcome == "inconclusive" else None,
    )


def ratio_interval(a: RunValues, b: RunValues) -> Bounds | None:
    """The interval that `judge` decides by, for whoever asks thousands of times and needs no more."""
    error = _combine_errors(a, b)
    return None if error is None else around(b.mean / a.mean, error.half_width())


def place_interval(interval: Bounds, threshold: float) -> Outcome:
    """Where an interval of the ratio lies."""
    low, high = interval
    if low > 1 + threshold:
        return "above"
    if high < 1 - threshold:
        return "below"
    return "same" if 1 - threshold <= low and high <= 1 + threshold and threshold > 0 else "inconclusive"


def own_interval(side: RunValues) -> Bounds | None:
    """A side's value with its 95 % interval: from its repeats, or of one run from its steps."""
    if len(side.values) > 1:
        return average_repeats(side.values)[1]
    if (spread := side.spreads[0]) is None:
        return None
    return around(side.mean, quantile(0.5 + CONFIDENCE / 2, spread.degrees) * spread.error)


def _combine_errors(a: RunValues, b: RunValues) -> _Error | None:
    if a.published or b.published:
        return None
    repeated = [side for side in (a, b) if len(side.values) > 1]
    if len(repeated) == 2:
        parts = [(log_variance(side.values) / len(side.values), len(side.values) - 1.0) for side in repeated]
        return _welch(parts, "the spread of the repeats of both sides")
    if repeated:
        return _error_of_one_repeated(repeated[0], single=a if repeated[0] is b else b)
    return _error_of_single_runs(a.spreads[0], b.spreads[0])


def _error_of_one_repeated(group: RunValues, *, single: RunValues) -> _Error:
    """A single run is taken to vary as the repeats do, or as its own steps say where that is more."""
    count, between = len(group.values), log_variance(group.values)
    spread = single.spreads[0]
    own = spread.error**2 + spread.disturbed**2 if spread else 0.0
    if spread is not None and own > between:
        parts = [(between / count, count - 1.0), (own, float(spread.degrees))]
        return _welch(parts, "the spread of the repeats of one side and the steps of the other")
    return _Error(
        variance=between * (1 + 1 / count),
        degrees=count - 1,
        basis="the spread of the repeats of one side, taken for both",
    )


def _error_of_single_runs(a: Spread | None, b: Spread | None) -> _Error | None:
    if a is None or b is None:
        return None
    parts = [(a.error**2, float(a.degrees)), (b.error**2, float(b.degrees)), (a.between + b.between, math.inf)]
    return replace(_welch(parts, ONE_RUN_BASIS), others=max(a.disturbed, b.disturbed))


def _welch(parts: Sequence[Bounds], basis: str) -> _Error:
    """Sums variances; degrees of freedom by Satterthwaite, but of two runs no more than their one."""
    total = sum(part for part, _ in parts)
    lost = sum(part**2 / degrees for part, degrees in parts)
    fewest = min(degrees for _, degrees in parts)
    # two runs that happen to lie close make Satterthwaite believe the other side alone: 7 false alarms in 100
    degrees = fewest if fewest < 2 or not total else total**2 / lost if lost else math.inf
    return _Error(variance=total, degrees=degrees, basis=basis)


def _explain_no_interval(a: RunValues, b: RunValues) -> str:
    if a.published or b.published:
        return "a published figure has neither steps nor repeats, so nothing tells how sure it is"
    return "one run each says nothing about how much this varies from run to run"


def _estimate_more(a: RunValues, b: RunValues, difference: float, threshold: float, degrees: float) -> More | None:
    """What would bring the interval off the bound it lies across, if the ratio stays where it is."""
    bound = math.log1p(threshold) if difference > 0 else -math.log1p(-threshold)
    room = abs(abs(difference) - bound)
    first, second = a.spreads[0], b.spreads[0]
    if len(a.values) == len(b.values) == 1 and first and second:
        left = (room / quantile(0.5 + CONFIDENCE / 2, degrees)) ** 2 - first.between - second.between
        longer = (first.error**2 + second.error**2) / left if left > 0 else math.inf
        if longer <= MAX_STEPS:
            return More(steps=math.ceil((longer - 1) * max(first.steps, second.steps)))
    of_a, of_b = _variance_of_one_run(a, b), _variance_of_one_run(b, a)
    most = max(len(a.values), len(b.values))
    for count in range(max(2, most + 1), MAX_REPEATS + 1):
        error = _welch([(of_a / count, count - 1.0), (of_b / count, count - 1.0)], "")
        if error.half_width() < room:
            return More(repeats=count)
    return None


def _variance_of_one_run(side: RunValues, other: RunValues) -> float:
    """The variance of one run's value, as well as it is known."""
    if len(side.values) > 1:
        return log_variance(side.values)
    spread = side.spreads[0]
    if len(other.values) > 1:
        return max(spread.error**2 if spread else 0.0, log_variance(other.values))
    return spread.error**2 + spread.between if spread else BETWEEN_RUNS**2
