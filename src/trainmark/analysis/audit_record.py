"""Audits our own records: by their events where these are at hand, and by their own series in any case."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import trainmark
from trainmark import workloads
from trainmark.analysis import audit_events, peaks
from trainmark.analysis.audit_events import Case, figures
from trainmark.spec import endings, statistics
from trainmark.spec.audit import DAMAGED, CannotCheckError, Check, check, concluded, doubtful, look, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.doubts import CLOCKS_FAR_APART, Facts, collect
from trainmark.spec.metrics import METRICS, Measured, Quantity, measure, withhold
from trainmark.spec.precision import Precision, ran, scaled_share
from trainmark.spec.recipe import Recipe
from trainmark.spec.record import Evaluation, Record, coverage
from trainmark.spec.series import SeriesFile, StepSeries, thinned
from trainmark.spec.target import reached
from trainmark.spec.timeline import RankTrace
from trainmark.spec.topology import Topology
from trainmark.store.telemetry import most_points

SHORT = {field.name: field.metadata.get("short", "") for field in fields(Recipe)}
NOT_ON_THE_RECORD = {"sensed", "target_reached_ns"}
"""What metrics may need and a record holds no raw figure of: the events do."""
OF_EVENTS = ("torn-events", "no-sample", "resumed")
"""Doubts about what only the events tell: they may stand on a record, and nothing on it can confirm them."""
IN_OTHER_WORDS = ("init-from",)
"""Names a file, which a copy made to be shared calls otherwise."""
ROUNDED = 1e-5
"""Times of samples are kept with six digits."""
PEAKS = {
    "mem_device": ("memory_used_bytes", 2.0**30),
    "power_peak": ("power_w", 1.0),
    "temperature_peak": ("temperature_c", 1.0),
}
"""Metrics that are the highest sample of a sensor, and in which unit."""
MEANS = {"mem_steady": ("memory_used_bytes", 2.0**30), "power_steady": ("power_w", 1.0)}
"""Metrics that are means of a sensor's samples over steady training, likewise."""


def audit_record(record: Record, folder: Path | None = None) -> tuple[CheckResult, ...]:
    """Every check on a record; with the run's `folder`, against its events too."""
    document = json.loads(record.dumps()) if folder else record.to_json()
    return look(CHECKS, Case(record=record, document=document, folder=folder), record.run_id)


def audit_document(
    document: Mapping[str, Any],
    name: str,
    folder: Path | None = None,
    read: Callable[[SeriesFile], StepSeries] | None = None,
) -> tuple[CheckResult, ...]:
    """Every check on a record file's JSON; one that cannot be read as a record is wrong for that.

    With `read`, the series that a long run's record leaves to a file beside it.
    """
    title = "the file is a record, with the plan its fingerprint was taken of"
    try:
        record = Record.from_json(document, read)
    except DAMAGED as error:
        why, remedy = "no run writes a record that cannot be read", "who changed the file after it was written"
        return (concluded("readable", title, (wrong(str(error), why, remedy),), name),)
    case = Case(record=record, document=document, folder=folder)
    return (concluded("readable", title, (), name), *look(CHECKS, case, record.run_id))


# The plan


@check("name", "the run's id, its date and its plan agree")
def name(case: Case) -> Iterator[CheckResult]:
    record, plan = case.record, case.record.plan
    created = datetime.fromisoformat(record.created.replace("Z", "+00:00"))
    beginning = f"{plan.workload}-{plan.recipe_name}-{plan.topology}-{plan.precision}-{created:%Y%m%dT%H%M%S}-"
    if not (record.run_id.startswith(beginning) and re.fullmatch("[0-9a-f]{6}", record.run_id[len(beginning) :])):
        yield doubtful(
            f"{record.run_id}, created {record.created}",
            f"a run of this plan and time would be called {beginning} and six hexadecimal digits",
            "whether the record was renamed, its date changed, or its plan exchanged",
        )
    if (version := record.environment.trainmark) and version != record.trainmark:
        yield wrong(f"{record.trainmark} and {version}", "one run has one version of trainmark", "what was changed")


