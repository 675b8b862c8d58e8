"""How much training a run of MLPerf's own recipe needs at any global batch, by its reference convergence points."""

from __future__ import annotations

import math

import numpy as np

from trainmark.analysis.clusters import Reference, TrainingNeed
from trainmark.features.mlperf.benchmarks import (
    Benchmark,
    compute_global_batch,
    find_benchmark,
    olympic_mean,
    read_table,
)
from trainmark.record.record import Record
from trainmark.workloads import facts_of

OWN_NAME = "mlperf"
"""Of a recipe by MLPerf's rules, where a workload's reference recipe follows another page."""


def reference(record: Record) -> Reference | None:
    """None unless the run has MLPerf's recipe and target."""
    plan, known, benchmark = record.plan, facts_of(record), find_benchmark(record.plan.workload)
    if benchmark is None or benchmark.target is None or known is None:
        return None
    own = OWN_NAME if OWN_NAME in known.recipes else "reference"
    goal = benchmark.target * (100 if record.quality.unit == "%" else 1)
    if plan.recipe_name != own or not math.isclose(record.quality.goal, goal):
        return None
    trained = sum(trace.whole.items for trace in record.timeline.ranks)
    if not record.timeline.steps or not trained:
        return None
    items_per_sample = trained / record.timeline.steps / compute_global_batch(record)
    samples_per_unit = benchmark.train_samples if benchmark.units[-1] == "epochs" else 1

    def needed(global_batch: float) -> TrainingNeed | None:
        point = expect_need(benchmark, global_batch)
        if point is None or samples_per_unit is None:
            return None
        return TrainingNeed(*(value * samples_per_unit * items_per_sample for value in point))

    return needed


Point = tuple[float, TrainingNeed]
"""A global batch, and what training needs there in the unit of the benchmark: epochs or samples."""


def load_points(benchmark: Benchmark) -> list[Point]:
    """Points of the newest round with the benchmark, by batch; the mean is without the fastest and the slowest runs, as
    results are scored."""
    found = []
    for entry in read_table("convergence.csv"):
        if entry["benchmark"] == benchmark.name:
            reached = sorted(map(float, entry["reached_at"].split()))
            need = TrainingNeed(olympic_mean(reached, benchmark.dropped), reached[0], reached[-1])
            found.append((float(entry["global_batch"]), need))
    return sorted(found, key=lambda point: point[0])


def expect_need(benchmark: Benchmark, global_batch: float) -> TrainingNeed | None:
    """What the reference needs at a batch, between two points by their line; that of the smallest batch for a smaller
    one, None above the largest."""
    known = _prune(load_points(benchmark))
    return _interpolate(known, global_batch) if known and global_batch <= known[-1][0] else None


def _prune(known: list[Point]) -> list[Point]:
    """The points that apply: those not above the line between their neighbours."""
    fastest = min((need.items for _, need in known), default=0.0)
    while known and known[0][1].items > fastest:
        known = known[1:]
    index = 1
    while index < len(known) - 1:
        batch, need = known[index]
        if need.items > _interpolate([known[index - 1], known[index + 1]], batch).items:
            known = [*known[:index], *known[index + 1 :]]  # as the rules prune, which is not quite the lower envelope
        else:
            index += 1
    return known


def _interpolate(known: list[Point], global_batch: float) -> TrainingNeed:
    batches, needs = [batch for batch, _ in known], np.array([need for _, need in known])
    return TrainingNeed(*(float(np.interp(global_batch, batches, column)) for column in needs.T))
