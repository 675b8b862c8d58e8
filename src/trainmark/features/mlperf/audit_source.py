"""Audits MLPerf logs and results: what mlcommons' checkers miss, and their verdict; a source of `trainmark audit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from trainmark.cli.terminal import print_status
from trainmark.features.mlperf import official
from trainmark.features.mlperf.benchmarks import Benchmark
from trainmark.features.mlperf.log import (
    LogEvent,
    ResultFolder,
    RunLog,
    as_number,
    compute_training_rate,
    find_result_folders,
    has_logs,
    is_log,
)
from trainmark.record.audit import Audit, CannotCheckError, Check, check, doubtful, note, run_checks, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.escape import terminal
from trainmark.record.store import Store

ORDER = 1
JITTER_MS = 50
"""Timestamps may be this far out of order where threads write them."""
GRAVE_MS = 1000
MAX_ODD = 0.2
"""Share of irregular epoch numbers above which a log does not count epochs one by one."""
OFFLINE = ("stable_diffusion",)
"""Benchmarks whose checkpoints are evaluated after the run, in any order."""
WIDE, VERY_WIDE = 0.05, 0.15
"""Runs of one machine differ less in their throughput; runs of seconds on very many devices may differ by the first."""
SAME_IN_ALL = ("submission_benchmark", "submission_division", "submission_org", "submission_platform",
               "submission_status", "global_batch_size", "opt_name", "eval_samples")  # fmt: skip
MAX_NAMED = 5


def recognises(word: str | Path) -> bool:
    """Whether a file is a result log, or a folder has some."""
    path = Path(word)
    return has_logs(path) if path.is_dir() else path.is_file() and is_log(path)


def audits(word: str, store: Store) -> Iterator[Audit]:
    if not official.is_installed():
        print_status(official.INSTALL)
    for _, found in audit_results(find_result_folders(Path(word))):
        yield from found


def audit_results(folders: Iterable[ResultFolder]) -> Iterator[tuple[ResultFolder, list[Audit]]]:
    """Audits each result: its logs one by one, then all together."""
    for folder in folders:
        found = []
        for log in folder.logs:
            title = f"{folder.title}/{log.name}" if folder.whole else log.name
            checks = run_checks(LOG_CHECKS, LogCase(log=log, folder=folder), log.name)
            found.append(Audit(title=title, checks=checks, empty=not log.entries))
        together = ResultCase(folder=folder, answer=official.ask_mlcommons(folder))
        checks = run_checks(RESULT_CHECKS if folder.whole else (compliance,), together, folder.title)
        yield folder, [*found, Audit(title=folder.title, checks=checks, empty=not folder.logs)]


# One log


@dataclass(frozen=True, kw_only=True)
class LogCase:
    log: RunLog
    folder: ResultFolder

    @property
    def timeline(self) -> list[LogEvent]:
        if self.log.benchmark in OFFLINE:
            raise CannotCheckError(f"{self.log.benchmark} is evaluated after the run, in any order")
        if len(self.log.events) < 2:
            raise CannotCheckError("the log has no timeline")
        return self.log.events


@check("mllog-lines", "every line of the logger can be read")
def lines(case: LogCase) -> Iterator[CheckResult]:
    damages = case.log.damages
    if damages:
        shown = "; ".join(f"line {line}: {why}" for line, why in damages[:MAX_NAMED])
        more = f", and {len(damages) - MAX_NAMED} more" if len(damages) > MAX_NAMED else ""
        yield wrong(shown + more, "lines of the logger are damaged and could not be read", "the log as it was")


@check("mllog-order", "timestamps increase, and neither the run nor an epoch or evaluation takes zero time")
def order(case: LogCase) -> Iterator[CheckResult]:
    timeline = [event for event in case.timeline if not event.key.startswith("init_")]
    if case.log.run_s is not None and case.log.run_s <= 0:
        yield wrong(f"{case.log.run_s:g} s", "run_stop is not after run_start", "the log as the run wrote it")
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
        none = [begin for begin, end in case.log.pair_spans(what) if begin.time_ms == end.time_ms]
        if none:
            report = doubtful if what == "eval" else wrong
            yield report(
                f"{len(none)} times, first at line {none[0].line}",
                f"{what}_start and {what}_stop have one timestamp: it took no time",
                "what wrote the timestamps",
            )


@check("mllog-inside", "training and evaluation happen between run_start and run_stop")
def within_run(case: LogCase) -> Iterator[CheckResult]:
    start, stop = case.log.first("run_start"), case.log.last("run_stop")
    if not case.timeline or start is None or stop is None:
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
    found = case.log.pair_spans("epoch")
    if len(found) < 2:
        raise CannotCheckError("the log has fewer than two whole epochs")
    numbers = [(begin.place.get("epoch_num"), begin.line) for begin, _ in found]
    odd = [
        (one, other, line)
        for (one, _), (other, line) in pairwise(numbers)
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


@check("mllog-target", "a run that reached the target kept it")
def target_kept(case: LogCase) -> Iterator[CheckResult]:
    if case.log.status not in ("", "success"):
        numbers = f"run_stop: {terminal(case.log.status)[:40]}"
        yield note(numbers, "this run did not converge; it counts as the slowest of its result", "the other runs")
    benchmark = _require_benchmark(case.folder)
    target, lower = benchmark.target_in(case.folder.round), benchmark.better == "lower"
    scored = [(value, event.line) for event in case.log.evaluations if (value := as_number(event.value)) is not None]
    if target is None or not scored:
        raise CannotCheckError("no target or no evaluation is known")
    good = [value <= target if lower else value >= target for value, _ in scored]
    if any(good) and not good[-1]:
        (first, line), (last, last_line) = scored[good.index(True)], scored[-1]
        goal = f"{'at most' if lower else 'at least'} {target:g}"
        yield doubtful(
            f"{first} at line {line}, last {last} at line {last_line}",
            f"the target ({goal}) was reached and lost again before the run ended",
            "which model was scored",
        )


LOG_CHECKS: tuple[Check[LogCase], ...] = (lines, order, within_run, epochs, target_kept)


def _require_benchmark(folder: ResultFolder) -> Benchmark:
    if folder.known is None:
        raise CannotCheckError(f"no rules are known for the benchmark {folder.benchmark or 'unnamed'!r}")
    return folder.known


def _name_events(events: list[LogEvent]) -> str:
    first = events[0]
    more = f", and {len(events) - 1} more" if len(events) > 1 else ""
    return f"{first.key} line {first.line}{more}"


# All runs of a result


@dataclass(frozen=True, kw_only=True)
class ResultCase:
    folder: ResultFolder
    answer: official.OfficialVerdict | str
    """A sentence where there is none."""

    @property
    def verdict(self) -> official.OfficialVerdict:
        if isinstance(self.answer, str):
            raise CannotCheckError(self.answer)
        return self.answer

    @property
    def dropped(self) -> int:
        """Runs that the score leaves out at either end."""
        return self.folder.known.dropped if self.folder.known else 1


@check("result-files", "there are as many runs as the rules require")
def files(case: ResultCase) -> Iterator[CheckResult]:
    for sentence in case.folder.unreadable:
        yield wrong(sentence, "a file is named like a result but is not one", "the log as the run wrote it")
    known, count = _require_benchmark(case.folder), len(case.folder.logs)
    if count != known.runs:
        yield wrong(f"{count} runs", f"a result of {known.name} has {known.runs}", "which runs were left out or added")


@check("result-same-bytes", "no run is there twice")
def same_bytes(case: ResultCase) -> Iterator[CheckResult]:
    members: dict[str, list[RunLog]] = {}
    for log in case.folder.logs:
        members.setdefault(log.untimed_sha256, []).append(log)
    for logs in members.values():
        if len(logs) > 1:
            copies = len({log.sha256 for log in logs}) == 1
            why = "two logs are identical except for their times"
            why = "one log is there under several names" if copies else why
            yield wrong(", ".join(log.name for log in logs), why, "which run each file is of")


@check("result-alike", "all runs are of one benchmark, one system and one batch")
def same_settings(case: ResultCase) -> Iterator[CheckResult]:
    for key in SAME_IN_ALL:
        found = Counter(terminal(str(log.value(key)))[:40] for log in case.folder.logs if key in log.values)
        if len(found) > 1:
            shown = ", ".join(f"{value} ({count})" for value, count in found.most_common(4))
            yield wrong(
                f"{key}: {shown}", "the runs differ in what must be the same in all", "which runs belong together"
            )


@check("result-spread", "the runs of one machine are alike in speed")
def spread(case: ResultCase) -> Iterator[CheckResult]:
    if case.folder.benchmark in OFFLINE:
        raise CannotCheckError(f"{case.folder.benchmark} is evaluated after the run, in any order")
    rates = {log.name: rate for log in case.folder.logs if (rate := compute_training_rate(log))}
    if len(rates) < 3:
        raise CannotCheckError("fewer than three runs give the samples they trained on")
    usual = median(rates.values())
    far = {name: rate for name, rate in rates.items() if abs(rate / usual - 1) > WIDE}
    if far:
        shown = ", ".join(f"{name} {rate:,.4g}/s" for name, rate in far.items())
        report = doubtful if any(abs(rate / usual - 1) > VERY_WIDE for rate in far.values()) else note
        why = f"runs differ by more than {WIDE:.0%} in speed"
        yield report(f"{shown}; median {usual:,.4g}/s", why, "those machines")


@check("mlcommons-compliance", "mlcommons' compliance checker passes every log")
def compliance(case: ResultCase) -> Iterator[CheckResult]:
    found = {log: lines for log, lines in case.verdict.compliance.items() if lines}
    excused = case.folder.whole and len(found) <= case.dropped
    report = note if excused else wrong
    why = "it does not comply; the score leaves so many runs out" if excused else "it does not comply with its rules"
    for log, complaints in found.items():
        more = f"; and {len(complaints) - 3} more" if len(complaints) > 3 else ""
        yield report("; ".join(terminal(one) for one in complaints[:3]) + more, why, "what the run logged", log)


@check("mlcommons-convergence", "mlcommons' reference convergence points allow it")
def convergence(case: ResultCase) -> Iterator[CheckResult]:
    found = case.verdict.convergence
    if found is None:
        raise CannotCheckError("the open division is not held to the reference convergence points")
    if isinstance(found, str):
        raise CannotCheckError(f"mlcommons' checker ended with {found}")
    passed, why, factor = found
    if "Missing RCP" in why or "Cannot find" in why:
        yield note(terminal(why), "the reference's convergence is not known", "the rules")
    elif not passed:
        yield doubtful(
            terminal(why), "it converged too fast for the reference, or too rarely", "optimizer, data, model"
        )
    elif factor > 1:
        yield note(f"{terminal(why)}: {factor:.4f}", "sooner than the reference: the score is multiplied", "the rules")


@check("mlcommons-files", "mlcommons' checkers pass seeds and the system's description")
def system_and_seeds(case: ResultCase) -> Iterator[CheckResult]:
    if not (found := case.verdict.complaints):
        raise CannotCheckError("there is nothing here for mlcommons' checkers")
    for what, complaints in found.items():
        clerical = any(words in line for line in complaints for words in ("logs no seed", "Field status"))
        if complaints:
            report = note if clerical else doubtful
            shown = "; ".join(terminal(line) for line in complaints[:3])
            yield report(shown, f"mlcommons' checker of {what} complains", what)


RESULT_CHECKS: tuple[Check[ResultCase], ...] = (
    *(files, same_bytes, same_settings, spread),
    *(compliance, convergence, system_and_seeds),
)
