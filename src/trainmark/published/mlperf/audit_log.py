"""Audits one MLPerf result log: against the rules of its round, and against itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trainmark.published.mlperf import rules
from trainmark.published.mlperf.log import LogEvent, RunLog
from trainmark.published.mlperf.score import TOKENS
from trainmark.spec.audit import CannotCheckError, Check, check, doubtful, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.escape import terminal

UNREST_MS = 50
"""Stamps of one process's events may be so much out of order where threads write them."""
GRAVE_MS = 1000
INIT_MINUTES = {"closed": 30, "open": 240}
MOST_NAMED = 8
PADDED = 0.01
"""Sets are padded or cut to whole batches by less."""
MOST_ODD = 0.2
"""Of the steps from an epoch to the next: where more are odd, a log does not count epochs one by one."""


@dataclass(frozen=True, kw_only=True)
class LogCase:
    log: RunLog
    round: str | None
    """Whose rules it is held to; None where no round has its benchmark."""
    division: str

    @property
    def key_rules(self) -> tuple[rules.KeyRule, ...]:
        if self.round is None:
            raise CannotCheckError(f"no rules are known for the benchmark {self.log.benchmark or 'nobody named'!r}")
        return rules.key_rules(self.round, self.division, self.log.benchmark, self.log.word("opt_name"))

    @property
    def benchmark(self) -> rules.Benchmark:
        known = rules.benchmarks().get(self.log.benchmark)
        if known is None:
            raise CannotCheckError(f"no rules are known for the benchmark {self.log.benchmark or 'nobody named'!r}")
        return known

    @property
    def where(self) -> str:
        return f"rules {self.round}, {self.division} division"

    def known(self, key: str) -> float | None:
        return self.log.number(key)


@check("mllog-lines", "every line of the logger can be read")
def lines(case: LogCase) -> Iterator[CheckResult]:
    damages = case.log.damages
    if damages:
        shown = "; ".join(f"line {one.line}: {one.why}" for one in damages[:MOST_NAMED])
        more = f", and {len(damages) - MOST_NAMED} more" if len(damages) > MOST_NAMED else ""
        yield wrong(
            shown + more, "lines of the logger are damaged, and nobody knows what they said", "the log as it was"
        )
    if case.log.cut:
        yield note(
            f"{case.log.entries} entries", "there are more events than are kept; the rest was not judged", "the log"
        )


@check("mllog-keys", "every key the rules ask for is there, as often as they ask")
def keys(case: LogCase) -> Iterator[CheckResult]:
    found = case.log.keys
    repeated = []
    for rule in case.key_rules:
        entry = found.get(rule.key)
        count = entry.count if entry else 0
        evidence = f"{rule.key}: {count} times"
        if rule.times == "once" and count != 1:
            if entry and len(entry.values) == 1:
                repeated.append(evidence)
            else:
                several = f" with {len(entry.values)} values" if entry else ""
                yield wrong(evidence + several, f"the {case.where} ask for it exactly once", "what the run really used")
        elif (rule.times == "some" and not count) or (rule.times == "twice" and count < 2):
            yield wrong(evidence, f"the {case.where} ask for it", "the logger's calls")
        elif rule.times.startswith("or ") and not count and rule.times.removeprefix("or ") not in found:
            yield wrong(
                evidence, f"the {case.where} ask for it or {rule.times.removeprefix('or ')}", "the logger's calls"
            )
    if repeated:
        shown = ", ".join(repeated[:MOST_NAMED])
        yield note(shown, f"the {case.where} ask for them once; they are always the same", "the logger's calls")


