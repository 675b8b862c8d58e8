"""Audits a run's event files, each by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainmark.record import events
from trainmark.record.atomic_files import sha256
from trainmark.record.audit import Audit, CannotCheckError, Check, check, note, run_checks, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.errors import UsageError
from trainmark.record.events import parse_writer, read_line
from trainmark.record.record import Record


@dataclass(frozen=True, kw_only=True)
class Log:
    """An event file."""

    path: Path
    data: bytes
    record: Record | None = None
    """The run's record, where available."""

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
    number, first = log.events[0]
    if not isinstance(first, _BEGINS):
        yield wrong(f"line {number}", "the first event is the begin", "which lines were taken out, or put in")
    expected: int | None = None
    for number, event in log.events:
        if isinstance(event, events.Ready):
            expected = event.first_step
        elif isinstance(event, events.Steps):
            if expected is not None and event.first != expected:
                yield wrong(
                    f"line {number}: step {event.first} where {expected} is next",
                    "every step is written down once",
                    "which lines were taken out, or put in",
                )
            expected = event.first + len(event.compute_ns)


@check("log-end", "the log has an end")
def end(log: Log) -> Iterator[CheckResult]:
    log.require_begin()
    last = log.events[-1][1]
    if not isinstance(last, _ENDS):
        evidence = f"last event: {last.__struct_config__.tag}"
        yield note(evidence, "the writer did not say that it ended", "whether it still runs, or was killed")


@check("log-record", "the record was made of this very file")
def hashes_match(log: Log) -> Iterator[CheckResult]:
    if log.record is None or not log.record.event_files:
        raise CannotCheckError("the run's record is not at hand" if log.record is None else "it took no hashes")
    recorded, found = log.record.event_files.get(log.path.name), sha256(log.path)
    if recorded != found:
        yield wrong(
            f"{log.path.name}: SHA-256 {(recorded or 'none')[:16]} on the record, {found[:16]} of the file",
            "the file was changed after the record was made, or is of another run",
            "who can write to the run's folder",
        )


LOG_CHECKS: tuple[Check[Log], ...] = (lines, order, end)


def audit_log(path: Path, record: Record | None = None) -> Audit:
    """One event file, and whether it is what the record was made of."""
    return _audit_file(path, record, (*LOG_CHECKS, hashes_match))


def audit_logs(folder: Path, *, recorded: bool = False) -> list[Audit]:
    """All logs of a run's ranks and samplers; where `recorded`, the record's audit checks their hashes."""
    paths = sorted([*folder.glob("rank*.jsonl"), *folder.glob("telemetry*.jsonl")])
    if not paths:
        raise UsageError(f"{folder} holds no event log of a rank; name a run folder, or a .jsonl file")
    return [_audit_file(path, None, LOG_CHECKS if recorded else (*LOG_CHECKS, hashes_match)) for path in paths]


def _audit_file(path: Path, record: Record | None, checks: tuple[Check[Log], ...]) -> Audit:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"event log {path} cannot be read: {error.strerror}") from error
    name = f"{path.absolute().parent.name}/{path.name}"
    log = Log(path=path, data=data, record=record)
    if not log.events and parse_writer(path.name) is None:
        raise UsageError(f"log {path} is of no known kind, and nothing was checked; no line of it is an event of a run")
    return Audit(title=name, checks=run_checks(checks, log, name))
