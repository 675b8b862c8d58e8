"""Reference convergence points: how much training MLPerf's reference needs at a batch, and how little is believed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from trainmark.published.mlperf import rules

ALIKE = 4.0
"""How many times sooner or later than any reference run a training may end and still be counted in the same unit."""
FAR = 4.0
"""Standard deviations that no run of the same training lies from the mean."""
ALPHA = 0.05
"""Of the one-sided t test by which the rules judge a mean."""


@dataclass(frozen=True, kw_only=True)
class ConvergencePoint:
    benchmark: str
    global_batch: float
    unit: str
    """What logs of the benchmark count: epochs, samples or tokens."""
    mean: float
    """Without the fastest and the slowest runs, as results are scored."""
    deviation: float
    fastest: float
    slowest: float
    runs: int
    """Of the reference; twice as many as a result has where the point lies between two others."""
    interpolated: bool = False

    @property
    def least(self) -> float:
        """The smallest mean of a result that still passes for the same training."""
        if not self.deviation:
            return self.mean
        known = rules.benchmark(self.benchmark)
        reference = self.runs - (0 if self.interpolated else 2 * known.dropped)
        result = max(1, known.runs - 2)
        error = self.deviation * math.sqrt(1 / reference + 1 / result)
        return max(0.0, self.mean - t_quantile(1 - ALPHA, reference + result - 2) * error)

    @property
    def least_of_one(self) -> float:
        """Of a single run, which may well be faster than any of the reference's few."""
        return max(0.0, min(self.fastest, self.mean - FAR * self.deviation))


def points(round_name: str, benchmark: str) -> tuple[ConvergencePoint, ...]:
    """Every point of a round, by batch."""
    dropped = rules.benchmark(benchmark).dropped
    found = []
    for entry in rules.table("convergence.csv"):
        if entry["benchmark"] == benchmark and round_name in rules.spread(entry["rounds"]):
            reached = sorted(map(float, entry["reached_at"].split()))
            found.append(
                ConvergencePoint(
                    benchmark=benchmark,
                    global_batch=float(entry["global_batch"]),
                    unit=entry["unit"],
                    mean=olympic_mean(reached, dropped),
                    deviation=statistics.pstdev(reached),
                    fastest=reached[0],
                    slowest=reached[-1],
                    runs=len(reached),
                )
            )
    return tuple(sorted(found, key=lambda point: point.global_batch))


def unit_of(benchmark: str, place: float | None = None) -> str:
    """What logs of a benchmark count their training in; empty where no point tells it.

    Where rounds differ, `place` tells which is meant: a log that converged at 240,000 does not count epochs where the
    reference needs 2,000 of them."""
    reached: dict[str, list[float]] = {}
    for entry in reversed(rules.table("convergence.csv")):
        if entry["benchmark"] == benchmark:
            reached.setdefault(entry["unit"], []).extend(map(float, entry["reached_at"].split()))
    for unit, values in reached.items():
        if place is not None and min(values) / ALIKE <= place <= max(values) * ALIKE:
            return unit
    return next(iter(reached), "")


def pruned(known: Sequence[ConvergencePoint]) -> list[ConvergencePoint]:
    """The points a result is held to: those that need no more than a line between their neighbours would."""
    if not known:
        return []
    fastest = min(known, key=lambda point: point.mean)
    left = [point for point in known if point.global_batch >= fastest.global_batch]
    index = 1
    while index < len(left) - 1:
        if left[index].mean > between(left[index - 1], left[index + 1], left[index].global_batch).mean:
            del left[index]  # and on with the next: the rules' own way, which is not quite the lower envelope
        else:
            index += 1
    return left


def expected(round_name: str, benchmark: str, global_batch: float) -> ConvergencePoint | None:
    """What the reference needs at a batch: a point, one between two, or that of the smallest batch for a smaller one.

    None above the largest batch, for which nobody knows."""
    known = pruned(points(round_name, benchmark))
    for point in known:
        if point.global_batch == global_batch:
            return point
    below = [point for point in known if point.global_batch < global_batch]
    above = [point for point in known if point.global_batch > global_batch]
    if below and above:
        return between(below[-1], above[0], global_batch)
    return above[0] if above else None


def between(low: ConvergencePoint, high: ConvergencePoint, global_batch: float) -> ConvergencePoint:
    share = (global_batch - low.global_batch) / (high.global_batch - low.global_batch)

    def mixed(one: float, other: float) -> float:
        return one + share * (other - one)

    return ConvergencePoint(
        benchmark=low.benchmark,
        global_batch=global_batch,
        unit=low.unit,
        mean=mixed(low.mean, high.mean),
        deviation=mixed(low.deviation, high.deviation),
        fastest=mixed(low.fastest, high.fastest),
        slowest=mixed(low.slowest, high.slowest),
        runs=2 * rules.benchmark(low.benchmark).runs,
        interpolated=True,
    )


def olympic_mean(values: Sequence[float], dropped: int) -> float:
    """Without the lowest and the highest `dropped`; of too few, of all."""
    ordered = sorted(values)
    return statistics.fmean(ordered[dropped : len(ordered) - dropped] or ordered)


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Of Student's distribution, above a half."""
    low, high = 0.0, 700.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if _t_below(middle, degrees) > probability else (middle, high)
    return (low + high) / 2


def _t_below(t: float, degrees: int) -> float:
    """The distribution at t > 0, by its finite sums for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, total = math.cos(angle), 0.0
    if degrees % 2:
        term = cosine
        for index in range(1, degrees - 1, 2):
            total += term
            term *= cosine**2 * (index + 1) / (index + 2)
        inside = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        term = 1.0
        for index in range(0, degrees - 1, 2):
            total += term
            term *= cosine**2 * (index + 1) / (index + 2)
        inside = math.sin(angle) * total
    return 0.5 + inside / 2
