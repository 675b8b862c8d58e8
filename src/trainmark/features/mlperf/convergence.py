"""MLPerf's reference convergence points by global batch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.features.mlperf.benchmarks import Benchmark, read_table
from trainmark.record.plan import Topology
from trainmark.record.record import Record

FAR = 4.0
"""Standard deviations from the mean beyond which no run of the same training lies."""


@dataclass(frozen=True, kw_only=True)
class ConvergencePoint:
    """In the unit of the benchmark: epochs or samples."""

    global_batch: float
    mean: float
    """Without the fastest and the slowest runs, as results are scored."""
    deviation: float
    fastest: float
    slowest: float

    @property
    def min_of_one(self) -> float:
        """Of a single run, which may well be faster than any of the reference's few."""
        return max(0.0, min(self.fastest, self.mean - FAR * self.deviation))


def load_points(benchmark: Benchmark) -> list[ConvergencePoint]:
    """Points of the newest round with the benchmark, by batch."""
    found = []
    for entry in read_table("convergence.csv"):
        if entry["benchmark"] == benchmark.name:
            reached = sorted(map(float, entry["reached_at"].split()))
            found.append(
                ConvergencePoint(
                    global_batch=float(entry["global_batch"]),
                    mean=olympic_mean(reached, benchmark.dropped),
                    deviation=statistics.pstdev(reached),
                    fastest=reached[0],
                    slowest=reached[-1],
                )
            )
    return sorted(found, key=lambda point: point.global_batch)


def expect_point(benchmark: Benchmark, global_batch: float) -> ConvergencePoint | None:
    """What the reference needs at a batch: a point, one between two, or that of the smallest batch for a smaller one.

    None above the largest batch."""
    known = _prune(load_points(benchmark))
    below = [point for point in known if point.global_batch <= global_batch]
    above = [point for point in known if point.global_batch >= global_batch]
    if below and above:
        return _interpolate(below[-1], above[0], global_batch)
    return above[0] if above else None


def olympic_mean(values: Sequence[float], dropped: int) -> float:
    """The mean without the lowest and highest `dropped` values; of all where too few."""
    ordered = sorted(values)
    return statistics.fmean(ordered[dropped : len(ordered) - dropped] or ordered)


def _prune(known: list[ConvergencePoint]) -> list[ConvergencePoint]:
    """The points that apply: those not above the line between their neighbours."""
    if not known:
        return []
    fastest = min(known, key=lambda point: point.mean)
    left = [point for point in known if point.global_batch >= fastest.global_batch]
    index = 1
    while index < len(left) - 1:
        if left[index].mean > _interpolate(left[index - 1], left[index + 1], left[index].global_batch).mean:
            del left[index]  # as the rules prune, which is not quite the lower envelope
        else:
            index += 1
    return left


def _interpolate(low: ConvergencePoint, high: ConvergencePoint, global_batch: float) -> ConvergencePoint:
    if low is high:
        return low
    share = (global_batch - low.global_batch) / (high.global_batch - low.global_batch)

    def mix(one: float, other: float) -> float:
        return one + share * (other - one)

    return ConvergencePoint(
        global_batch=global_batch,
        mean=mix(low.mean, high.mean),
        deviation=mix(low.deviation, high.deviation),
        fastest=mix(low.fastest, high.fastest),
        slowest=mix(low.slowest, high.slowest),
    )


def compute_global_batch(record: Record) -> int:
    plan = record.plan
    devices = Topology.parse(plan.topology).devices
    return int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1)) * devices
