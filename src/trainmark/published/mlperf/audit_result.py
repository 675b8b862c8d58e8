"""Audits the runs of one MLPerf result together: how many, how unlike, how soon they converged, what they drew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from trainmark.published.mlperf import audit_log, convergence, rules, score
from trainmark.published.mlperf.folder import ResultFolder
from trainmark.published.mlperf.log import RunLog
from trainmark.published.mlperf.power import FEWEST_READINGS, LONGEST_GAP_S, NodePower
from trainmark.spec.audit import Audit, CannotCheckError, Check, check, doubtful, look, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.escape import terminal

WIDE, VERY_WIDE = 0.05, 0.15
"""Runs of one machine differ less in their throughput; runs of seconds on very many devices may differ by the first."""
SLOW = 1.25
"""Times the reference's training; a result may be slower, but hardly by more."""
SAME_IN_ALL = ("submission_benchmark", "submission_division", "submission_org", "submission_platform",
               "submission_status", "global_batch_size", "opt_name", "train_samples", "eval_samples")  # fmt: skip
DESCRIBED = (
    "submitter", "division", "status", "system_name", "number_of_nodes", "host_processors_per_node",
    "host_processor_model_name", "host_processor_core_count", "host_processor_vcpu_count", "host_processor_frequency",
    "host_processor_caches", "host_processor_interconnect", "host_memory_capacity", "host_storage_type",
    "host_storage_capacity", "host_networking", "host_networking_topology", "host_memory_configuration",
    "accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect", "accelerator_frequency",
    "accelerator_on-chip_memories", "accelerator_memory_configuration", "accelerator_memory_capacity",
    "accelerator_interconnect", "accelerator_interconnect_topology", "cooling", "hw_notes", "framework",
    "other_software_stack", "operating_system", "sw_notes",
)  # fmt: skip
"""What the rules ask of a system's description."""
STATUSES = ("Available on-premise", "Available cloud", "Research, Development, or Internal (RDI)", "Preview")
"""Of a system, since round 4.0."""


def audits(folder: ResultFolder) -> Iterator[Audit]:
    """Each log by itself, then all together."""
    for log in folder.logs:
        case = audit_log.LogCase(log=log, round=folder.round, division=_division(log))
        title = f"{folder.title}/{log.name}" if folder.whole else log.name
        yield Audit(title=title, checks=look(audit_log.CHECKS, case, log.name), empty=not log.entries)
    checks = CHECKS if folder.whole else (convergence_points,)
    yield Audit(title=folder.title, checks=look(checks, folder, folder.title), empty=not folder.logs)


def _division(log: RunLog) -> str:
    said = log.word("submission_division")
    return said if said in ("closed", "open") else "closed"


@check("result-files", "there are as many runs as the rules ask for, by their names")
def files(folder: ResultFolder) -> Iterator[CheckResult]:
    for sentence in folder.unreadable:
        yield wrong(sentence, "a file is called as a result and is none", "the log as the run wrote it")
    if folder.others:
        shown = ", ".join(terminal(name)[:40] for name in folder.others[:5])
        yield note(f"{len(folder.others)}: {shown}", "files lie beside the results that no rule knows", "their names")
    known = rules.benchmarks().get(folder.benchmark)
    if known is None:
        raise CannotCheckError(f"no rules are known for the benchmark {folder.benchmark or 'nobody named'!r}")
    if len(folder.logs) != known.runs:
        yield wrong(
            f"{len(folder.logs)} runs",
            f"a result of {known.name} has {known.runs}",
            "which runs were left out or added",
        )
    if folder.path.name != folder.benchmark:
        numbers = f"folder {folder.path.name}, logs {folder.benchmark}"
        yield wrong(numbers, "the folder is called by another benchmark than its logs", "where the logs belong")


@check("result-same-bytes", "no run is there twice")
def same_bytes(folder: ResultFolder) -> Iterator[CheckResult]:
    for what, report, why in (
        ("sha256", wrong, "one log lies there under several names"),
        ("said_sha256", wrong, "two logs say the same line by line, and only their times differ"),
    ):
        members: dict[str, list[RunLog]] = {}
        for log in folder.logs:
            members.setdefault(getattr(log, what), []).append(log)
        for logs in members.values():
            distinct = {log.sha256 for log in logs}
            if len(logs) > 1 and (what == "sha256" or len(distinct) > 1):
                yield report(", ".join(log.name for log in logs), why, "which run each file is of")