@check("workload", "item, data set, quality and recipe are the workload's own")
def workload(case: Case) -> Iterator[CheckResult]:
    record, plan, known = case.record, case.record.plan, workloads.facts_of(case.record)
    if known is None:
        raise CannotCheckError(f"nothing is known here of workload {plan.workload!r}")
    said, expected = record.quality, known.quality
    if plan.recipe_name not in known.recipes:
        yield wrong(f"recipe {plan.recipe_name!r}", f"{plan.workload} has no such recipe", "what was changed")
    for what, found, own in (
        ("item", record.item, known.item),
        ("data set", plan.data.name, known.data_set),
        ("quality", (said.name, said.unit, said.better), (expected.name, expected.unit, expected.better)),
    ):
        if found != own:
            yield wrong(f"{what} {found!r}", f"{plan.workload} has {own!r}", "which workload this really was, if any")


@check("deviations", "what is said to differ from the reference recipe differs as said")
def deviations(case: Case) -> Iterator[CheckResult]:
    plan, known = case.record.plan, workloads.facts_of(case.record)
    reference = known.reference.recipe if known and known.reference else {}
    said = {deviation.name: deviation for deviation in plan.deviations}
    why, remedy = "fix_hp would tell a reader something else than what was run", "the deviations of the plan"
    if len(said) != len(plan.deviations):
        yield wrong(f"{len(plan.deviations)} deviations, {len(said)} names", "a field differs once", remedy)
    for field, one in said.items():
        actual = plan.recipe.get(field)
        if not same(actual, one.actual) or same(one.reference, one.actual) or one.short != SHORT.get(field, one.short):
            differs = f"from {one.reference!r} to {one.actual!r}"
            yield wrong(f"{field} ({one.short}) {differs}, and the recipe's is {actual!r}", why, remedy)
    for field in reference.keys() & plan.recipe.keys():  # older plans do not have every field
        stated = said[field].reference if field in said else plan.recipe[field]
        if not same(stated, reference[field]):
            differs = f"is {stated!r} by the record" if field in said else f"{stated!r} is not said to differ"
            yield wrong(f"{field} {differs}, and the reference's is {reference[field]!r}", why, remedy)


# The series


@check("series", "every rank is there, with a time, a count and a loss for every step")
def series(case: Case) -> Iterator[CheckResult]:
    record, traces, steps = case.record, case.record.timeline.ranks, case.record.timeline.steps
    valid, topology = record.status == "valid", Topology.parse(record.plan.topology)
    numbers = [trace.rank for trace in traces]
    expected = [rank for rank in range(topology.devices) if valid or rank in numbers]
    if numbers != expected or len({trace.host for trace in traces if trace.host}) > topology.nodes:
        yield wrong(f"ranks {numbers} of a {topology} run", "one of them is missing or too many", "the series")
    if record.means_only and not record.means_only.damaged:
        raise CannotCheckError(str(record.means_only))
    if record.series_file:
        yield from _summary(record)
    for trace in traces if not record.series_file else ():
        times = [trace.wait_ns, trace.compute_ns, trace.items, *([trace.exchange_ns] if trace.exchange_ns else [])]
        if len({len(kept) for kept in times} | ({steps} if valid else set())) > 1:
            shown = ", ".join(str(len(kept)) for kept in times)
            yield wrong(f"rank {trace.rank}: {shown} of {steps}", "a step leaves one value in each", "what was cut")
    if len({trace.steps for trace in traces}) > 1 and valid:
        yield wrong(", ".join(str(trace.steps) for trace in traces[:8]), "all ranks take the same steps", "the series")
    if len({bool(trace.exchanged) for trace in traces if trace.steps}) > 1:
        yield wrong("some ranks have it, some not", "the exchange is measured on all or on none", "the series")
    known, missing = workloads.facts_of(record), list(record.loss).count(None)
    if len(record.loss) != steps or (valid and missing):
        said = f"{len(record.loss)} losses, {missing} not finite, {steps} steps"
        yield wrong(said, "a valid run has a finite loss for every step", "the losses, and the status")
    least = known.least_loss if known and known.least_loss is not None else -math.inf
    if any(loss is not None and not least <= loss < math.inf for loss in record.loss):
        yield wrong(f"below {least:g}, or without end", "there is no such loss", "the losses")


