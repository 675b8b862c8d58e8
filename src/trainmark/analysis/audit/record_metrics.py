"""Recomputes every metric of a record from its raw series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import CannotCheckError, Check, check, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.endings import CAP_OF_ITEMS, ITEMS
from trainmark.spec.metrics import METRICS, Measured, Quantity, measure, withhold
from trainmark.spec.target import reached

NOT_RECOMPUTED = {"sensed", "target_reached_ns"}
"""What metrics may need and the record holds no raw figure of: see the checks of their own."""


@check("metrics", "every metric and its interval follow from the series")
def metrics(case: RecordCase) -> Iterator[CheckResult]:
    record = case.record
    computed = measure(_measured(case))
    for alias, expected in (withhold(computed) if record.status == "invalid" else computed).items():
        found = record.metrics.get(alias)
        if found is None:  # not recorded: the version that wrote it did not have the metric yet
            continue
        unlike = list(_unlike(alias, found, expected, case))
        if unlike:
            yield wrong(
                f"{alias}: " + "; ".join(unlike),
                "recomputed from the series of the record it is another",
                "the metric and the series: one of them was changed",
            )


def _unlike(alias: str, found: Quantity, expected: Quantity, case: RecordCase) -> Iterator[str]:
    if found.unit != expected.unit:
        yield f"unit {found.unit!r}, not {expected.unit!r}"
    if (found.value is None) != bool(found.unavailable):
        yield "a value or a reason why there is none, never both"
    if NOT_RECOMPUTED.intersection(METRICS[alias].needs) or (alias == "completed" and not _length_is_known(case)):
        return
    for what, one, other in (
        ("value", found.value, expected.value),
        ("reason", found.unavailable, expected.unavailable),
        *(_ends(found, expected)),
    ):
        if not same(one, other):
            yield f"{what} {one!r}, computed {other!r}"


def _ends(found: Quantity, expected: Quantity) -> list[tuple[str, Any, Any]]:
    one, other = found.interval or (None, None), expected.interval or (None, None)
    return [("interval from", one[0], other[0]), ("interval to", one[1], other[1])]


def _measured(case: RecordCase) -> Measured:
    record = case.record
    flops = record.environment.flops
    return Measured(
        item=record.item,
        timeline=record.timeline,
        memory_capacity_bytes=record.environment.device.memory_bytes,
        steps_planned=_steps_planned(case),
        flops_per_item=flops.per_item if flops else None,
        peak_tflops=flops.peak_tflops if flops else None,
        peak_source=flops.peak_source if flops else None,
    )


def _steps_planned(case: RecordCase) -> int | None:
    plan = case.record.plan
    if (plan.limits.full and case.record.quality.reached) or case.record.ended in (ITEMS, CAP_OF_ITEMS):
        return len(case.ranks[0].compute_ns)
    return plan.last_step(first_step=0, steps_per_epoch=case.steps_per_epoch, items_per_step=None)


def _length_is_known(case: RecordCase) -> bool:
    plan = case.record.plan
    if plan.limits.items is not None or plan.recipe.get("items"):
        return case.record.ended in (ITEMS, CAP_OF_ITEMS)  # the record does not say how many items a step has
    if not plan.limits.full or case.record.quality.reached:
        return True
    return (case.steps_per_epoch is not None or bool(plan.recipe.get("steps"))) and not case.resumed


@check("completed", "the share completed is that of a whole number of planned steps")
def completed(case: RecordCase) -> Iterator[CheckResult]:
    value, steps = case.value("completed"), case.whole.steps
    if _length_is_known(case):  # then it was recomputed above
        return
    if value is None:
        raise CannotCheckError("the record does not say how many steps an epoch has")
    if not 0 <= value <= 100:
        yield wrong(f"{value!r} %", "a share lies between 0 and 100 %", "the metric")
    elif steps and value < 100 and abs(100 * steps / value - round(100 * steps / value)) > 1e-6 * 100 * steps / value:
        yield wrong(f"{steps} steps are {value!r} %", "no whole number of planned steps gives that", "the metric")


@check("time-to-target", "the time to target lies where the evaluation that reached it lies")
def time_to_target(case: RecordCase) -> Iterator[CheckResult]:
    record, value = case.record, case.value("time_to_target")
    if "time_to_target" not in record.metrics:
        raise CannotCheckError("the record does not have it")
    goal = float(record.plan.recipe["target"])
    hits = [
        evaluation
        for evaluation in record.quality.history
        if record.quality.name in evaluation.values
        and reached(evaluation.values[record.quality.name], goal, record.quality.better)
    ]
    if value is None:
        if hits:
            yield wrong(
                f"step {hits[0].step}: {hits[0].values[record.quality.name]:g}",
                "an evaluation met the target, and no time is given",
                "the metric and the evaluations",
            )
        elif (reason := record.metrics["time_to_target"].unavailable) != METRICS["time_to_target"].missing:
            yield wrong(f"{reason!r}", "another reason is given where a target was not reached", "the metric")
        return
    if not hits:
        yield wrong(f"{value!r} s", "no evaluation met the target", "the metric and the evaluations")
        return
    if case.resumed or record.restarts:
        raise CannotCheckError("the run was resumed or restarted, so that its steps do not tell the time")
    # rank 0 keeps the time of evaluations; what no step accounts for may lie before or after
    trace, step, last = case.ranks[0], hits[0].step, hits[0] is record.quality.history[-1]
    phases = trace.phases_ns
    before = phases.get("startup", 0) + phases.get("init", 0) + sum(trace.wait_ns[:step]) + sum(trace.compute_ns[:step])
    before += phases.get("evaluate", 0) if last else 0
    after = sum(trace.wait_ns[step:]) + sum(trace.compute_ns[step:])
    least, most = before / 1e9, (case.total_ns(trace) - after) / 1e9
    if not least * (1 - 1e-9) <= value <= most * (1 + 1e-9):
        yield wrong(
            f"{value!r} s; step {step} was evaluated between {least:.2f} and {most:.2f} s",
            "the time to target ends at the evaluation that met it",
            "the metric and the evaluations",
        )


CHECKS: tuple[Check[RecordCase], ...] = (metrics, completed, time_to_target)