@check("mllog-values", "every value is one the rules allow")
def values(case: LogCase) -> Iterator[CheckResult]:
    for rule in case.key_rules:
        if (entry := case.log.keys.get(rule.key)) is None:
            continue
        for condition in rule.conditions:
            if condition.startswith("with "):
                names = condition.removeprefix("with ").split("|")
                bare = [line for fields, line in entry.metadata.items() if not fields & set(names)]
                if bare:
                    yield wrong(
                        f"{rule.key}, line {min(bare)}",
                        f"its metadata has no {' or '.join(names)}, which the {case.where} ask for",
                        "the logger's calls",
                    )
                continue
            for one in entry.values:
                if not rules.holds(condition, one.value, case.known):
                    shown = terminal(str(one.value))[:60]
                    yield wrong(
                        f"{rule.key} = {shown}, line {one.line}",
                        f"the {case.where} ask for {condition}",
                        "what the run really used",
                    )
                    break
    name = case.log.benchmark
    known = rules.benchmarks().get(name)
    if known is not None and case.round is not None and case.round not in known.rounds:
        yield wrong(name, f"round {case.round} has no such benchmark", "which round this was run for")


@check("mllog-order", "initialisation, run and their ends come in their order, and take time")
def order(case: LogCase) -> Iterator[CheckResult]:
    log = case.log
    marks = [event for key in ("init_start", "init_stop", "run_start", "run_stop") if (event := log.first(key))]
    if len(marks) < 2:
        raise CannotCheckError("the log has no two of init_start, init_stop, run_start and run_stop")
    for one, other in pairwise(marks):
        passed = other.time_ms - one.time_ms
        numbers = f"{one.key} line {one.line}, {other.key} line {other.line}: {passed / 1000:g} s"
        if passed < -UNREST_MS:
            yield wrong(numbers, f"{other.key} is before {one.key}", "the clocks, and whether the log was put together")
        elif passed <= 0 and (one.key, other.key) == ("run_start", "run_stop"):
            yield wrong(numbers, "a training took no time", "the log as the run wrote it")
        elif other.line < one.line:
            yield doubtful(
                numbers, f"{other.key} stands above {one.key} in the log", "whether the log was put together"
            )
    minutes = INIT_MINUTES[case.division]
    if log.init_s is not None and log.init_s >= 60 * minutes:
        yield wrong(
            f"{log.init_s / 60:.1f} min", f"initialisation may take {minutes} min there", "what was done before"
        )


@check("mllog-stamps", "the clock of the log goes forward, and what takes time takes some")
def stamps(case: LogCase) -> Iterator[CheckResult]:
    timeline = [event for event in case.log.events if not event.key.startswith("init_")]
    if len(timeline) < 2:
        raise CannotCheckError("the log has no timeline")
    back = [(one, other) for one, other in pairwise(timeline) if one.time_ms - other.time_ms > UNREST_MS]
    if back:
        one, other = max(back, key=lambda pair: pair[0].time_ms - pair[1].time_ms)
        far = one.time_ms - other.time_ms
        numbers = (
            f"{len(back)} times; {other.key} line {other.line} is {far / 1000:g} s before {one.key} line {one.line}"
        )
        report = wrong if far >= GRAVE_MS else doubtful
        yield report(
            numbers, "events stand in the log before events that came earlier", "whether lines were moved or changed"
        )
    for what in ("epoch", "block", "eval"):
        none = [begin for begin, end in spans(case.log, what) if begin.time_ms == end.time_ms]
        if none:
            numbers = f"{len(none)} times, first at line {none[0].line}"
            report = doubtful if what == "eval" else wrong
            yield report(
                numbers, f"{what}_start and {what}_stop have one stamp: it took no time", "what wrote the stamps"
            )


@check("mllog-inside", "training and evaluation happen between run_start and run_stop")
def inside(case: LogCase) -> Iterator[CheckResult]:
    start, stop = case.log.first("run_start"), case.log.last("run_stop")
    if start is None or stop is None:
        raise CannotCheckError("the log has no run_start or no run_stop")
    begun = case.log.of("epoch_start", "block_start", "eval_start", "eval_accuracy")
    early = [event for event in begun if event.time_ms < start.time_ms - UNREST_MS]
    late = [event for event in begun if event.time_ms > stop.time_ms + UNREST_MS or event.line > stop.line]
    if early:
        yield wrong(_named(early), "this happened before the clock was started", "where run_start is logged")
    trained = [event for event in late if event.key in ("epoch_start", "block_start")]
    if trained:
        yield wrong(_named(trained), "training went on after run_stop", "where run_stop is logged")
    if scored := [event for event in late if event not in trained]:
        yield doubtful(_named(scored), "the model was judged after run_stop", "which evaluation ended the run")