@check("result-seeds", "no two runs began with one seed")
def seeds(folder: ResultFolder) -> Iterator[CheckResult]:
    if not any(log.seeds for log in folder.logs):
        raise CannotCheckError("no log names a seed")
    owners: dict[tuple[str, int, str], list[str]] = {}
    for log in folder.logs:
        for source in log.keys["seed"].sources if "seed" in log.keys else ():
            owners.setdefault(source, []).append(log.name)
    for (_, _, value), names in owners.items():
        if len(names) > 1:
            report = wrong if folder.division == "closed" else doubtful
            yield report(
                f"seed {terminal(value)[:40]}: {', '.join(names[:5])}", "several runs have one seed", "the runs' seeds"
            )
            break


@check("result-alike", "all runs are of one benchmark, one system and one batch")
def alike(folder: ResultFolder) -> Iterator[CheckResult]:
    for key in SAME_IN_ALL:
        found = Counter(terminal(str(log.value(key)))[:40] for log in folder.logs if key in log.keys)
        if len(found) > 1:
            shown = ", ".join(f"{value} ({count})" for value, count in found.most_common(4))
            yield wrong(
                f"{key}: {shown}", "the runs differ in what must be the same in all", "which runs belong together"
            )


@check("result-converged", "no more runs failed than the score leaves out")
def converged(folder: ResultFolder) -> Iterator[CheckResult]:
    known = rules.benchmarks().get(folder.benchmark)
    dropped = known.dropped if known else 1
    failed = [log for log in folder.logs if log.status != "success"]
    if failed:
        named = ", ".join(f"{log.name} {terminal(log.status)[:20] or 'without an end'}" for log in failed[:5])
        if len(failed) > dropped:
            yield wrong(
                named,
                f"more than {dropped} of {len(folder.logs)} runs did not converge: there is no score",
                "those runs",
            )
        else:
            yield note(named, "it did not converge, and counts as the slowest run", "the score, which leaves it out")


@check("result-spread", "the runs of one machine are alike in speed")
def spread(folder: ResultFolder) -> Iterator[CheckResult]:
    rates = {log.name: rate for log in folder.logs if (rate := score.training_rate(log))}
    if len(rates) < 3:
        raise CannotCheckError("fewer than three runs tell how many samples they trained on")
    usual = median(rates.values())
    far = {name: rate for name, rate in rates.items() if abs(rate / usual - 1) > WIDE}
    if far:
        shown = ", ".join(f"{name} {rate:,.4g}/s" for name, rate in far.items())
        report = doubtful if any(abs(rate / usual - 1) > VERY_WIDE for rate in far.values()) else note
        why = f"runs differ by more than {WIDE:.0%} in speed"
        yield report(f"{shown}; median {usual:,.4g}/s", why, "those machines")


@check("result-apart", "no two runs of one system were going on at once")
def apart(folder: ResultFolder) -> Iterator[CheckResult]:
    spans = sorted(
        (start.time_ms, stop.time_ms, log.name)
        for log in folder.logs
        if (start := log.first("run_start")) and (stop := log.last("run_stop"))
    )
    if len(spans) < 2:
        raise CannotCheckError("fewer than two runs have a beginning and an end")
    over = [(one, other) for one, other in pairwise(spans) if other[0] < one[1] - audit_log.GRAVE_MS]
    if over:
        one, other = over[0]
        numbers = f"{other[2]} began {(one[1] - other[0]) / 1000:,.0f} s before {one[2]} ended; {len(over)} times"
        yield note(
            numbers, "runs went on at once, so that several such systems took part", "whether they share anything"
        )


@check("result-convergence", "the target was not reached with less training than the reference needs")
def convergence_points(folder: ResultFolder) -> Iterator[CheckResult]:
    batch = next((value for log in folder.logs if (value := log.number("global_batch_size"))), None)
    if folder.round is None or batch is None:
        raise CannotCheckError("the logs do not say which benchmark or which global batch it was")
    needed = [
        place for log in folder.logs if log.status == "success" and (place := score.converged_at(log)) is not None
    ]
    if not needed:
        raise CannotCheckError("no run says after how much training it converged")
    known = rules.benchmark(folder.benchmark)
    point = convergence.expected(folder.round, known.name, batch)
    if point is None:
        has = convergence.points(folder.round, known.name)
        largest = f"up to {has[-1].global_batch:,.0f}" if has else "none"
        yield note(
            f"batch {batch:,.0f}, reference points {largest}", "nobody knows what the reference would need", "the rules"
        )
        return
    whole = len(needed) >= known.runs - known.dropped and len(folder.logs) == known.runs
    padded = [*needed, *[float("inf")] * (len(folder.logs) - len(needed))] if whole else needed
    mean = convergence.olympic_mean(padded, known.dropped) if whole else sum(needed) / len(needed)
    least = point.least if whole else point.least_of_one
    numbers = (
        f"{mean:,.6g} {point.unit} at batch {batch:,.0f}; reference {point.mean:,.6g} "
        f"[{point.fastest:,.6g}, {point.slowest:,.6g}]{', between two points' if point.interpolated else ''}"
    )
    if mean < least * (1 - 1e-9):
        report = wrong if folder.division == "closed" and whole else doubtful
        yield report(
            numbers, f"it converged sooner than the {least:,.6g} that are believed", "optimizer, data and model"
        )
    elif mean > SLOW * point.slowest:
        yield note(numbers, f"it needed more than {SLOW:g} times the reference's slowest run", "its hyperparameters")
    elif whole and mean < point.mean:
        yield note(
            numbers, f"sooner than the reference: the score is multiplied by {point.mean / mean:.4f}", "the rules"
        )


