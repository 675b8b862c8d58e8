"""Measures how often our own comparison raises a false alarm: splits repeats of one plan and compares the parts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from trainmark.analysis.compare import quantities
from trainmark.analysis.compare.comparison import side_of
from trainmark.analysis.compare.judge import CONFIDENCE, Side, place, ratio_interval
from trainmark.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmark.analysis.subject import Subject

PROMISED = 0.05
"""The rate of false alarms that the verdicts are made to stay at or below."""

FEWEST_RUNS = 4
"""Two runs a half is the least from which a spread can be taken."""

MOST_SPLITS = 2000
"""Beyond this, random ones of all possible splits are drawn."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How often one way of splitting raised an alarm."""

    kind: str
    threshold: float
    comparisons: int
    alarms: int
    interval: tuple[float, float]
    """Clopper and Pearson's, 95 %, as if the comparisons were independent of each other."""


@dataclass(frozen=True, kw_only=True)
class NullResult:
    label: str
    metric: str
    runs: int
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]
    promised: float = PROMISED


Split = tuple[tuple[int, ...], tuple[int, ...]]


def measure(subject: Subject, *, metric: str = "p_core", threshold: float, seed: int = 0) -> NullResult:
    """Splits the runs of one plan into halves, and into single runs, and counts the verdicts that see a difference."""
    if subject.row is not None:
        raise UsageError(f"{subject.label} has no repeats; --null takes runs of one plan")
    compared = quantities.find(metric, (subject,))
    records = [record for record in subject.records if record.status == "valid"]
    if len(records) < FEWEST_RUNS:
        raise UsageError(
            f"{subject.label} holds {len(records)} valid runs of one plan and --null needs at least {FEWEST_RUNS}; "
            "'trainmark run --repeat 10' makes more"
        )
    whole = side_of(records, compared)
    thresholds = sorted({0.0, threshold})
    ways: dict[str, Callable[[int, int], Iterator[Split]]] = {"halves of the runs": halves, "one run each": pairs}
    rates = []
    for kind, ways_of in ways.items():
        compared_parts = (
            ratio_interval(_part(whole, first), _part(whole, second)) for first, second in ways_of(len(records), seed)
        )
        intervals = [interval for interval in compared_parts if interval]
        if intervals:  # by some numbers one run each is never told apart, as nothing in a run tells their spread
            rates += [_rate(kind, bound, intervals) for bound in thresholds]
    return NullResult(
        label=subject.label,
        metric=compared.name,
        runs=len(records),
        rates=tuple(rates),
        notes=(
            "Threshold 0 counts every significant difference; promised is at most "
            f"{100 * PROMISED:g} %. Comparisons share runs, so the truth may lie somewhat outside of an interval.",
        ),
    )


def _rate(kind: str, threshold: float, intervals: Sequence[tuple[float, float]]) -> Rate:
    alarms = sum(place(interval, threshold) in ("above", "below") for interval in intervals)
    return Rate(
        kind=kind,
        threshold=threshold,
        comparisons=len(intervals),
        alarms=alarms,
        interval=binomial_interval(alarms, len(intervals)),
    )


def halves(count: int, seed: int) -> Iterator[Split]:
    """Every way to make two equal parts, or so many random ones where there are too many; an odd run stays out."""
    size = count // 2
    everyone = range(count)
    possible = math.comb(count, size) * math.comb(count - size, size) // 2
    if possible <= MOST_SPLITS:
        for first in combinations(everyone, size):
            rest = [run for run in everyone if run not in first]
            # each pair of parts once: the first part holds the smallest run of both
            yield from ((first, second) for second in combinations(rest, size) if first[0] < second[0])
        return
    draw = random.Random(seed)  # noqa: S311 - nothing secret hangs on it
    for _ in range(MOST_SPLITS):
        shuffled = draw.sample(everyone, 2 * size)
        yield tuple(shuffled[:size]), tuple(shuffled[size:])


def pairs(count: int, seed: int) -> Iterator[Split]:
    """Every two runs, or so many random ones of them."""
    everything = list(combinations(range(count), 2))
    if len(everything) > MOST_SPLITS:
        everything = random.Random(seed).sample(everything, MOST_SPLITS)  # noqa: S311 - nothing secret hangs on it
    return (((first,), (second,)) for first, second in everything)


def binomial_interval(hits: int, tries: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a rate."""
    from scipy.special import betaincinv  # a lighter import than scipy.stats

    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, tries - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, tries - hits, 1 - tail)) if hits < tries else 1.0
    return low, high


def to_json(found: NullResult) -> dict[str, Any]:
    return asdict(found)


def _part(whole: Side, runs: Sequence[int]) -> Side:
    return Side(values=tuple(whole.values[run] for run in runs), spreads=tuple(whole.spreads[run] for run in runs))
