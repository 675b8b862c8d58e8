"""Audits our own records by their events where available and by themselves, and event files each by itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import trainmark
from trainmark import workloads
from trainmark.analysis import peaks
from trainmark.record import endings, events
from trainmark.record.audit import (
    DAMAGED,
    Audit,
    CannotCheckError,
    Check,
    check,
    conclude,
    doubtful,
    is_same,
    note,
    run_checks,
    wrong,
)
from trainmark.record.checks import CheckResult
from trainmark.record.doubts import CLOCKS_FAR_APART, collect_doubts
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.events import parse_writer, read_line
from trainmark.record.foreign_files import read_plain
from trainmark.record.gather import gather
from trainmark.record.metrics import THROUGHPUTS, Measured, measure, withhold
from trainmark.record.numbers import meets_goal
from trainmark.record.plan import Topology
from trainmark.record.precision import Precision, name_precision
from trainmark.record.record import RECORD_SCHEMA, Record, upgrade
from trainmark.record.run_folder import RunFolder, open_run
from trainmark.record.timeline import SeriesFile, StepSeries, thin_series

FOLLOWING = (*THROUGHPUTS, "mfu")
"""Metrics that are computed again from the series of the record."""
OF_EVENTS = ("torn-events", "no-sample", "resumed")
"""Doubts about what only the events tell: they may stand on a record, and nothing on it can confirm them."""
MAX_SHOWN = 3
"""Differences shown per part of a record."""
OUR_WORDS = re.compile(r"coverage|doubts\[\d+\]\.text|metrics\.\w+\.unavailable")
"""Sentences composed when a record is gathered: another version may word them otherwise."""
NOT_COMPARED = ("schema", "kind", "event_files")
"""Format fields; the hashes have their own check."""


@dataclass(frozen=True, kw_only=True)
class RecordCase:
    """A record under audit."""

    record: Record
    document: Mapping[str, Any]
    """As it stands in its file, in whichever schema."""
    folder: Path | None = None
    """The run's folder, with the events it was made of, where available."""

    @cached_property
    def run(self) -> RunFolder:
        if self.folder is None:
            raise CannotCheckError("the run's events were not read; 'trainmark audit' reads them where they are kept")
        try:
            return open_run(self.folder)
        except NotReadyError as error:
            raise CannotCheckError(str(error)) from error

    @cached_property
    def gathered(self) -> dict[str, Any]:
        """The record's document, gathered from its events."""
        found: dict[str, Any] = json.loads(gather(self.run).dumps())
        return found

    @cached_property
    def changed(self) -> dict[str, tuple[str | None, str | None]]:
        """Event files whose hash is not the record's: that on the record, and that of the file."""
        recorded, found = self.record.event_files, self.run.event_files()
        pairs = {name: (recorded.get(name), found.get(name)) for name in sorted({*recorded, *found})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def require_steps(self) -> None:
        if self.record.means_only:
            raise CannotCheckError(str(self.record.means_only))

    def value(self, alias: str) -> float | None:
        quantity = self.record.metrics.get(alias)
        return None if quantity is None else quantity.value


def audit_record(record: Record, folder: Path | None = None) -> tuple[CheckResult, ...]:
    """Every check on a record: with the run's `folder` against its events, else in milliseconds by itself."""
    document = json.loads(record.dumps()) if folder else record.to_json()
    return run_checks(CHECKS, RecordCase(record=record, document=document, folder=folder), record.run_id)


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
        return (conclude("readable", title, (wrong(str(error), why, remedy),), name),)
    case = RecordCase(record=record, document=document, folder=folder)
    return (conclude("readable", title, (), name), *run_checks(CHECKS, case, record.run_id))


@check("hashes", "the event files are those the record was made of")
def hashes(case: RecordCase) -> Iterator[CheckResult]:
    if "event_files" not in case.document:
        raise CannotCheckError("the record is of a version that took no hashes of its event files")
    # a machine that was lost may have written on after the record was made
    found = doubtful if case.record.status == "incomplete" else wrong
    for name, (recorded, seen) in case.changed.items():
        yield found(
            f"{name}: SHA-256 {(recorded or 'none')[:16]} on the record, {(seen or 'none')[:16]} of the file",
            "the file was changed, taken away or put there after the record was made",
            "who can write to the run's folder",
        )


@check("events", "the record is what its events make of it")
def events_agree(case: RecordCase) -> Iterator[CheckResult]:
    recorded, wrote = upgrade(case.document), case.gathered["environment"].get("trainmark") or case.record.trainmark
    told = {**case.gathered, "trainmark": wrote}
    late = case.record.status == "incomplete" and "event_files" in case.document and case.changed
    for part in dict.fromkeys((*told, *recorded)):
        if part in NOT_COMPARED:
            continue
        one, other = ({part: document[part]} if part in document else {} for document in (recorded, told))
        unlike = list(_find_differences(one, other, "", alike=wrote == trainmark.__version__))
        more = f" and {len(unlike) - MAX_SHOWN} more" if len(unlike) > MAX_SHOWN else ""
        if unlike:
            yield (doubtful if late else wrong)(
                "; ".join(unlike[:MAX_SHOWN]) + more,
                "gathered anew from the run's events it is another",
                "whether the record or its events were changed",
            )
    if missing := sorted(told["metrics"].keys() - recorded["metrics"].keys()):
        yield note(", ".join(missing), "it is not on the record, and its events give it", "which version wrote it")


def _find_differences(recorded: Any, gathered: Any, place: str, *, alike: bool) -> Iterator[str]:
    """Where two documents differ; unless one version wrote both (`alike`), one may know more, and word it otherwise."""
    if isinstance(recorded, Mapping) and isinstance(gathered, Mapping):
        for name in dict.fromkeys((*recorded, *gathered)):
            where = f"{place}.{name}".lstrip(".")
            if name in recorded and name in gathered:
                yield from _find_differences(recorded[name], gathered[name], where, alike=alike)
            elif alike and (name in recorded or place != "metrics"):
                yield f"{where} is {'not in the events' if name in recorded else 'not on the record'}"
    elif isinstance(recorded, list) and isinstance(gathered, list) and len(recorded) == len(gathered):
        for index, (one, other) in enumerate(zip(recorded, gathered, strict=True)):
            yield from _find_differences(one, other, f"{place}[{index}]", alike=alike)
    elif not is_same(recorded, gathered):
        reworded = not alike and OUR_WORDS.fullmatch(place)
        if not reworded or _find_numbers(recorded) != _find_numbers(gathered):
            yield f"{place} is {_shorten(recorded)} on the record, {_shorten(gathered)} by its events"


def _shorten(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _find_numbers(sentence: object) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", str(sentence))


# The record by itself: its sums, its throughputs, its verdicts, and what no machine can do


@check("series", "every rank is there, with a time, a count and a loss for every step")
def series(case: RecordCase) -> Iterator[CheckResult]:
    record, traces, steps = case.record, case.record.timeline.ranks, case.record.timeline.steps
    valid, topology = record.status == "valid", Topology.parse(record.plan.topology)
    numbers = [trace.rank for trace in traces]
    if numbers != [rank for rank in range(topology.devices) if valid or rank in numbers]:
        yield wrong(f"ranks {numbers} of a {topology} run", "one of them is missing or too many", "the series")
    if record.means_only and not record.means_only.damaged:
        raise CannotCheckError(str(record.means_only))
    if record.series_file:
        yield from _compare_summary(record)
    for trace in traces if not record.series_file else ():
        counts = {len(kept) for kept in (trace.wait_ns, trace.compute_ns, trace.items)}
        if len(counts | ({steps} if valid else set())) > 1:
            evidence = f"rank {trace.rank}: {', '.join(map(str, sorted(counts)))} of {steps}"
            yield wrong(evidence, "a step leaves one value in each", "what was cut")
    missing = list(record.loss).count(None)
    if len(record.loss) != steps or (valid and missing):
        evidence = f"{len(record.loss)} losses, {missing} not finite, {steps} steps"
        yield wrong(evidence, "a valid run has a finite loss for every step", "the losses, and the status")


def _compare_summary(record: Record) -> Iterator[CheckResult]:
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
def phases(case: RecordCase) -> Iterator[CheckResult]:
    computed = {phase: ns / 1e9 for phase, ns in case.record.timeline.phases_ns.items()}
    recorded = case.document["phases"]
    unlike = [phase for phase in {**computed, **recorded} if not is_same(recorded.get(phase), computed.get(phase))]
    if unlike:
        shown = ", ".join(f"{phase} {recorded.get(phase)!r}, computed {computed.get(phase)!r}" for phase in unlike)
        yield wrong(shown, "a phase is the sum of what was charged to it", "the phases, and the series")
    total, e2e = sum(recorded.values()), case.value("e2e_time")
    if not is_same(total, e2e) and "e2e_time" in case.record.metrics:
        yield wrong(f"sum {total!r} s, e2e_time {e2e!r} s", "phases never overlap and leave nothing out", "the phases")


@check("metrics", "throughputs, their intervals and mfu follow from the series")
def metrics(case: RecordCase) -> Iterator[CheckResult]:
    record = case.record
    case.require_steps()
    computed = measure(Measured(item=record.item, timeline=record.timeline, flops=record.environment.flops))
    expected = withhold(computed) if record.status == "invalid" else computed
    for alias in (alias for alias in FOLLOWING if alias in record.metrics):
        one, other = record.metrics[alias], expected[alias]
        recorded, found = ((each.unit, each.value, *(each.interval or (None, None))) for each in (one, other))
        if not all(map(is_same, recorded, found)):
            why = "recomputed from the series of the record it is another"
            yield wrong(f"{alias}: {recorded}, computed {found}", why, "which of the two was changed")


@check("quality", "the quality is that of the last evaluation, judged by the recipe's target")
def quality(case: RecordCase) -> Iterator[CheckResult]:
    recorded, known = case.record.quality, workloads.facts_of(case.record)
    goal = float(case.record.plan.recipe["target"])
    shown = f"{recorded.name} {recorded.value!r}"
    if not is_same(recorded.goal, goal):
        evidence = f"goal {recorded.goal!r}, target {goal!r}"
        yield wrong(evidence, "the recipe's target is the goal", "the plan and the goal")
    last = recorded.history[-1].values.get(recorded.name) if recorded.history else None
    if not is_same(recorded.value, last):
        why = "the quality of a run is what its last evaluation found, not its best"
        yield wrong(f"{shown}, last evaluated {last!r}", why, "the evaluations")
    if recorded.reached is not (last is not None and meets_goal(last, goal, recorded.better)):
        evidence = f"{shown}, goal {recorded.goal!r}, reached {recorded.reached!r}"
        yield wrong(evidence, "the verdict does not follow from the figures", "the evaluations and the target")
    facts = known.find_quality(recorded.name) if known else None
    least, most = (facts.least, facts.most) if facts else (None, None)
    if last is not None and not (-math.inf if least is None else least) <= last <= (math.inf if most is None else most):
        yield wrong(f"{recorded.name} {last!r}", "such a score does not exist", "the evaluations")


@check("ending", "the status, the reason for the end and the steps agree")
def ending(case: RecordCase) -> Iterator[CheckResult]:
    record, clock = case.record, case.record.environment.clock
    if (record.status == "valid") != (record.ended in endings.COMPLETE):
        yield wrong(f"{record.status}: {record.ended}", "this end does not belong to this status", "the log of the run")
    if clock is not None and clock.apart > CLOCKS_FAR_APART and record.status == "valid":
        evidence = f"{clock.device_s:.4g} s by the device's events, {clock.host_s:.4g} s by the host's clock"
        yield wrong(evidence, "a device that counts time unlike the host gives no valid result", "the device's events")
    limit, steps = record.plan.limits.steps or math.inf, record.timeline.steps
    by_steps = record.ended == endings.STEPS and record.plan.resume_from is None
    if steps > limit or (by_steps and steps != limit):
        evidence = f"{record.ended}: {steps} steps, {record.plan.limits} asked for"
        yield wrong(evidence, "what was asked for and what was done do not end so", "whether the series was cut")


@check("precision", "the recorded precision is the one the first step's matmuls ran in")
def precision(case: RecordCase) -> Iterator[CheckResult]:
    if (proof := case.record.environment.precision) is None:
        raise CannotCheckError("the record holds no proof of its precision")
    found = name_precision(proof.multiplications, proof.weights, proof.tf32, proof.autocast, proof.inside)
    if proof.ran != found:
        evidence = f"{proof.ran} on the record; its matmuls make it {found}"
        yield wrong(evidence, "the precision follows from the matmuls that were recorded", "the label, and the proof")


@check("machine", "the peak is the card's, and no rank held more memory than there is")
def machine(case: RecordCase) -> Iterator[CheckResult]:
    environment, total = case.record.environment, case.value("mem_total")
    for alias, most in (("mem", 1.0), ("mem_device", 1.05)):  # a card's own tool counts what its framework cannot see
        used = case.value(alias)
        if used is not None and not 0 <= used <= (total or math.inf) * most:
            yield wrong(f"{alias} {used:g} of {total or 0:g} GiB", "more was used than there is", "the metrics")
    known, flops = peaks.find_card(environment.device.name), environment.flops
    peak = flops.peak_tflops if flops else None
    family = Precision.parse(case.record.plan.precision).family
    sheet = known.tflops.get(family) if known else None
    if known and peak is not None and sheet is not None and not is_same(peak, sheet, 0.01):
        evidence = f"{peak:g} TFLOP/s; {sheet:g} by the {known.source}"
        yield doubtful(evidence, f"another figure is known of this card in {family}", "the platform file that was used")


@check("doubts", "every doubt the numbers ask for stands on the record, and no other")
def doubts(case: RecordCase) -> Iterator[CheckResult]:
    record, known = case.record, workloads.facts_of(case.record)
    case.require_steps()
    # another version may not have known it, or defined warm-up, drift and intervals otherwise
    same = record.trainmark == trainmark.__version__ and case.document.get("schema") == RECORD_SCHEMA
    bad = wrong if same else doubtful
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


CHECKS: tuple[Check[RecordCase], ...] = (
    hashes, events_agree, series, phases, metrics, quality, ending, precision, machine, doubts,
)  # fmt: skip


# Event files, each by itself


@dataclass(frozen=True, kw_only=True)
class Log:
    """An event file."""

    path: Path
    data: bytes

    @cached_property
    def lines(self) -> list[tuple[int, events.AnyEvent | events.Unknown | None]]:
        """Line numbers and events; None is a line that is no event. An empty line marks another writer."""
        writer = parse_writer(self.path.name)
        source = writer.source if writer else "rank"
        whole = self.data.split(b"\n")[:-1]
        return [(number, read_line(line, source)) for number, line in enumerate(whole, 1) if line.strip()]

    @cached_property
    def events(self) -> list[tuple[int, events.AnyEvent]]:
        return [(number, event) for number, event in self.lines if isinstance(event, events.Event)]

    def require_begin(self) -> None:
        if not any(isinstance(event, _BEGINS) for _, event in self.events):
            raise CannotCheckError("this is no log of a rank or a sampler")


_BEGINS = (events.Begin, events.SamplerBegin)
_ENDS = (events.End, events.Failed, events.SamplerEnd)
_KNOWN = {kind.__struct_config__.tag for kind in events.Event.__subclasses__()}


@check("lines", "every line is one whole event")
def lines(log: Log) -> Iterator[CheckResult]:
    if not log.events:
        yield wrong(f"{len(log.lines)} lines", "there is no event in it", "whether this is an event log")
        return
    after = [event for _, event in log.lines[1:]] + [None]
    for (number, event), following in zip(log.lines, after, strict=True):
        if isinstance(event, events.Unknown) and event.kind not in _KNOWN:
            yield note(f"line {number}: {event.kind}", "this version does not know such an event", "which one wrote it")
        elif isinstance(event, events.Event):
            continue
        elif isinstance(following, _BEGINS):
            yield note(f"line {number}", "it was cut off where the rank was started again", "why it was started again")
        else:
            yield wrong(f"line {number}", "it is no event, and no writer leaves such a line", "what was changed")
    if not log.data.endswith(b"\n"):
        yield note("the last line", "it was cut off, and was left out", "whether the run was killed, or still runs")


@check("log-order", "a log begins at its beginning, and its steps have unbroken numbers")
def order(log: Log) -> Iterator[CheckResult]:
    log.require_begin()
    remedy = "which lines were taken out, or put in"
    number, first = log.events[0]
    if not isinstance(first, _BEGINS):
        yield wrong(f"line {number}", "the first event is the begin", remedy)
    expected: int | None = None
    for number, event in log.events:
        if isinstance(event, events.Ready):
            expected = event.first_step
        elif isinstance(event, events.Steps):
            if expected is not None and event.first != expected:
                evidence = f"line {number}: step {event.first} where {expected} is next"
                yield wrong(evidence, "every step is written down once", remedy)
            expected = event.first + len(event.compute_ns)


@check("log-end", "the log has an end")
def end(log: Log) -> Iterator[CheckResult]:
    log.require_begin()
    last = log.events[-1][1]
    if not isinstance(last, _ENDS):
        evidence = f"last event: {last.__struct_config__.tag}"
        yield note(evidence, "the writer did not say that it ended", "whether it still runs, or was killed")


MAX_LOG_BYTES = 1 << 30


def audit_logs(folder: Path) -> list[Audit]:
    """All logs of a run's ranks and samplers; the record's audit checks their hashes."""
    paths = sorted([*folder.glob("rank*.jsonl"), *folder.glob("telemetry*.jsonl")])
    if not paths:
        raise UsageError(f"{folder} holds no event log of a rank; name a run folder, or a .jsonl file")
    return [audit_log(path) for path in paths]


def audit_log(path: Path) -> Audit:
    """One event file by itself."""
    try:
        log = Log(path=path, data=read_plain(path, MAX_LOG_BYTES))
    except OSError as error:
        raise UsageError(f"event log {path} cannot be read: {error.strerror}") from error
    if not log.events and parse_writer(path.name) is None:
        raise UsageError(f"log {path} is of no known kind, and nothing was checked; no line of it is an event of a run")
    name = f"{path.absolute().parent.name}/{path.name}"
    return Audit(title=name, checks=run_checks((lines, order, end), log, name))
