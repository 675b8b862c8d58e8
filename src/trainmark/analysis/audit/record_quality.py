"""Checks on what a record says of the trained model, and of why the run ended."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec import endings
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.target import reached
from trainmark.spec.workload_facts import QualityFacts


@check("quality", "the quality is that of the last evaluation, judged by the recipe's target")
def quality(case: RecordCase) -> Iterator[CheckResult]:
    said, history = case.record.quality, case.record.quality.history
    goal = case.record.plan.recipe["target"]
    if not same(said.goal, float(goal)):
        yield wrong(f"goal {said.goal!r}, target {goal!r}", "the recipe's target is the goal", "the plan and the goal")
    last = history[-1].values.get(said.name) if history else None
    if not same(said.value, last):
        yield wrong(
            f"{said.name} {said.value!r}, last evaluated {last!r}",
            "the quality of a run is what its last evaluation found, not its best",
            "the evaluations",
        )
    if said.better not in ("higher", "lower"):
        yield wrong(f"better {said.better!r}", "higher is better, or lower", "the words on the record")
    elif said.reached is not (last is not None and reached(last, float(goal), said.better)):
        yield wrong(
            f"{said.name} {said.value!r}, goal {said.goal!r}, reached {said.reached!r}",
            "the verdict does not follow from the figures",
            "the evaluations and the target",
        )


@check("evaluations", "evaluations follow each other and score the same samples")
def evaluations(case: RecordCase) -> Iterator[CheckResult]:
    history = case.record.quality.history
    if not history:
        raise CannotCheckError("the run was not evaluated")
    steps = [evaluation.step for evaluation in history]
    if steps != sorted(set(steps)) or steps[0] < 0 or (not case.resumed and steps[-1] > case.whole.steps):
        yield wrong(f"at steps {steps}, {case.whole.steps} done", "evaluations follow each other", "their steps")
    per_epoch = case.steps_per_epoch
    for evaluation in history:
        expected = evaluation.step / per_epoch if per_epoch else 0.0
        if evaluation.epoch is not None and not same(float(evaluation.epoch), expected):
            yield wrong(
                f"step {evaluation.step} at epoch {evaluation.epoch!r}, {per_epoch} steps an epoch",
                "an epoch has one number of steps",
                "the evaluations",
            )
    samples = {evaluation.samples for evaluation in history}
    if len(samples) > 1 or not all(isinstance(count, int) and count > 0 for count in samples):
        yield wrong(
            f"samples {sorted(samples)}", "every evaluation scores the whole validation set once", "the evaluations"
        )
    names = {tuple(evaluation.values) for evaluation in history}
    if len(names) > 1 and case.record.status == "valid":
        yield doubtful(
            "; ".join(", ".join(entry) for entry in names), "every evaluation scores the same", "the evaluations"
        )


@check("scores", "every score is one the samples can have")
def scores(case: RecordCase) -> Iterator[CheckResult]:
    history = case.record.quality.history
    if not history:
        raise CannotCheckError("the run was not evaluated")
    for evaluation in history:
        for name, value in evaluation.values.items():
            where = f"step {evaluation.step}: {name} {value!r}"
            right = value * evaluation.samples / 100
            known = case.facts.find_quality(name) if case.facts else None
            if not math.isfinite(value) or (known and not _within(known, value)):
                yield wrong(where, "such a score does not exist", "the evaluations")
            elif known and known.counted and abs(right - round(right)) > 1e-6 * max(1.0, right):
                yield wrong(
                    f"{where} of {evaluation.samples} samples",
                    f"{known.word} counts right samples, and this is no whole number of them",
                    "the evaluations",
                )
            above = evaluation.values.get(known.never_above) if known and known.never_above else None
            if known and above is not None and value > above:
                yield wrong(
                    f"{name} {value!r}, {known.never_above} {above!r}",
                    f"whatever counts as right for {name} counts for {known.never_above} too",
                    "the scores",
                )


def _within(known: QualityFacts, value: float) -> bool:
    return (known.least is None or value >= known.least) and (known.most is None or value <= known.most)


@check("ending", "the status, the reason for the end and the steps agree")
def ending(case: RecordCase) -> Iterator[CheckResult]:
    record, limits = case.record, case.record.plan.limits
    if record.status not in ("valid", "invalid", "incomplete"):
        yield wrong(f"status {record.status!r}", "there is no such status", "the words on the record")
    if (record.status == "valid") != (record.ended in endings.COMPLETE):
        yield wrong(f"{record.status}: {record.ended}", "this end does not belong to this status", "the log of the run")
    if record.status == "invalid" and not any(loss is None for loss in record.loss) and "finite" not in record.ended:
        yield doubtful(f"{record.status}: {record.ended}", "every loss on the record is finite", "the log of the run")
    history, steps, cap = record.quality.history, case.whole.steps, int(record.plan.recipe["epochs"])
    epoch = history[-1].epoch if history else None
    # a limit in seconds begins to count before everything is ready
    timeline = record.timeline
    after_start_s = timeline.seconds(*timeline.phases_ns) - timeline.seconds("startup")
    broken = {
        endings.STEPS: limits.steps is None or (steps != limits.steps and not case.resumed),
        endings.ITEMS: limits.items is None,
        endings.SETTLED: limits.half_width is None,
        endings.SECONDS: limits.seconds is None or after_start_s < limits.seconds,
        endings.TARGET: not (limits.full and record.quality.reached),
        endings.CAP: (epoch is not None and epoch != cap) or (limits.full and record.quality.reached),
        endings.EPOCHS: limits.epochs is None or (epoch is not None and epoch != limits.epochs) or limits.epochs >= cap,
    }
    if broken.get(record.ended, False):
        yield wrong(
            f"{record.ended}: {steps} steps, {after_start_s:.1f} s, "
            f"{'no evaluation' if epoch is None else f'last evaluated at epoch {epoch:g}'}; asked for: {limits}",
            "what was asked for and what was done do not end so",
            "the series, which may have been cut, and the plan's limits",
        )
    if limits.steps is not None and steps > limits.steps:
        yield wrong(f"{steps} steps, {limits.steps} asked for", "a run stops at its limit", "the series")


@check("leftovers", "what is listed beside the numbers is of the run")
def leftovers(case: RecordCase) -> Iterator[CheckResult]:
    for artifact in case.record.artifacts:
        if not artifact.file or artifact.file.startswith(("/", "\\")) or ".." in artifact.file.split("/"):
            yield wrong(f"artifact {artifact.file!r}", "artifacts lie in the run's own folder", "the file names")
    sample = case.facts.sample if case.facts else "sample"
    samples = f"{sample}s"
    for name, value in case.record.data_facts.items():
        if not math.isfinite(value) or value < 0 or (name.endswith("_share") and value > 1):
            yield wrong(f"{name} {value!r}", "such a fact of the data does not exist", "the data facts")
        elif name.endswith(f"_{samples}") and value != int(value):
            yield wrong(f"{name} {value!r}", f"{samples} are counted whole", "the data facts")
    count, history = case.record.data_facts.get(f"val_{samples}"), case.record.quality.history
    if count is not None and history and history[-1].samples != count:
        yield wrong(
            f"{history[-1].samples} samples evaluated, {count:g} {samples} to evaluate",
            f"every {sample} of the validation set is scored once",
            "the evaluations and the data facts",
        )
    count, batch = case.record.data_facts.get(f"train_{samples}"), case.step_batch * case.devices
    # a remainder below half a batch is evened out with the batch before it
    if count is not None and case.steps_per_epoch and batch > case.devices:
        steps = max(1, math.floor(count / batch + 0.5))
        if case.steps_per_epoch not in (steps, steps + 1, steps - 1):
            yield wrong(
                f"{count:g} {samples}, batches of {batch}, {case.steps_per_epoch} steps an epoch",
                f"an epoch takes every {sample} once",
                "the data facts, the batch, and the evaluations",
            )


CHECKS: tuple[Check[RecordCase], ...] = (quality, evaluations, scores, ending, leftovers)
