"""Checks one MLPerf result log for contradictions that mlcommons' checkers miss: times, epochs, evaluations, target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trainmark.features.mlperf.benchmarks import Benchmark, load_benchmarks
from trainmark.features.mlperf.log import TOKENS_PER_SEQUENCE, LogEvent, RunLog, as_number
from trainmark.record.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.escape import terminal

JITTER_MS = 50
"""Timestamps may be this far out of order where threads write them."""
GRAVE_MS = 1000
MAX_NAMED = 8
PADDED = 0.01
"""Data sets are padded or cut to whole batches by less."""
MAX_ODD = 0.2
"""Share of irregular epoch numbers above which a log does not count epochs one by one."""
OFFLINE = ("stable_diffusion",)
"""Benchmarks whose checkpoints are evaluated after the run, in any order."""


@dataclass(frozen=True, kw_only=True)
class LogCase:
    log: RunLog
    round: str | None
    division: str

    @property
    def benchmark(self) -> Benchmark:
        known = load_benchmarks().get(self.log.benchmark)
        if known is None:
            raise CannotCheckError(f"no rules are known for the benchmark {self.log.benchmark or 'unnamed'!r}")
        return known


@check("mllog-lines", "every line of the logger can be read")
def lines(case: LogCase) -> Iterator[CheckResult]:
    damages = case.log.damages
    if damages:
        shown = "; ".join(f"line {line}: {why}" for line, why in damages[:MAX_NAMED])
        more = f", and {len(damages) - MAX_NAMED} more" if len(damages) > MAX_NAMED else ""
        yield wrong(shown + more, "lines of the logger are damaged and could not be read", "the log as it was")
    if case.log.cut:
        yield note(
            f"{case.log.entries} entries", "there are more events than are kept; the rest was not checked", "the log"
        )


@check("mllog-order", "init and run start and stop in order, and take time")
def order(case: LogCase) -> Iterator[CheckResult]:
    keys = ("init_start", "init_stop", "run_start", "run_stop")
    marks = [event for key in keys if (event := case.log.first(key))]
    if len(marks) < 2:
        raise CannotCheckError(f"the log has no two of {', '.join(keys)}")
    for one, other in pairwise(marks):
        passed = other.time_ms - one.time_ms
        numbers = f"{one.key} line {one.line}, {other.key} line {other.line}: {passed / 1000:g} s"
        if passed < -JITTER_MS:
            yield wrong(numbers, f"{other.key} is before {one.key}", "the clocks, and whether the log was edited")
        elif passed <= 0 and (one.key, other.key) == ("run_start", "run_stop"):
            yield wrong(numbers, "a training took no time", "the log as the run wrote it")
        elif other.line < one.line:
            yield doubtful(numbers, f"{other.key} stands above {one.key} in the log", "whether the log was edited")


@check("mllog-stamps", "timestamps increase, and no epoch or evaluation takes zero time")
def stamps(case: LogCase) -> Iterator[CheckResult]:
    timeline = [event for event in _require_timeline(case) if not event.key.startswith("init_")]
    back = [(one, other) for one, other in pairwise(timeline) if one.time_ms - other.time_ms > JITTER_MS]
    if back:
        one, other = max(back, key=lambda pair: pair[0].time_ms - pair[1].time_ms)
        far = one.time_ms - other.time_ms
        report = wrong if far >= GRAVE_MS else doubtful
        yield report(
            f"{len(back)} times; {other.key} line {other.line} is {far / 1000:g} s before {one.key} line {one.line}",
            "the log is not in order of time",
            "whether lines were moved or changed",
        )
    for what in ("epoch", "block", "eval"):
        none = [begin for begin, end in pair_spans(case.log, what) if begin.time_ms == end.time_ms]
        if none:
            report = doubtful if what == "eval" else wrong
            yield report(
                f"{len(none)} times, first at line {none[0].line}",
                f"{what}_start and {what}_stop have one timestamp: it took no time",
                "what wrote the timestamps",
            )


@check("mllog-inside", "training and evaluation happen between run_start and run_stop")
def within_run(case: LogCase) -> Iterator[CheckResult]:
    _require_timeline(case)
    start, stop = case.log.first("run_start"), case.log.last("run_stop")
    if start is None or stop is None:
        raise CannotCheckError("the log has no run_start or no run_stop")
    begun = case.log.find("epoch_start", "block_start", "eval_start", "eval_accuracy")
    early = [event for event in begun if event.time_ms < start.time_ms - JITTER_MS]
    late = [event for event in begun if event.time_ms > stop.time_ms + JITTER_MS or event.line > stop.line]
    if early:
        yield wrong(_name_events(early), "this happened before the clock was started", "where run_start is logged")
    trained = [event for event in late if event.key in ("epoch_start", "block_start")]
    scored = [event for event in late if event not in trained]
    if trained and scored:  # a block by itself is one that had begun when the clock stopped
        yield wrong(_name_events(trained), "training went on after run_stop", "where run_stop is logged")
    elif scored:
        yield doubtful(_name_events(scored), "the model was evaluated after run_stop", "which evaluation ended the run")


@check("mllog-epochs", "epochs follow each other, and none is much faster than the others")
def epochs(case: LogCase) -> Iterator[CheckResult]:
    found = pair_spans(case.log, "epoch")
    if len(found) < 2:
        raise CannotCheckError("the log has fewer than two whole epochs")
    numbers = [begin.place.get("epoch_num") for begin, _ in found]
    odd = [
        (one, other, begin.line)
        for (one, other), (begin, _) in zip(pairwise(numbers), found[1:], strict=False)
        if one is not None and other is not None and not 0 < other - one <= 1
    ]
    if odd and len(odd) <= MAX_ODD * len(found):
        one, other, line = odd[0]
        what = "is left out" if other > one else "is repeated"
        yield doubtful(f"epoch {one:g}, then {other:g}, line {line}", f"an epoch {what}", "the whole log")
    lengths = [end.time_ms - begin.time_ms for begin, end in found]
    usual = median(lengths)
    fast = [(begin, took) for (begin, _), took in zip(found[:-1], lengths, strict=False) if 0 < took < 0.6 * usual]
    if fast and len(lengths) >= 4:
        begin, took = fast[0]
        yield doubtful(
            f"line {begin.line}: {took / 1000:.3g} s, usually {usual / 1000:.3g} s",
            f"{len(fast)} of {len(lengths)} epochs are far faster",
            "what these epochs trained on",
        )


@check("mllog-evaluations", "the model is evaluated as often as the rules require")
def cadence(case: LogCase) -> Iterator[CheckResult]:
    known, batch = case.benchmark, case.log.number("global_batch_size")
    places = [event.at for event in case.log.evaluations if event.at is not None]
    every = known.evaluation_interval(batch)
    if every is None:
        raise CannotCheckError(f"no evaluation interval is known for {known.name}")
    if not places:
        raise CannotCheckError("no evaluation of the log gives its epoch or sample count")
    unit = known.units[-1]
    report = note if case.division == "open" else doubtful
    # to whole batches, packed ones among them, or to whole steps of a part of an epoch
    slack = max(
        {"samples": 1, "tokens": TOKENS_PER_SEQUENCE}.get(unit, 0) * (batch or 1), (0.25 if every < 1 else 0.02) * every
    )
    apart = [(one, other) for one, other in pairwise(places) if one != other]
    at_epoch_ends = every < 1  # where an epoch ends, parts of one may be evaluated once more
    odd = [
        (one, other)
        for one, other in apart
        if abs(other - one - every) > slack and not (at_epoch_ends and other - one < every and other == int(other))
    ]
    rule = f"the rules require an evaluation every {every:,g} {unit}"
    if odd:
        one, other = odd[0]
        missing = "; some are missing" if all(other - one > every for one, other in odd) else ""
        numbers = f"{len(odd)} of {len(apart)} times, first from {one:g} to {other:g} {unit}"
        yield report(numbers, f"{rule}{missing}", "when the run evaluated")
    if unit == "epochs" and known.first > 1 and places[0] > every:
        yield report(f"first at epoch {places[0]:g}", f"{rule}, from the first epochs on", "the log")


@check("mllog-target", "a run that succeeded reached the target, kept it and ended there")
def target_reached(case: LogCase) -> Iterator[CheckResult]:
    status = case.log.status
    if status and status != "success":
        numbers = f"run_stop: {terminal(status)[:40]}"
        yield note(numbers, "this run did not converge; it counts as the slowest of its result", "the other runs")
    target, lower = case.benchmark.target_in(case.round), case.benchmark.better == "lower"
    scored = [(value, event.line) for event in case.log.evaluations if (value := as_number(event.value)) is not None]
    if target is None or not scored:
        raise CannotCheckError("no target or no evaluation is known")
    goal = f"{'at most' if lower else 'at least'} {target:g}"
    good = [value <= target if lower else value >= target for value, _ in scored]
    if status == "success" and case.division == "closed" and not any(good):
        best = (min if lower else max)(value for value, _ in scored)
        yield wrong(f"best {best:g}", f"it says success, and no evaluation is {goal}", "whether the run converged")
    elif status == "success" and any(good) and not good[-1]:
        (first, line), (last, last_line) = scored[good.index(True)], scored[-1]
        yield doubtful(
            f"{first} at line {line}, last {last} at line {last_line}",
            f"the target ({goal}) was reached and lost again before the run ended",
            "which model was scored",
        )
    elif any(good[:-1]):
        yield note(
            f"line {scored[good.index(True)][1]}, {len(good) - good.index(True) - 1} evaluations before the last",
            f"the target ({goal}) was reached earlier, and training went on",
            "why the run did not end there",
        )


@check("mllog-data", "it trained and evaluated on as many samples as the benchmark has")
def data(case: LogCase) -> Iterator[CheckResult]:
    known = {"train_samples": case.benchmark.train_samples, "eval_samples": case.benchmark.eval_samples}
    pairs = [(key, logged, of) for key, of in known.items() if of and (logged := case.log.number(key)) is not None]
    if not pairs:
        raise CannotCheckError("the number of samples is not known")
    report = note if case.division == "open" else doubtful
    for key, logged, of in pairs:
        if abs(logged / of - 1) > PADDED:
            yield report(f"{key} = {logged:,.0f}", f"the benchmark's own data has {of:,.0f}", "which data it was")


CHECKS: tuple[Check[LogCase], ...] = (lines, order, stamps, within_run, epochs, cadence, target_reached, data)


def pair_spans(log: RunLog, what: str) -> list[tuple[LogEvent, LogEvent]]:
    """Start events with their stops, in order; one without a stop is skipped."""
    found, begun = [], None
    for event in log.find(f"{what}_start", f"{what}_stop"):
        if event.key.endswith("_start"):
            begun = event
        elif begun is not None:
            found.append((begun, event))
            begun = None
    return found


def _require_timeline(case: LogCase) -> list[LogEvent]:
    if case.log.benchmark in OFFLINE:
        raise CannotCheckError(f"{case.log.benchmark} is evaluated after the run, in any order")
    if len(case.log.events) < 2:
        raise CannotCheckError("the log has no timeline")
    return case.log.events


def _name_events(events: list[LogEvent]) -> str:
    first = events[0]
    more = f", and {len(events) - 1} more" if len(events) > 1 else ""
    return f"{first.key} line {first.line}{more}"
