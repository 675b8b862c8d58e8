"""How much training a run of MLPerf's own recipe needs at any global batch, by its reference convergence points."""

from __future__ import annotations

import math

from trainmark.analysis.clusters import Reference, TrainingNeed
from trainmark.features.mlperf import convergence
from trainmark.features.mlperf.benchmarks import find_benchmark
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
    items_per_sample = trained / record.timeline.steps / convergence.compute_global_batch(record)
    samples_per_unit = benchmark.train_samples if benchmark.units[-1] == "epochs" else 1

    def needed(global_batch: float) -> TrainingNeed | None:
        point = convergence.expect_point(benchmark, global_batch)
        if point is None or samples_per_unit is None:
            return None
        times = samples_per_unit * items_per_sample
        return TrainingNeed(*(value * times for value in (point.mean, point.fastest, point.slowest)))

    return needed