def _summary(record: Record) -> Iterator[CheckResult]:
    """What a long run's record keeps of its series, against the file that holds them."""
    kept, slowest = record.timeline, record.timeline.slowest
    if record.means_only:
        yield wrong(str(record.means_only), "the series were changed after the record was made", "who can write there")
        return
    if record.points != thinned(record.steps, kept.steady_from):
        yield wrong("series.points", "they are not the means of the series beside the record", "the record")
    part = slice(kept.warmup_steps, kept.steps)
    items = sum(kept.items_of_steps[part])
    if slowest.part(part)[:3] != kept.counted(slowest)[:3] or items != kept.items:
        said = f"rank {slowest.rank}: {kept.counted(slowest)}, {kept.items} items of all"
        yield wrong(said, f"its series give {slowest.part(part)[:3]}, and {items} items", "the sums of the ranks")


@check("items", "every step trained as many items as the plan's batch asks for")
def items(case: Case) -> Iterator[CheckResult]:
    plan, known = case.record.plan, workloads.facts_of(case.record)
    if known is None or known.most_items_per_sample is None:
        raise CannotCheckError("nothing is known here of how many items a sample has")
    batch = int(plan.recipe["batch_per_device"]) * int(plan.recipe.get("accumulate", 1))
    # where a batch of one leaves a remainder, some rank gets two
    least, most = 0 if plan.skip_bad else 1, max(2, batch) * known.most_items_per_sample
    for trace in case.record.timeline.ranks:
        if trace.sums and not least * trace.steps <= trace.whole.items <= most * trace.steps:
            yield wrong(
                f"rank {trace.rank}: {trace.whole.items} {case.record.item} in {trace.steps} steps, batch {batch}",
                f"a step has {least} to {most} of them",
                "the sums of the ranks, and the recipe's batch",
            )
        if odd := [(step, count) for step, count in enumerate(trace.items) if not least <= count <= most]:
            yield wrong(
                f"rank {trace.rank}, step {odd[0][0]}: {odd[0][1]} {case.record.item}, batch {batch}",
                f"a step has {least} to {most} of them",
                "the items of the series, and the recipe's batch",
            )


@check("warm-up", "warm-up is what the series themselves show")
def warm_up(case: Case) -> Iterator[CheckResult]:
    if case.older:
        raise CannotCheckError("the record is of a version that told warm-up otherwise")
    _need_steps(case.record)
    timeline, full = case.record.timeline, case.record.plan.limits.full
    whole = replace(timeline, warmup_steps=0, steady_from=0)
    steady = statistics.steady_start(whole.compute_s, whole.step_items) if whole.steps else 0
    warmup = 0 if full else steady
    if (timeline.steady_from, timeline.warmup_steps) != (steady, warmup):
        yield wrong(
            f"steady from {timeline.steady_from}, {timeline.warmup_steps} left out; computed {steady} and {warmup}",
            "which steps count is decided by the series, never by hand",
            "whether slow steps were hidden as warm-up",
        )
    expected = coverage(full=full, steps=whole.steps, warmup=warmup)
    if figures(case.record.coverage) != figures(expected):
        yield wrong(f"{case.record.coverage!r}", f"the throughputs cover {expected}", "the words on the record")