@check("mllog-epochs", "epochs follow each other, and none is much faster than the others")
def epochs(case: LogCase) -> Iterator[CheckResult]:
    found = spans(case.log, "epoch")
    if len(found) < 2:
        raise CannotCheckError("the log has fewer than two whole epochs")
    numbers = [begin.place.get("epoch_num") for begin, _ in found]
    odd = [
        (one, other, begin.line)
        for (one, other), (begin, _) in zip(pairwise(numbers), found[1:], strict=False)
        if one is not None and other is not None and not 0 < other - one <= 1
    ]
    if odd and len(odd) <= MOST_ODD * len(found):  # else it counts something else than epochs there
        one, other, line = odd[0]
        said = "is left out" if other > one else "comes again"
        yield doubtful(f"epoch {one:g}, then {other:g}, line {line}", f"an epoch {said}", "the whole log")
    lengths = [end.time_ms - begin.time_ms for begin, end in found]
    usual = median(lengths)
    fast = [
        (begin, length)
        for (begin, _), length in list(zip(found, lengths, strict=True))[:-1]
        if 0 < length < 0.6 * usual
    ]
    if fast and len(lengths) >= 4:
        begin, length = fast[0]
        numbers_said = f"line {begin.line}: {length / 1000:.3g} s, usually {usual / 1000:.3g} s"
        yield doubtful(
            numbers_said, f"{len(fast)} of {len(lengths)} epochs are far faster", "what these epochs trained on"
        )


@check("mllog-evaluations", "the model is evaluated as often as the rules ask")
def cadence(case: LogCase) -> Iterator[CheckResult]:
    known = case.benchmark
    places = [event.at for event in case.log.evaluations if event.at is not None]
    every = rules.reckon(known.every, case.known) if known.every else None
    if every is None:
        raise CannotCheckError(f"the tables do not say how often {known.name} is evaluated")
    if not places:
        raise CannotCheckError("the log has no evaluation that says where in the training it was")
    report = note if case.division == "open" else doubtful
    batch = case.log.number("global_batch_size") or 1
    # to whole batches, packed ones among them, or to whole steps of a part of an epoch
    slack = max({"samples": batch, "tokens": TOKENS * batch}.get(known.unit, 0), (0.25 if every < 1 else 0.02) * every)
    places = [place for index, place in enumerate(places) if not index or place != places[index - 1]]
    steps = [(one, other) for one, other in pairwise(places) if abs(other - one - every) > slack]
    asked = f"every {every:,g} {known.unit}"
    if steps:
        one, other = steps[0]
        numbers = f"{len(steps)} of {len(places) - 1} times, first from {one:g} to {other:g} {known.unit}"
        if all(other - one > every for one, other in steps):
            yield report(numbers, f"the rules ask for an evaluation {asked}; some are missing", "the whole log")
        else:
            yield report(numbers, f"the rules ask for an evaluation {asked}", "when the run evaluated")
    if known.unit == "epochs" and known.offsets > 1 and places[0] > every:
        yield report(
            f"first at epoch {places[0]:g}", f"the rules ask for it {asked}, from the first ones on", "the log"
        )


@check("mllog-target", "a run that succeeded reached the target, kept it and ended there")
def reached(case: LogCase) -> Iterator[CheckResult]:
    if case.round is None or not (conditions := rules.target(case.round, case.log.benchmark)):
        raise CannotCheckError("the tables do not say which target the benchmark has")
    key = next(rule.key for rule in rules.key_rules(case.round, "closed", case.log.benchmark, "") if rule.target)
    scored = case.log.of(key)
    goal = " and ".join(conditions)
    good = [all(rules.holds(one, event.value, case.known) for one in conditions) for event in scored]
    status = case.log.status
    if not status:
        yield wrong("no status", "run_stop does not say how the run ended", "the end of the log")
    if status == "success" and case.division == "closed" and not any(good):
        best = _best(scored, case)
        yield wrong(f"best {best}", f"it says success, and no evaluation is {goal}", "whether the run converged")
    elif status == "success" and any(good) and not good[-1]:
        first = scored[good.index(True)]
        yield doubtful(
            f"{first.value} at line {first.line}, last {scored[-1].value} at line {scored[-1].line}",
            f"the target ({goal}) was reached and lost again before the run ended",
            "which model was scored",
        )
    elif any(good[:-1]):
        first = scored[good.index(True)]
        yield note(
            f"line {first.line}, {len(good) - good.index(True) - 1} evaluations before the last",
            f"the target ({goal}) was reached earlier, and training went on",
            "why the run did not end there",
        )
    if status and status != "success":
        numbers = f"run_stop: {terminal(status)[:40]}"
        yield note(numbers, "this run did not converge; it counts as the slowest of its result", "the other runs")


