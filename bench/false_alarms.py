"""How often `compare` sees a difference where there is none, and finds one where there is.

    python bench/false_alarms.py [--experiments 2000]        on drawn runs
    python bench/false_alarms.py --repeats RUN... [--store DIR]  on repeats of one plan from your own machine

A drawn run is a series of step times that resemble their neighbours; whole runs lie apart as processes do. Repeats, as
`trainmark run resnet50 --recipe smoke --repeat 10` makes them, are split into halves and into single runs.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from trainmark.analysis import quantities
from trainmark.analysis.comparison import collect_values
from trainmark.analysis.judge import RunValues, Spread, place_interval, ratio_interval
from trainmark.analysis.published_lookup import find_subject
from trainmark.record.errors import UsageError
from trainmark.record.statistics import mean_interval
from trainmark.record.store import Store, Subject, default_folder

STEPS = 100
NOISE = 0.05

PROMISED = 0.05
"""The rate of false alarms that the verdicts are made to stay at or below."""

MIN_RUNS = 4
"""Two runs a half is the least from which a spread can be taken."""

MAX_SPLITS = 2000
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
class SplitRepeats:
    label: str
    metric: str
    runs: int
    rates: tuple[Rate, ...]
    notes: tuple[str, ...]
    promised: float = PROMISED


Split = tuple[tuple[int, ...], tuple[int, ...]]


def measure(subject: Subject, *, metric: str = "p_core", threshold: float, seed: int = 0) -> SplitRepeats:
    """Splits the runs of one plan into halves, and into single runs, and counts the verdicts that see a difference."""
    if subject.row is not None:
        raise UsageError(f"{subject.label} has no repeats; --repeats takes runs of one plan")
    compared = quantities.find_compared(metric, (subject,))
    records = [record for record in subject.records if record.status == "valid"]
    if len(records) < MIN_RUNS:
        raise UsageError(
            f"{subject.label} holds {len(records)} valid runs of one plan and --repeats needs at least {MIN_RUNS}; "
            "'trainmark run --repeat 10' makes more"
        )
    whole = collect_values(records, compared)
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
    return SplitRepeats(
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
    alarms = sum(place_interval(interval, threshold) in ("above", "below") for interval in intervals)
    return Rate(
        kind=kind,
        threshold=threshold,
        comparisons=len(intervals),
        alarms=alarms,
        interval=tuple(binomtest(alarms, len(intervals)).proportion_ci()),
    )


def halves(count: int, seed: int) -> Iterator[Split]:
    """Every way to make two equal parts, or so many random ones where there are too many; an odd run stays out."""
    size = count // 2
    everyone = range(count)
    possible = math.comb(count, size) * math.comb(count - size, size) // 2
    if possible <= MAX_SPLITS:
        for first in combinations(everyone, size):
            rest = [run for run in everyone if run not in first]
            # each pair of parts once: the first part holds the smallest run of both
            yield from ((first, second) for second in combinations(rest, size) if first[0] < second[0])
        return
    draw = random.Random(seed)
    for _ in range(MAX_SPLITS):
        shuffled = draw.sample(everyone, 2 * size)
        yield tuple(shuffled[:size]), tuple(shuffled[size:])


def pairs(count: int, seed: int) -> Iterator[Split]:
    """Every two runs, or so many random ones of them."""
    everything = list(combinations(range(count), 2))
    if len(everything) > MAX_SPLITS:
        everything = random.Random(seed).sample(everything, MAX_SPLITS)
    return (((first,), (second,)) for first, second in everything)


def _part(whole: RunValues, runs: Sequence[int]) -> RunValues:
    return RunValues(values=tuple(whole.values[run] for run in runs), spreads=tuple(whole.spreads[run] for run in runs))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two sides and how unlike their runs are."""

    runs: tuple[int, int]
    correlation: float = 0.0
    between: float = 0.0
    """Deviation from run to run."""
    speed: float = 1.0
    """Of B, beside A."""
    threshold: float = 0.03

    def __str__(self) -> str:
        a, b = self.runs
        return (
            f"{a} against {b} runs, correlation {self.correlation:g}, {100 * self.between:g} % between runs, "
            f"B {self.speed:g} times as fast, threshold {100 * self.threshold:g} %"
        )


CASES = (
    *(
        Case(runs=(1, 1), correlation=correlation, between=between, threshold=threshold)
        for threshold in (0.0, 0.03)
        for between in (0.0, 0.01, 0.03)
        for correlation in (0.0, 0.6)
    ),
    *(
        Case(runs=runs, between=between, threshold=threshold)
        for threshold in (0.0, 0.03)
        for between in (0.002, 0.03)
        for runs in ((1, 5), (2, 2), (3, 3), (5, 5), (10, 10))
    ),
    *(Case(runs=runs, between=0.01, speed=0.94) for runs in ((1, 1), (3, 3), (5, 5), (10, 10))),
)


def drawn_run(draw: np.random.Generator, case: Case, speed: float) -> tuple[float, Spread | None]:
    """The throughput of one run, and how surely its steps tell it."""
    shocks = draw.normal(0, NOISE * np.sqrt(1 - case.correlation**2), STEPS)
    unrest = np.empty(STEPS)
    last = draw.normal(0, NOISE)
    for step, shock in enumerate(shocks):
        last = unrest[step] = case.correlation * last + shock
    step_s = np.maximum(1 + unrest, 0.05) * np.exp(draw.normal(0, case.between)) / speed
    found = mean_interval(step_s, np.ones(STEPS))
    assert found is not None
    return found.value, Spread(error=found.error, degrees=found.degrees, steps=STEPS)


def drawn_side(draw: np.random.Generator, case: Case, count: int, speed: float) -> RunValues:
    values, spreads = zip(*(drawn_run(draw, case, speed) for _ in range(count)), strict=True)
    return RunValues(values=values, spreads=spreads)


def show(found: SplitRepeats) -> None:
    print(
        f"{found.label} by {found.metric}: {found.runs} runs of one plan, told apart (promised: {100 * PROMISED:g} %)"
    )
    for rate in found.rates:
        low, high = rate.interval
        print(
            f"  {rate.kind}, threshold {100 * rate.threshold:g} %: {rate.alarms} of {rate.comparisons}, "
            f"{100 * rate.alarms / rate.comparisons:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        )
    print(*found.notes, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=2000)
    parser.add_argument("--repeats", nargs="+", metavar="RUN", help="runs of one plan, or the name of their group")
    parser.add_argument("--store", type=Path, help="where they are (default: $TRAINMARK_STORE)")
    args = parser.parse_args()
    if args.repeats:
        show(measure(find_subject(",".join(args.repeats), Store(args.store or default_folder())), threshold=0.03))
        return
    for case in CASES:
        draw = np.random.default_rng(0)
        outcomes = []
        for _ in range(args.experiments):
            a, b = (
                drawn_side(draw, case, count, speed) for count, speed in zip(case.runs, (1.0, case.speed), strict=True)
            )
            interval = ratio_interval(a, b)
            outcomes.append(place_interval(interval, case.threshold) if interval else "inconclusive")
        told_apart = sum(outcome in ("above", "below") for outcome in outcomes)
        low, high = binomtest(told_apart, len(outcomes)).proportion_ci()
        same = 100 * outcomes.count("same") / len(outcomes)
        print(
            f"{case}: told apart {100 * told_apart / len(outcomes):.1f} % [{100 * low:.1f}, {100 * high:.1f}], "
            f"same {same:.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