@check("phases", "phases are the sums of the series, and their sum is e2e_time")
def phases(case: Case) -> Iterator[CheckResult]:
    computed = {phase: ns / 1e9 for phase, ns in case.record.timeline.phases_ns.items()}
    said = case.document["phases"]
    unlike = [phase for phase in {**computed, **said} if not same(said.get(phase), computed.get(phase))]
    if unlike:
        shown = ", ".join(f"{phase} {said.get(phase)!r}, computed {computed.get(phase)!r}" for phase in unlike)
        yield wrong(shown, "a phase is the sum of what was charged to it", "the phases, and the series")
    total, e2e = sum(said.values()), _value(case.record, "e2e_time")
    if not same(total, e2e) and "e2e_time" in case.record.metrics:
        yield wrong(f"sum {total!r} s, e2e_time {e2e!r} s", "phases never overlap and leave nothing out", "the phases")
    lost = sum(restart.lost_s for restart in case.record.restarts)
    charged = case.record.timeline.ranks[0].phases_ns.get("restart", 0) / 1e9
    if not same(lost, charged, 1e-6):
        yield wrong(f"{lost!r} s lost by restarts, {charged!r} s charged", "both are one", "the restarts")


# What follows from them


@check("metrics", "every metric and its interval follow from the series")
def metrics(case: Case) -> Iterator[CheckResult]:
    record = case.record
    _need_steps(record)
    flops = record.environment.flops
    computed = measure(
        Measured(
            item=record.item,
            timeline=record.timeline,
            memory_capacity_bytes=record.environment.device.memory_bytes,
            steps_planned=_steps_planned(record) if _length_is_known(record) else None,
            flops_per_item=flops.per_item if flops else None,
            peak_tflops=flops.peak_tflops if flops else None,
            peak_source=flops.peak_source if flops else None,
            peak_error=flops.peak_error if flops else None,
            others=None if case.older else record.environment.others,
        )
    )
    for alias, expected in (withhold(computed) if record.status == "invalid" else computed).items():
        # not recorded: the version that wrote it did not have the metric yet
        if (found := record.metrics.get(alias)) is None:
            continue
        followed = not NOT_ON_THE_RECORD.intersection(METRICS[alias].needs)
        followed = followed and (alias != "completed" or _length_is_known(record))
        if unlike := list(_unlike(found, expected, followed=followed)):
            yield wrong(
                f"{alias}: " + "; ".join(unlike),
                "recomputed from the series of the record it is another",
                "the metric and the series: one of them was changed",
            )


def _unlike(found: Quantity, expected: Quantity, *, followed: bool) -> Iterator[str]:
    if found.unit != expected.unit:
        yield f"unit {found.unit!r}, not {expected.unit!r}"
    if (found.value is None) != bool(found.unavailable):
        yield "a value or a reason why there is none, never both"
    if not followed:
        return
    (low, high), (lowest, highest) = found.interval or (None, None), expected.interval or (None, None)
    for what, one, other in (
        ("value", found.value, expected.value),
        ("interval from", low, lowest),
        ("interval to", high, highest),
    ):
        if not same(one, other):
            yield f"{what} {one!r}, computed {other!r}"


def _steps_planned(record: Record) -> int | None:
    if (record.plan.limits.full and record.quality.reached) or record.ended in (endings.ITEMS, endings.CAP_OF_ITEMS):
        return record.timeline.ranks[0].steps
    return record.plan.last_step(first_step=0, steps_per_epoch=_steps_per_epoch(record), items_per_step=None)


def _length_is_known(record: Record) -> bool:
    plan = record.plan
    if plan.limits.items is not None or plan.recipe.get("items"):
        return record.ended in (endings.ITEMS, endings.CAP_OF_ITEMS)  # it does not say how many items a step has
    if not plan.limits.full or record.quality.reached:
        return True
    return (_steps_per_epoch(record) is not None or bool(plan.recipe.get("steps"))) and plan.resume_from is None


def _steps_per_epoch(record: Record) -> int | None:
    """From the evaluations, which say at which step and at which part of which epoch they stood."""
    return next((round(one.step / one.epoch) for one in record.quality.history if one.epoch and one.epoch > 0), None)


