"""Checks a record by itself: its sums, its throughputs, its verdicts, and what no machine can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import trainmark
from trainmark import workloads
from trainmark.analysis import peaks
from trainmark.record import endings
from trainmark.record.audit import CannotCheckError, Check, check, doubtful, is_same, mark_unchecked, run_checks, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import CLOCKS_FAR_APART, collect_doubts
from trainmark.record.metrics import THROUGHPUTS, Measured, measure, withhold
from trainmark.record.numbers import meets_goal
from trainmark.record.plan import Topology
from trainmark.record.precision import Precision, name_precision
from trainmark.record.record import RECORD_SCHEMA, Record
from trainmark.record.timeline import thin_series

FOLLOWING = (*THROUGHPUTS, "mfu")
"""Metrics that are computed again from the series of the record."""
HASHES = ("hashes", "the event files are those the record was made of")
REGATHERED = ("events", "the record is what its events make of it")
BY_EVENTS = (HASHES, REGATHERED)
"""Checks that need the run's events, by code and title."""
OF_EVENTS = ("torn-events", "no-sample", "resumed")
"""Doubts about what only the events tell: they may stand on a record, and nothing on it can confirm them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A record under audit."""

    record: Record
    document: Mapping[str, Any]
    """As it stands in its file, in whichever schema."""

    @property
    def older(self) -> bool:
        """Whether it was made by definitions of an earlier schema: of warm-up, drift and intervals."""
        return bool(self.document.get("schema") != RECORD_SCHEMA)


def check_record(record: Record) -> tuple[CheckResult, ...]:
    """What a record alone allows, in milliseconds: neither its events nor other records are read."""
    left = [mark_unchecked(code, title, "'trainmark audit' reads the run's events") for code, title in BY_EVENTS]
    return (*left, *run_checks(CHECKS, Case(record=record, document=record.to_json()), record.run_id))


@check("series", "every rank is there, with a time, a count and a loss for every step")
def series(case: Case) -> Iterator[CheckResult]:
    record, traces, steps = case.record, case.record.timeline.ranks, case.record.timeline.steps
    valid, topology = record.status == "valid", Topology.parse(record.plan.topology)
    numbers = [trace.rank for trace in traces]
    if numbers != [rank for rank in range(topology.devices) if valid or rank in numbers]:
        yield wrong(f"ranks {numbers} of a {topology} run", "one of them is missing or too many", "the series")
    if record.means_only and not record.means_only.damaged:
        raise CannotCheckError(str(record.means_only))
    if record.series_file:
        yield from _summary(record)
    for trace in traces if not record.series_file else ():
        counts = {len(kept) for kept in (trace.wait_ns, trace.compute_ns, trace.items)}
        if len(counts | ({steps} if valid else set())) > 1:
            evidence = f"rank {trace.rank}: {', '.join(map(str, sorted(counts)))} of {steps}"
            yield wrong(evidence, "a step leaves one value in each", "what was cut")
    missing = list(record.loss).count(None)
    if len(record.loss) != steps or (valid and missing):
        evidence = f"{len(record.loss)} losses, {missing} not finite, {steps} steps"
        yield wrong(evidence, "a valid run has a finite loss for every step", "the losses, and the status")


def _summary(record: Record) -> Iterator[CheckResult]:
    """What a long run's record keeps of its series, against the file that holds them."""
    kept, slowest = record.timeline, record.timeline.slowest
    if record.means_only:
        yield wrong(str(record.means_only), "the series were changed after the record was made", "who can write there")
        return
    if record.points != thin_series(record.steps, kept.steady_from):
        yield wrong("series.points", "they are not the means of the series beside the record", "the record")
    part = slice(kept.warmup_steps, kept.steps)
    items = sum(kept.items_of_steps[part])
    if slowest.part(part)[:3] != kept.sum_counted(slowest)[:3] or items != kept.items:
        evidence = f"rank {slowest.rank}: {kept.sum_counted(slowest)}, {kept.items} items of all"
        yield wrong(evidence, f"its series give {slowest.part(part)[:3]}, and {items} items", "the sums of the ranks")


@check("phases", "phases are the sums of the series, and their sum is e2e_time")
def phases(case: Case) -> Iterator[CheckResult]:
    computed = {phase: ns / 1e9 for phase, ns in case.record.timeline.phases_ns.items()}
    recorded = case.document["phases"]
    unlike = [phase for phase in {**computed, **recorded} if not is_same(recorded.get(phase), computed.get(phase))]
    if unlike:
        shown = ", ".join(f"{phase} {recorded.get(phase)!r}, computed {computed.get(phase)!r}" for phase in unlike)
        yield wrong(shown, "a phase is the sum of what was charged to it", "the phases, and the series")
    total, e2e = sum(recorded.values()), _value(case.record, "e2e_time")
    if not is_same(total, e2e) and "e2e_time" in case.record.metrics:
        yield wrong(f"sum {total!r} s, e2e_time {e2e!r} s", "phases never overlap and leave nothing out", "the phases")


@check("metrics", "throughputs, their intervals and mfu follow from the series")
def metrics(case: Case) -> Iterator[CheckResult]:
    record = case.record
    _need_steps(record)
    computed = measure(Measured(item=record.item, timeline=record.timeline, flops=record.environment.flops))
    expected = withhold(computed) if record.status == "invalid" else computed
    for alias in (alias for alias in FOLLOWING if alias in record.metrics):
        one, other = record.metrics[alias], expected[alias]
        recorded, found = ((each.unit, each.value, *(each.interval or (None, None))) for each in (one, other))
        if not all(map(is_same, recorded, found)):
            yield wrong(
                f"{alias}: {recorded}, computed {found}",
                "recomputed from the series of the record it is another",
                "the metric and the series: one of them was changed",
            )