@check("mllog-seed", "the run says from which seed it drew its random numbers")
def seed(case: LogCase) -> Iterator[CheckResult]:
    report = wrong if case.division == "closed" else doubtful
    if not case.log.seeds:
        yield report(
            "no seed", "the log names none, so that nobody can tell the runs of a result apart", "the run's own seed"
        )
    bad = [value for value in case.log.seeds if not _is_whole(value)]
    if bad:
        yield report(f"seed {terminal(str(bad[0]))[:40]}", "this is no whole number", "the run's own seed")


@check("mllog-data", "it trained and was judged on as many samples as the benchmark has")
def data(case: LogCase) -> Iterator[CheckResult]:
    known = case.benchmark
    pairs = (("train_samples", known.train_samples), ("eval_samples", known.eval_samples))
    if not any(wanted is not None and case.log.number(key) is not None for key, wanted in pairs):
        raise CannotCheckError("neither the tables nor the log say how many samples there are")
    for key, wanted in pairs:
        said = case.log.number(key)
        if wanted is not None and said is not None and abs(said / wanted - 1) > PADDED:
            report = note if case.division == "open" else doubtful
            yield report(f"{key} = {said:,.0f}", f"the benchmark's own data has {wanted:,}", "which data it was")


@check("mllog-rate", "the throughput the log states is that of its own stamps")
def rate(case: LogCase) -> Iterator[CheckResult]:
    size, found = case.log.number("train_samples"), spans(case.log, "epoch")
    if not case.log.rates or not size or len(found) < 2:
        raise CannotCheckError("the log states no throughput, or has no epochs to hold it against")
    stated = median(case.log.rates)
    seen = median(size / (end.time_ms - begin.time_ms) * 1000 for begin, end in found if end.time_ms > begin.time_ms)
    share = round(seen / stated) or 1
    per_device = share > 1 and abs(seen / stated / share - 1) < 0.1
    if not 0.9 < stated / seen < 1.1 and 1 / 3 < stated / seen < 3 and not per_device:
        numbers = f"stated {stated:,.0f}/s, {seen:,.0f}/s by epoch_start and epoch_stop"
        yield doubtful(numbers, "the stated throughput is another than the stamps show", "what the throughput counts")


CHECKS: tuple[Check[LogCase], ...] = (
    lines, keys, values, order, stamps, inside, epochs, cadence, reached, seed, data, rate,
)  # fmt: skip


def spans(log: RunLog, what: str) -> list[tuple[LogEvent, LogEvent]]:
    """Beginnings with their ends, in order; what was left open is passed over."""
    found, begun = [], None
    for event in log.of(f"{what}_start", f"{what}_stop"):
        if event.key.endswith("_start"):
            begun = event
        elif begun is not None:
            found.append((begun, event))
            begun = None
    return found


def _named(events: list[LogEvent]) -> str:
    first = events[0]
    more = f", and {len(events) - 1} more" if len(events) > 1 else ""
    return f"{first.key} line {first.line}{more}"


def _best(scored: list[LogEvent], case: LogCase) -> str:
    numbers = [event.value for event in scored if isinstance(event.value, (int, float)) and math.isfinite(event.value)]
    if not numbers:
        return "none"
    return f"{min(numbers) if case.benchmark.better == 'lower' else max(numbers):g}"


def _is_whole(value: object) -> bool:
    try:
        int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