@check("sensed", "peaks are those of the samples, and energy is power by time")
def sensed(case: Case) -> Iterator[CheckResult]:
    record, machines = case.record, case.record.telemetry.machines
    if not machines:
        raise CannotCheckError("nothing was sampled during the run")
    found, thinned = [], []
    for alias, (source, scale) in PEAKS.items():
        if (value := _value(record, alias)) is None:
            continue
        if (highest := _highest(record, source)) is None:
            thinned.append(alias)
        elif not same(float(f"{value * scale:.6g}"), highest):
            said = f"{alias} {value!r}, highest sample {highest / scale!r}"
            found.append(wrong(said, "it is the highest sample taken while it trained", "the metric and the samples"))
    for alias, (source, scale) in MEANS.items():
        if (value := _value(record, alias)) is None:
            continue
        if (mean := _steady_mean(record, source)) is None:
            thinned.append(alias)
        elif not same(value * scale, mean, ROUNDED):
            said = f"{alias} {value!r}, mean of samples {mean / scale!r}"
            found.append(wrong(said, "it is the mean of those of steady training", "the metric and the samples"))
    energy, power, each = (_value(record, alias) for alias in ("energy", "power", "energy_per_item"))
    items = sum(trace.whole.items for trace in record.timeline.ranks)
    if None not in (energy, each) and not same(each, (energy or 0) / items):
        found.append(wrong(f"{each!r} J an item; {energy!r} J, {items} items", "it is their ratio", "the metrics"))
    for_joule = _value(record, "items_per_joule")
    if None not in (energy, for_joule) and not same((for_joule or 0) * (energy or 0), items):
        found.append(
            wrong(f"{for_joule!r} items a joule; {energy!r} J, {items} items", "it is their ratio", "the metrics")
        )
    device_s = sum((span[-1] - span[0]) * len(one.devices) for one in machines if (span := one.training_s))
    if None not in (energy, power) and not same(energy, (power or 0) * device_s, 0.01):
        said = f"{energy!r} J; {power!r} W for {device_s:.6g} s of devices"
        found.append(doubtful(said, "energy is power by time", "the metrics, and the span that was trained in"))
    if thinned and not found:
        raise CannotCheckError(f"what {', '.join(thinned)} rests on was thinned, or lies at the edge of the training")
    yield from found


def _highest(record: Record, source: str) -> float | None:
    """The highest sample of the training part; None where it cannot be told exactly by what the record kept."""
    samples = _samples(record, source)
    return None if samples is None else max((value for one in samples for value in one), default=-math.inf)


def _steady_mean(record: Record, source: str) -> float | None:
    """Over devices, of the means of their samples of steady training; None likewise."""
    samples = _samples(record, source, later_s=record.timeline.settling_ns / 1e9)
    return fmean(fmean(one) for one in samples) if samples and all(samples) else None


def _samples(record: Record, source: str, later_s: float = 0.0) -> list[list[float]] | None:
    """Of each device those of the training part, from so much later than its beginning on; None where a series was
    thinned, or a sample lies at an edge."""
    found, points = [], most_points(Topology.parse(record.plan.topology).nodes)
    for machine in record.telemetry.machines:
        for device in machine.devices:
            series = device.series.get(source)
            if series is None or len(machine.training_s) != 2:
                continue
            begin_s, end_s = machine.training_s[0] + later_s, machine.training_s[1]
            if len(series.at_s) >= points:
                return None
            if any(min(abs(at_s - begin_s), abs(at_s - end_s)) <= ROUNDED * end_s for at_s in series.at_s):
                return None
            pairs = zip(series.at_s, series.values, strict=True)
            found.append([value for at_s, value in pairs if begin_s < at_s < end_s])
    return found


# The trained model, and the end


@check("quality", "the quality is that of the last evaluation, judged by the recipe's target")
def quality(case: Case) -> Iterator[CheckResult]:
    said, history = case.record.quality, case.record.quality.history
    goal = float(case.record.plan.recipe["target"])
    if not same(said.goal, goal):
        yield wrong(f"goal {said.goal!r}, target {goal!r}", "the recipe's target is the goal", "the plan and the goal")
    last = history[-1].values.get(said.name) if history else None
    if not same(said.value, last):
        yield wrong(
            f"{said.name} {said.value!r}, last evaluated {last!r}",
            "the quality of a run is what its last evaluation found, not its best",
            "the evaluations",
        )
    if said.reached is not (last is not None and reached(last, goal, said.better)):
        yield wrong(
            f"{said.name} {said.value!r}, goal {said.goal!r}, reached {said.reached!r}",
            "the verdict does not follow from the figures",
            "the evaluations and the target",
        )


