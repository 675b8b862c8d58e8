"""Audits the runs of one MLPerf result: each log alone, all together, and mlcommons' verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trainmark.features.mlperf import audit_log
from trainmark.features.mlperf.folder import ResultFolder
from trainmark.features.mlperf.log import RunLog, compute_training_rate
from trainmark.features.mlperf.official import Checkers, OfficialVerdict
from trainmark.record.audit import Audit, CannotCheckError, Check, check, doubtful, note, run_checks, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.escape import terminal

WIDE, VERY_WIDE = 0.05, 0.15
"""Runs of one machine differ less in their throughput; runs of seconds on very many devices may differ by the first."""
SAME_IN_ALL = ("submission_benchmark", "submission_division", "submission_org", "submission_platform",
               "submission_status", "global_batch_size", "opt_name", "eval_samples")  # fmt: skip
MAX_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class ResultCase:
    folder: ResultFolder
    official: OfficialVerdict | str
    """A sentence where there is none."""

    def verdict(self, name: str) -> OfficialVerdict:
        """The official verdict; CannotCheckError where this checker gave none."""
        if isinstance(self.official, str):
            raise CannotCheckError(self.official)
        if name in self.official.failures:
            raise CannotCheckError(f"mlcommons' checker ended with {self.official.failures[name]}")
        return self.official


def audit_results(folders: Iterable[ResultFolder]) -> Iterator[tuple[ResultFolder, list[Audit]]]:
    """Audits each result: its logs one by one, then all together."""
    with Checkers() as checkers:
        for folder in folders:
            found = []
            for log in folder.logs:
                title = f"{folder.title}/{log.name}" if folder.whole else log.name
                case = audit_log.LogCase(log=log, round=folder.round, division=_find_division(log))
                checks = run_checks(audit_log.CHECKS, case, log.name)
                found.append(Audit(title=title, checks=checks, empty=not log.entries))
            together = ResultCase(folder=folder, official=checkers.verdict(folder))
            checks = run_checks(CHECKS if folder.whole else (compliance,), together, folder.title)
            yield folder, [*found, Audit(title=folder.title, checks=checks, empty=not folder.logs)]


def _find_division(log: RunLog) -> str:
    division = log.word("submission_division")
    return division if division in ("closed", "open") else "closed"


@check("result-files", "there are as many runs as the rules require, by their names")
def files(case: ResultCase) -> Iterator[CheckResult]:
    folder, known = case.folder, case.folder.known
    for sentence in folder.unreadable:
        yield wrong(sentence, "a file is named like a result but is not one", "the log as the run wrote it")
    if folder.others:
        shown = ", ".join(terminal(name)[:40] for name in folder.others[:MAX_NAMED])
        yield note(f"{len(folder.others)}: {shown}", "the rules do not know these files", "their names")
    if known is None:
        raise CannotCheckError(f"no rules are known for the benchmark {folder.benchmark or 'unnamed'!r}")
    if len(folder.logs) != known.runs:
        yield wrong(
            f"{len(folder.logs)} runs",
            f"a result of {known.name} has {known.runs}",
            "which runs were left out or added",
        )
    if folder.path.name != folder.benchmark:
        numbers = f"folder {folder.path.name}, logs {folder.benchmark}"
        yield wrong(numbers, "the folder names another benchmark than its logs", "where the logs belong")


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


@check("result-converged", "no more runs failed than the score leaves out")
def failed_runs(case: ResultCase) -> Iterator[CheckResult]:
    failed = [log for log in case.folder.logs if log.status != "success"]
    if failed:
        named = ", ".join(f"{log.name} {terminal(log.status)[:20] or 'without an end'}" for log in failed[:MAX_NAMED])
        if len(failed) > _count_dropped(case):
            of = f"more than {_count_dropped(case)} of {len(case.folder.logs)} runs"
            yield wrong(named, f"{of} did not converge: there is no score", "those runs")
        else:
            yield note(named, "it did not converge, and counts as the slowest run", "the score, which leaves it out")


@check("result-spread", "the runs of one machine are alike in speed")
def spread(case: ResultCase) -> Iterator[CheckResult]:
    if case.folder.benchmark in audit_log.OFFLINE:
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


@check("result-apart", "no two runs of one system overlap")
def overlap(case: ResultCase) -> Iterator[CheckResult]:
    spans = sorted(
        (start.time_ms, stop.time_ms, log.name)
        for log in case.folder.logs
        if (start := log.first("run_start")) and (stop := log.last("run_stop"))
    )
    if len(spans) < 2:
        raise CannotCheckError("fewer than two runs have a beginning and an end")
    over = [(one, other) for one, other in pairwise(spans) if other[0] < one[1] - audit_log.GRAVE_MS]
    if over:
        one, other = over[0]
        yield note(
            f"{other[2]} began {(one[1] - other[0]) / 1000:,.0f} s before {one[2]} ended; {len(over)} times",
            "runs overlap, so several such systems took part",
            "whether they share anything",
        )


@check("result-system", "the system is described as its logs are")
def system(case: ResultCase) -> Iterator[CheckResult]:
    folder = case.folder
    if not folder.description_file.is_file():
        raise CannotCheckError(f"there is no systems/{folder.system}.json beside the results")
    if folder.description is None:
        yield wrong(folder.description_file.name, "the description is no JSON document", "the file")
    elif (described := folder.description.get("division")) is not None and str(described) != folder.division:
        numbers = f"description {terminal(str(described))[:20]}, logs {folder.division}"
        yield wrong(numbers, "logs and description name two divisions", "which division this is")


@check("result-power", "power was measured while it trained")
def power(case: ResultCase) -> Iterator[CheckResult]:
    if not case.folder.power:
        raise CannotCheckError("no power was measured")
    for log in case.folder.logs:
        start, stop = log.first("run_start"), log.last("run_stop")
        for node in case.folder.power[log.name]:
            if start and stop and node.began_ms is not None and node.ended_ms is not None:
                share = min(node.ended_ms, stop.time_ms) - max(node.began_ms, start.time_ms)
                if share < 0.5 * (stop.time_ms - start.time_ms):
                    why = "less than half of the run lies within what was measured"
                    yield wrong(f"{log.name}, {node.name}", why, "which run it belongs to")


# Verdicts of mlcommons' checkers


@check("mlcommons-compliance", "mlcommons' compliance checker passes every log")
def compliance(case: ResultCase) -> Iterator[CheckResult]:
    found = {log: lines for log, lines in case.verdict("compliance").compliance.items() if lines}
    excused = case.folder.whole and len(found) <= _count_dropped(case)
    report = note if excused else wrong
    why = "it does not comply; the score leaves so many runs out" if excused else "it does not comply with its rules"
    for log, complaints in found.items():
        more = f"; and {len(complaints) - 3} more" if len(complaints) > 3 else ""
        yield report("; ".join(terminal(one) for one in complaints[:3]) + more, why, "what the run logged", log)


@check("mlcommons-convergence", "mlcommons' reference convergence points allow it")
def convergence(case: ResultCase) -> Iterator[CheckResult]:
    found = case.verdict("convergence").convergence
    if found is None:
        raise CannotCheckError("the open division is not held to the reference convergence points")
    passed, why, factor = found
    if "Missing RCP" in why or "Cannot find" in why:
        yield note(terminal(why), "the reference's convergence is not known", "the rules")
    elif not passed:
        yield doubtful(
            terminal(why), "it converged too fast for the reference, or too rarely", "optimizer, data, model"
        )
    elif factor > 1:
        yield note(f"{terminal(why)}: {factor:.4f}", "sooner than the reference: the score is multiplied", "the rules")


@check("mlcommons-files", "mlcommons' checkers pass seeds, the system's description and power logs")
def system_and_seeds(case: ResultCase) -> Iterator[CheckResult]:
    if not (found := case.verdict("files").complaints):
        raise CannotCheckError("there is nothing here for mlcommons' checkers")
    for what, lines in found.items():
        clerical = any(words in line for line in lines for words in ("logs no seed", "Field status"))
        if lines:
            report = note if clerical else doubtful
            yield report(
                "; ".join(terminal(line) for line in lines[:3]), f"mlcommons' checker of {what} complains", what
            )


def _count_dropped(case: ResultCase) -> int:
    return case.folder.known.dropped if case.folder.known else 1


CHECKS: tuple[Check[ResultCase], ...] = (
    files, same_bytes, same_settings, failed_runs, spread, overlap, system, power,
    compliance, convergence, system_and_seeds,
)  # fmt: skip