@check("result-system", "the system is described, and as its logs are")
def system(folder: ResultFolder) -> Iterator[CheckResult]:
    if not folder.description_file.is_file():
        raise CannotCheckError(f"there is no systems/{folder.system}.json beside the results")
    found = folder.description
    if found is None:
        yield wrong(folder.description_file.name, "the description is no JSON document", "the file")
        return
    missing = [name for name in DESCRIBED if name not in found]
    if missing:
        yield wrong(
            f"{len(missing)}: {', '.join(missing[:5])}", "the rules ask for these fields of a description", "the file"
        )
    said = found.get("division")
    if said is not None and str(said) != folder.division:
        numbers = f"description {terminal(str(said))[:20]}, logs {folder.division}"
        yield wrong(numbers, "logs and description name two divisions", "which division this is")
    status = found.get("status")
    if status is not None and folder.round is not None and folder.round >= "4.0" and status not in STATUSES:
        yield wrong(f"status {terminal(str(status))[:40]}", f"it is none of {', '.join(STATUSES)}", "the file")


@check("result-power", "power was measured on every node, every second, while it trained")
def measured_power(folder: ResultFolder) -> Iterator[CheckResult]:
    if not folder.energies:
        raise CannotCheckError("no power was measured")
    counts = Counter((len(found.nodes), len(found.switches)) for found in folder.energies.values())
    usual = counts.most_common(1)[0][0]
    nodes = (folder.description or {}).get("number_of_nodes")
    for name, found in folder.energies.items():
        if found.missing or not found.nodes:
            yield wrong(name, "there is no power log of this run", f"power/{Path(name).stem}")
            continue
        if (len(found.nodes), len(found.switches)) != usual:
            yield wrong(
                f"{name}: {len(found.nodes)} nodes", f"the other runs have {usual[0]}", "which logs are missing"
            )
        elif str(nodes or "").isdigit() and len(found.nodes) != int(str(nodes)):
            yield doubtful(f"{name}: {len(found.nodes)} nodes", f"the system has {nodes}", "which logs are missing")
        log = next(log for log in folder.logs if log.name == name)
        yield from _of_nodes(found.nodes, log)


def _of_nodes(nodes: Iterable[NodePower], log: RunLog) -> Iterator[CheckResult]:
    start, stop = log.first("run_start"), log.last("run_stop")
    for node in nodes:
        where = f"{Path(log.name).stem}/{node.name}"
        if node.damaged:
            yield wrong(f"{where}, line {node.damaged[0]}", "lines of the power log are damaged", "the log as it was")
        if node.backwards:
            yield doubtful(
                f"{where}: {node.backwards} readings", "readings are older than those before them", "its clock"
            )
        if node.readings < FEWEST_READINGS:
            yield doubtful(f"{where}: {node.readings} readings", f"the rules ask for {FEWEST_READINGS}", "the meter")
        elif node.longest_gap_s > LONGEST_GAP_S:
            yield doubtful(f"{where}: {node.longest_gap_s:.1f} s", "the rules ask for a reading a second", "the meter")
        if start and stop and node.began_ms is not None and node.ended_ms is not None:
            share = min(node.ended_ms, stop.time_ms) - max(node.began_ms, start.time_ms)
            if share < 0.5 * (stop.time_ms - start.time_ms):
                yield wrong(where, "less than half of the run lies within what was measured", "which run it belongs to")


CHECKS: tuple[Check[ResultFolder], ...] = (
    files, same_bytes, seeds, alike, converged, spread, apart, convergence_points, system, measured_power,
)  # fmt: skip