@check("evaluations", "evaluations follow each other, score the same samples, and the time to target is theirs")
def evaluations(case: Case) -> Iterator[CheckResult]:
    record, history = case.record, case.record.quality.history
    steps, per_epoch = [one.step for one in history], _steps_per_epoch(record)
    most = math.inf if record.plan.resume_from else record.timeline.steps
    if steps != sorted(set(steps)) or not all(0 <= step <= most for step in steps):
        yield wrong(f"at steps {steps}, {most} done", "evaluations follow each other", "their steps")
    for one in history:
        if one.epoch is not None and not same(float(one.epoch), one.step / per_epoch if per_epoch else 0.0):
            said = f"step {one.step} at epoch {one.epoch!r}, {per_epoch} steps an epoch"
            yield wrong(said, "an epoch has one number of steps", "the evaluations")
    counts = {one.samples for one in history}
    if len(counts) > 1 or min(counts, default=1) < 1:
        yield wrong(f"samples {sorted(counts)}", "every evaluation scores the whole validation set once", "them")
    if (told := record.metrics.get("time_to_target")) is None:
        return
    hit = next((one for one in history if _reaches(record, one)), None)
    if (told.value is None) != (hit is None):
        yield wrong(
            f"time_to_target {told.value!r} {told.unavailable or 's'}, reached at step {hit and hit.step!r}",
            "there is a time where an evaluation met the target, and nowhere else",
            "the metric and the evaluations",
        )
    elif told.value is not None and hit and not (record.plan.resume_from or record.restarts or record.series_file):
        least_s, most_s = _when(record.timeline.ranks[0], hit, is_last=hit is history[-1])
        if not least_s * (1 - 1e-9) <= told.value <= most_s * (1 + 1e-9):
            yield wrong(
                f"{told.value!r} s; step {hit.step} was evaluated between {least_s:.2f} and {most_s:.2f} s",
                "the time to target ends at the evaluation that met it",
                "the metric and the evaluations",
            )


def _reaches(record: Record, evaluation: Evaluation) -> bool:
    value = evaluation.values.get(record.quality.name)
    return value is not None and reached(value, float(record.plan.recipe["target"]), record.quality.better)


def _when(trace: RankTrace, evaluation: Evaluation, *, is_last: bool) -> tuple[float, float]:
    """Between which times it ended; what no step accounts for may lie before or after."""
    done, left = ((slice(evaluation.step)), slice(evaluation.step, None))
    before = sum(trace.phases_ns.get(phase, 0) for phase in ("startup", "init", *(["evaluate"] if is_last else [])))
    before += sum(trace.wait_ns[done]) + sum(trace.compute_ns[done])
    after = sum(trace.wait_ns[left]) + sum(trace.compute_ns[left])
    return before / 1e9, (sum(trace.phases_ns.values()) + trace.busy_ns - after) / 1e9


@check("scores", "every score is one the samples can have")
def scores(case: Case) -> Iterator[CheckResult]:
    known, history = workloads.facts_of(case.record), case.record.quality.history
    if known is None or not history:
        raise CannotCheckError("the run was not evaluated" if known else "nothing is known here of its scores")
    for one, facts in ((one, facts) for one in history for facts in known.qualities if facts.name in one.values):
        value = one.values[facts.name]
        where, right = f"step {one.step}: {facts.name} {value!r} of {one.samples} samples", value * one.samples / 100
        least, most = (-math.inf if facts.least is None else facts.least), one.values.get(facts.never_above or "")
        if not least <= value <= (math.inf if facts.most is None else facts.most):
            yield wrong(where, "such a score does not exist", "the evaluations")
        elif facts.counted and abs(right - round(right)) > 1e-6 * max(1.0, right):
            why = f"{facts.word} counts right samples, and this is no whole number of them"
            yield wrong(where, why, "the evaluations")
        if most is not None and value > most:
            yield wrong(where, f"what is right for it is right for {facts.never_above} too, of {most!r}", "the scores")