@check("quality", "the quality is that of the last evaluation, judged by the recipe's target")
def quality(case: Case) -> Iterator[CheckResult]:
    recorded, known = case.record.quality, workloads.facts_of(case.record)
    goal = float(case.record.plan.recipe["target"])
    if not is_same(recorded.goal, goal):
        yield wrong(
            f"goal {recorded.goal!r}, target {goal!r}", "the recipe's target is the goal", "the plan and the goal"
        )
    last = recorded.history[-1].values.get(recorded.name) if recorded.history else None
    if not is_same(recorded.value, last):
        yield wrong(
            f"{recorded.name} {recorded.value!r}, last evaluated {last!r}",
            "the quality of a run is what its last evaluation found, not its best",
            "the evaluations",
        )
    if recorded.reached is not (last is not None and meets_goal(last, goal, recorded.better)):
        yield wrong(
            f"{recorded.name} {recorded.value!r}, goal {recorded.goal!r}, reached {recorded.reached!r}",
            "the verdict does not follow from the figures",
            "the evaluations and the target",
        )
    facts = known.find_quality(recorded.name) if known else None
    least, most = (facts.least, facts.most) if facts else (None, None)
    if last is not None and not (-math.inf if least is None else least) <= last <= (math.inf if most is None else most):
        yield wrong(f"{recorded.name} {last!r}", "such a score does not exist", "the evaluations")


@check("ending", "the status, the reason for the end and the steps agree")
def ending(case: Case) -> Iterator[CheckResult]:
    record, clock = case.record, case.record.environment.clock
    if (record.status == "valid") != (record.ended in endings.COMPLETE):
        yield wrong(f"{record.status}: {record.ended}", "this end does not belong to this status", "the log of the run")
    if clock is not None and clock.apart > CLOCKS_FAR_APART and record.status == "valid":
        yield wrong(
            f"{clock.device_s:.4g} s by the device's events, {clock.host_s:.4g} s by the host's clock",
            "a device that counts time unlike the host gives no valid result",
            "the device's events",
        )
    limit = record.plan.limits.steps or math.inf
    if record.timeline.steps > limit or (
        record.ended == endings.STEPS and record.timeline.steps != limit and record.plan.resume_from is None
    ):
        evidence = f"{record.ended}: {record.timeline.steps} steps, {record.plan.limits} asked for"
        yield wrong(
            evidence, "what was asked for and what was done do not end so", "the series, which may have been cut"
        )


@check("precision", "the recorded precision is the one the first step's matmuls ran in")
def precision(case: Case) -> Iterator[CheckResult]:
    if (proof := case.record.environment.precision) is None:
        raise CannotCheckError("the record holds no proof of its precision")
    found = name_precision(proof.multiplications, proof.weights, proof.tf32, proof.autocast, proof.inside)
    if proof.ran != found:
        yield wrong(
            f"{proof.ran} on the record; its matmuls make it {found}",
            "the precision follows from the matmuls that were recorded",
            "the label, and what was changed in the proof",
        )


@check("machine", "the peak is the card's, and no rank held more memory than there is")
def machine(case: Case) -> Iterator[CheckResult]:
    environment, total = case.record.environment, _value(case.record, "mem_total")
    for alias, most in (("mem", 1.0), ("mem_device", 1.05)):  # a card's own tool counts what its framework cannot see
        used = _value(case.record, alias)
        if used is not None and not 0 <= used <= (total or math.inf) * most:
            yield wrong(f"{alias} {used:g} of {total or 0:g} GiB", "more was used than there is", "the metrics")
    known, flops = peaks.find_card(environment.device.name), environment.flops
    peak = flops.peak_tflops if flops else None
    family = Precision.parse(case.record.plan.precision).family
    sheet = known.tflops.get(family) if known else None
    if known and peak is not None and sheet is not None and not is_same(peak, sheet, 0.01):
        yield doubtful(
            f"{peak:g} TFLOP/s; {sheet:g} by the {known.source}",
            f"another figure is known of this card in {family}",
            "the platform file that was used",
        )


@check("doubts", "every doubt the numbers ask for stands on the record, and no other")
def doubts(case: Case) -> Iterator[CheckResult]:
    record, known = case.record, workloads.facts_of(case.record)
    _need_steps(record)
    # another version may not have known it
    bad = wrong if record.trainmark == trainmark.__version__ and not case.older else doubtful
    reference = known.reference if known else None
    asked = collect_doubts(record, reference_global_batch=reference.global_batch if reference else 0)
    # without its reference, that doubt is taken at its word
    unknown = OF_EVENTS if reference else (*OF_EVENTS, "small-batch")
    expected, recorded = {doubt.code for doubt in asked}, {doubt.code for doubt in record.doubts}
    for doubt in asked:
        if doubt.code not in recorded:
            shown = f"{doubt.code}: {doubt.text}"
            yield bad(shown, "the numbers ask for this doubt, and it is not there", "who took it out")
    for doubt in record.doubts:
        if doubt.code not in expected and doubt.code not in unknown:
            yield bad(f"{doubt.code}: {doubt.text}", "nothing on the record gives reason for it", "the doubts")


def _need_steps(record: Record) -> None:
    if record.means_only:
        raise CannotCheckError(str(record.means_only))


def _value(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return None if quantity is None else quantity.value


CHECKS: tuple[Check[Case], ...] = (series, phases, metrics, quality, ending, precision, machine, doubts)
