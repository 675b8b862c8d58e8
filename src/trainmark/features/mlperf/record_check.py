"""Checks that a run did not reach its target with less training than MLPerf's reference needs."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.features.mlperf.benchmarks import find_benchmark
from trainmark.features.mlperf.convergence import compute_global_batch, expect_point
from trainmark.record.audit import CannotCheckError, check as register, doubtful, note, run_checks
from trainmark.record.checks import CheckResult
from trainmark.record.record import Record


def check(record: Record) -> tuple[CheckResult, ...]:
    """Empty for workloads that are not a benchmark and for synthetic data."""
    benchmark = find_benchmark(record.plan.workload)
    return run_checks([_convergence], record, record.run_id) if benchmark and not record.plan.data.synthetic else ()


@register("mlperf-convergence", "the target was not reached with less training than MLPerf's reference needs")
def _convergence(record: Record) -> Iterator[CheckResult]:
    quality, batch = record.quality, compute_global_batch(record)
    known = find_benchmark(record.plan.workload)
    if known is None or known.target is None or not quality.reached or not quality.history:
        raise CannotCheckError("the run reached no target of MLPerf's")
    goal = known.target * (100 if quality.unit == "%" else 1)
    if (quality.goal < goal) if quality.better == "higher" else (quality.goal > goal):
        raise CannotCheckError(f"its target is easier than MLPerf's {goal:g}")
    point = expect_point(known, batch)
    if point is None:
        raise CannotCheckError(f"no reference point is known at a batch of {batch:,}")
    last, unit = quality.history[-1], known.units[-1]
    needed = last.epoch if unit == "epochs" else float(last.step * batch)
    if needed is None:
        raise CannotCheckError("the run counted no epochs")
    band = f"{point.mean:,.6g} [{point.fastest:,.6g}, {point.slowest:,.6g}]"
    numbers = f"{needed:,.6g} {unit} at batch {batch:,}; reference {band}"
    if needed < point.min_of_one:
        yield doubtful(numbers, "it converged far sooner than any run of the reference", "optimizer, data and model")
    elif needed > point.slowest:
        yield note(numbers, "it needed more than any run of the reference", "its hyperparameters")