@check("ending", "the status, the reason for the end and the steps agree")
def ending(case: Case) -> Iterator[CheckResult]:
    record, limits, recipe = case.record, case.record.plan.limits, case.record.plan.recipe
    if (record.status == "valid") != (record.ended in endings.COMPLETE):
        yield wrong(f"{record.status}: {record.ended}", "this end does not belong to this status", "the log of the run")
    clock = record.environment.clock
    far_apart = clock is not None and clock.apart > CLOCKS_FAR_APART
    if clock and far_apart and record.status == "valid":
        yield wrong(
            f"{clock.device_s:.4g} s by the device's events, {clock.host_s:.4g} s by the host's clock",
            "a device that counts time unlike the host gives no valid result",
            "the device's events",
        )
    if record.status == "invalid" and not far_apart and None not in record.loss and "finite" not in record.ended:
        yield doubtful(
            f"{record.status}: {record.ended}",
            "every loss on the record is finite, and the clocks agree",
            "the log of the run",
        )
    timeline, history, cap = record.timeline, record.quality.history, int(recipe["epochs"])
    epoch = history[-1].epoch if history else None
    # a limit in seconds begins to count before everything is ready
    after_start_s = timeline.seconds(*timeline.phases_ns) - timeline.seconds("startup")
    target_ended_it = limits.to_target and record.quality.reached
    broken = {
        endings.STEPS: limits.steps is None or (timeline.steps != limits.steps and record.plan.resume_from is None),
        endings.ITEMS: limits.items is None,
        endings.SETTLED: limits.half_width is None,
        endings.SECONDS: limits.seconds is None or after_start_s < limits.seconds,
        endings.BUDGET: limits.wall_s is None,
        endings.TARGET: not target_ended_it,
        endings.CAP: epoch not in (None, cap) or target_ended_it,
        endings.EPOCHS: limits.epochs is None or epoch not in (None, limits.epochs) or limits.epochs >= cap,
    }
    if broken.get(record.ended, False) or timeline.steps > (limits.steps or math.inf):
        yield wrong(
            f"{record.ended}: {timeline.steps} steps, {after_start_s:.1f} s, "
            f"{'no evaluation' if epoch is None else f'last evaluated at epoch {epoch:g}'}; asked for: {limits}",
            "what was asked for and what was done do not end so",
            "the series, which may have been cut, and the plan's limits",
        )


# The machine, and the doubts


@check("precision", "what ran is what the first step's products were computed in")
def precision(case: Case) -> Iterator[CheckResult]:
    if (proof := case.record.environment.precision) is None:
        raise CannotCheckError("the record holds no proof of its precision")
    asked = Precision.parse(case.record.plan.precision)
    if proof.asked != asked.name or proof.autocast not in (None, asked.autocast):
        said = f"{proof.asked}, autocast to {proof.autocast!r}"
        yield wrong(said, f"the plan asks for {asked.name}", "the plan and the proof")
    found = ran(proof.multiplications, proof.weights, proof.tf32, proof.autocast, proof.inside)
    if proof.ran != found:
        yield wrong(
            f"{proof.ran} on the record; its products make it {found}",
            "the word for what ran follows from the products that were watched",
            "the label, and what was changed in the proof",
        )
    share = scaled_share(proof.multiplications)
    if proof.scaled_share is not None and not same(proof.scaled_share, share, 1e-6):
        yield wrong(
            f"{100 * proof.scaled_share:.1f} % of the multiplications in eight bits, by their types {100 * share:.1f}",
            "what share had factors of eight bits follows from the products that were watched",
            "the proof",
        )
    if (proof.loss_scale is not None) != asked.scales_loss or (proof.skipped_steps and not asked.scales_loss):
        said = f"loss scale {proof.loss_scale!r}, {proof.skipped_steps} steps skipped"
        yield wrong(said, f"{asked.name} scales {'its' if asked.scales_loss else 'no'} loss", "the proof")


