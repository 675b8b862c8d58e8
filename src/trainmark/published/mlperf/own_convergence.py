"""Holds a run of ours that trained a benchmark to its target against MLPerf's reference convergence points."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainmark.published.mlperf import convergence, rules
from trainmark.spec.audit import CannotCheckError, check, doubtful, look, note
from trainmark.spec.checks import CheckResult
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology


@check("mlperf-convergence", "the target was not reached with less training than MLPerf's reference needs")
def converged(record: Record) -> Iterator[CheckResult]:
    plan, quality = record.plan, record.quality
    known = next(one for one in rules.benchmarks().values() if one.workload == plan.workload)
    aim = goal(known)
    if aim is None or not quality.reached or not quality.history:
        raise CannotCheckError("the run reached no target of MLPerf's")
    scale = 100 if quality.unit == "%" else 1
    if (quality.goal < aim * scale) if quality.better == "higher" else (quality.goal > aim * scale):
        raise CannotCheckError(f"its target is easier than MLPerf's {aim * scale:g}")
    devices = Topology.parse(plan.topology).devices
    batch = int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1)) * devices
    point = convergence.expected(known.rounds[-1], known.name, batch)
    if point is None:
        raise CannotCheckError(f"no reference point is known at a batch of {batch:,}")
    last = quality.history[-1]
    needed = last.epoch if point.unit == "epochs" else float(last.step * batch)
    if needed is None:
        raise CannotCheckError("the run counted no epochs")
    band = f"{point.mean:,.6g} [{point.fastest:,.6g}, {point.slowest:,.6g}]"
    numbers = f"{needed:,.6g} {point.unit} at batch {batch:,}; reference {band}"
    if needed < point.least_of_one:
        yield doubtful(numbers, "it converged far sooner than any run of the reference", "optimizer, data and model")
    elif needed > point.slowest:
        yield note(numbers, "it needed more than any run of the reference", "its hyperparameters")


def look_at(record: Record) -> tuple[CheckResult, ...]:
    """Nothing of workloads that are no benchmark, and of runs on synthetic data, which are no such training."""
    benchmark = any(one.workload == record.plan.workload for one in rules.benchmarks().values())
    return look([converged], record, record.run_id) if benchmark and not record.plan.data.synthetic else ()


def goal(known: rules.Benchmark) -> float | None:
    """The benchmark's target, where it is one number."""
    for condition in rules.target(known.rounds[-1], known.name):
        if found := re.fullmatch(r"(?:>=|<=) ([0-9.]+)", condition):
            return float(found[1])
    return None
