"""How much training a run of MLPerf's own recipe needs at any global batch, by its reference convergence points."""

from __future__ import annotations

import math

from trainmark.analysis.forecast.cost import Needed, Reference
from trainmark.published.mlperf import convergence, rules
from trainmark.published.mlperf.own_convergence import goal
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology
from trainmark.workloads import facts_of

OWN_NAME = "mlperf"
"""Of a recipe by MLPerf's rules, where a workload's reference recipe follows another page."""


def reference(record: Record) -> Reference | None:
    """None of a run whose recipe is not MLPerf's, or whose target is another."""
    plan, known = record.plan, facts_of(record)
    benchmark = next((one for one in rules.benchmarks().values() if one.workload == plan.workload), None)
    if benchmark is None or known is None:
        return None
    own = OWN_NAME if OWN_NAME in known.recipes else "reference"
    aim = goal(benchmark)
    scale = 100 if record.quality.unit == "%" else 1
    if plan.recipe_name != own or aim is None or not math.isclose(record.quality.goal, aim * scale):
        return None
    samples = int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1))
    samples *= Topology.parse(plan.topology).devices
    trained = sum(trace.whole.items for trace in record.timeline.ranks)
    if not record.timeline.steps or not trained:
        return None
    items_per_sample = trained / record.timeline.steps / samples

    def needed(global_batch: float) -> Needed | None:
        point = convergence.expected(benchmark.rounds[-1], benchmark.name, global_batch)
        if point is None:
            return None
        times = {"epochs": benchmark.train_samples, "samples": 1, "tokens": None}.get(point.unit)
        if times is None:
            return None
        return Needed(*(value * times * items_per_sample for value in (point.mean, point.fastest, point.slowest)))

    return needed