@check("machine", "the peak is the card's, and no rank held more memory than there is")
def machine(case: Case) -> Iterator[CheckResult]:
    environment, total = case.record.environment, _value(case.record, "mem_total")
    for alias, most in (("mem", 1.0), ("mem_device", 1.05)):  # a card's own tool counts what its framework cannot see
        used = _value(case.record, alias)
        if used is not None and not 0 <= used <= (total or math.inf) * most:
            yield wrong(f"{alias} {used:g} of {total or 0:g} GiB", "more was used than there is", "the metrics")
    known, flops = peaks.card(environment.device.name), environment.flops
    said = flops.peak_tflops if flops else None
    family = Precision.parse(case.record.plan.precision).family
    sheet = known.tflops.get(family) if known else None
    if known and said is not None and sheet is not None and not same(said, sheet, 0.01):
        yield doubtful(
            f"{said:g} TFLOP/s; {sheet:g} by the {known.source}",
            f"another figure is known of this card in {family}",
            "the platform file that was used",
        )


@check("doubts", "every doubt the numbers ask for stands on the record, with its figures, and no other")
def doubts(case: Case) -> Iterator[CheckResult]:
    record, known = case.record, workloads.facts_of(case.record)
    _need_steps(record)
    # another version may not have known it, or told it otherwise
    bad = wrong if record.trainmark == trainmark.__version__ and not case.older else doubtful
    said = [doubt for doubt in record.doubts if doubt.code not in OF_EVENTS]
    reference = known.reference if known else None
    if reference is None:  # without its reference the doubt is taken at its word
        said = [doubt for doubt in said if doubt.code != "small-batch"]
    asked = Facts(
        plan=record.plan,
        status=record.status,
        timeline=record.timeline,
        metrics=record.metrics,
        quality=record.quality,
        environment=record.environment,
        telemetry=record.telemetry,
        reference_global_batch=reference.global_batch if reference else 0,
        restarts=record.restarts,
        loss=record.loss,
        data_facts=record.data_facts,
    )
    for doubt in collect(asked):
        alike = [other for other in said if other.code == doubt.code]
        if not alike:
            shown = f"{doubt.code}: {doubt.text}"
            yield bad(shown, "the numbers ask for this doubt, and it is not there", "who took it out")
            continue
        fits = (one for one in alike if one.code in IN_OTHER_WORDS or figures(one.text) == figures(doubt.text))
        if (found := next(fits, None)) is None:
            yield bad(f"{alike[0].code}: {alike[0].text}", f"it should say: {doubt.text}", "the doubts")
        said.remove(found or alike[0])
    for doubt in said:
        yield bad(f"{doubt.code}: {doubt.text}", "nothing on the record gives reason for it", "the doubts")
    told = [doubt.code for doubt in record.doubts if doubt.code in OF_EVENTS]
    resumes = record.plan.resume_from is not None and record.timeline.steps > 0
    if len(told) != len(set(told)) or ("resumed" in told) != resumes:
        yield wrong(", ".join(told) or "none", "a run that goes on from a checkpoint says so, once", "the doubts")


def _need_steps(record: Record) -> None:
    if record.means_only:
        raise CannotCheckError(str(record.means_only))


def _value(record: Record, alias: str) -> float | None:
    quantity = record.metrics.get(alias)
    return None if quantity is None else quantity.value


CHECKS: tuple[Check[Case], ...] = (
    *audit_events.RECORD_CHECKS,
    name,
    workload,
    deviations,
    series,
    items,
    warm_up,
    phases,
    metrics,
    sensed,
    quality,
    evaluations,
    scores,
    ending,
    precision,
    machine,
    doubts,
)
