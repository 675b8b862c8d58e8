"""Holds a run's event files against themselves, and against the record that was made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import trainmark
from trainmark.spec import events
from trainmark.spec.audit import Audit, CannotCheckError, Check, check, doubtful, look, note, same, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import NotReadyError, UsageError
from trainmark.spec.event_files import folded, read_line, whole_log, writer_of
from trainmark.spec.record import RECORD_SCHEMA, Record, upgrade
from trainmark.spec.run_folder import RunFolder, open_run
from trainmark.spec.whole_files import sha256
from trainmark.store.gather import gather

MOST_SHOWN = 3
"""Of one part of a record, as many differences are told."""
OUR_WORDS = re.compile(r"coverage|doubts\[\d+\]\.(text|values.*)|metrics\.\w+\.unavailable")
"""Sentences that are put together when a record is gathered: another source may say the same in other words."""
NOT_COMPARED = ("schema", "kind", "event_files")
"""What says how a record is written; the hashes have a check of their own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A record under audit."""

    record: Record
    document: Mapping[str, Any]
    """As it stands in its file, in whichever schema."""
    folder: Path | None = None
    """The run's own, where it is at hand."""

    @property
    def older(self) -> bool:
        """Whether it was made by definitions of an earlier schema: of warm-up, drift and intervals."""
        return bool(self.document.get("schema") != RECORD_SCHEMA)

    @cached_property
    def run(self) -> RunFolder:
        if self.folder is None:
            raise CannotCheckError("the run's events are not at hand")
        try:
            return open_run(self.folder)
        except NotReadyError as error:
            raise CannotCheckError(str(error)) from error

    @cached_property
    def told(self) -> dict[str, Any]:
        """The record's document as its events make it."""
        found: dict[str, Any] = json.loads(gather(self.run).dumps())
        return found

    @cached_property
    def changed(self) -> dict[str, tuple[str | None, str | None]]:
        """Event files whose hash is not the record's: that on the record, and that of the file."""
        said, found = self.record.event_files, self.run.event_files()
        pairs = {name: (said.get(name), found.get(name)) for name in sorted({*said, *found})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# A record and its events


@check("hashes", "the event files are those the record was made of")
def hashes(case: Case) -> Iterator[CheckResult]:
    if "event_files" not in case.document:
        raise CannotCheckError("the record is of a version that took no hashes of its event files")
    # a machine that was lost in the middle may have written on when the record was made already
    found = doubtful if case.record.status == "incomplete" else wrong
    for name, (said, seen) in case.changed.items():
        yield found(
            f"{name}: SHA-256 {(said or 'none')[:16]} on the record, {(seen or 'none')[:16]} of the file",
            "the file was changed, taken away or put there after the record was made",
            "who can write to the run's folder",
        )


@check("events", "the record is what its events make of it")
def made_of_events(case: Case) -> Iterator[CheckResult]:
    said, wrote = upgrade(case.document), case.told["environment"].get("trainmark") or case.record.trainmark
    told = {**case.told, "trainmark": wrote}
    late = case.record.status == "incomplete" and "event_files" in case.document and case.changed
    words: list[str] = []
    for part in dict.fromkeys((*told, *said)):
        if part in NOT_COMPARED:
            continue
        one, other = ({part: document[part]} if part in document else {} for document in (said, told))
        unlike = list(_unlike(one, other, "", words, alike=wrote == trainmark.__version__))
        more = f" and {len(unlike) - MOST_SHOWN} more" if len(unlike) > MOST_SHOWN else ""
        if unlike:
            yield (doubtful if late else wrong)(
                "; ".join(unlike[:MOST_SHOWN]) + more,
                "gathered anew from the run's events it is another",
                "whether the record or its events were changed",
            )
    if words:
        yield note("; ".join(words[:MOST_SHOWN]), "it says the same in other words", "which source gathered the record")
    if missing := sorted(told["metrics"].keys() - said["metrics"].keys()):
        yield note(", ".join(missing), "it is not on the record, and its events give it", "which version wrote it")


def _unlike(said: Any, told: Any, place: str, words: list[str], *, alike: bool) -> Iterator[str]:
    """Where two documents differ; `words` takes what differs in nothing but our own words.

    Unless one version wrote both (`alike`), one may know more than the other.
    """
    if isinstance(said, Mapping) and isinstance(told, Mapping):
        for name in dict.fromkeys((*said, *told)):
            where = f"{place}.{name}".lstrip(".")
            if name in said and name in told:
                yield from _unlike(said[name], told[name], where, words, alike=alike)
            elif alike and (name in said or place != "metrics"):
                yield f"{where} is {'not in the events' if name in said else 'not on the record'}"
    elif isinstance(said, list) and isinstance(told, list) and len(said) == len(told):
        if said != told:
            for index, (one, other) in enumerate(zip(said, told, strict=True)):
                yield from _unlike(one, other, f"{place}[{index}]", words, alike=alike)
    elif not same(said, told):
        shown = f"{place} is {_short(said)} on the record, {_short(told)} by its events"
        if OUR_WORDS.fullmatch(place) and figures(str(said)) == figures(str(told)):
            words.append(shown)
        else:
            yield shown


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def figures(text: str) -> list[str]:
    """The numbers of a sentence, which another version may say in other words."""
    return re.findall(r"\d+(?:\.\d+)?", text)


RECORD_CHECKS: tuple[Check[Case], ...] = (hashes, made_of_events)


# One event file by itself


@dataclass(frozen=True, kw_only=True)
class Log:
    """An event file, with what is folded of it."""

    path: Path
    data: bytes
    record: Record | None = None
    """What the run left, where it is at hand."""

    @cached_property
    def lines(self) -> list[tuple[int, events.AnyEvent | events.Unknown | None]]:
        """Line numbers and events; None is a line that is none. An empty line is where another writer began."""
        writer = writer_of(self.path.name)
        source = writer.source if writer else "rank"
        whole = self.data.split(b"\n")[:-1]
        return [(number, read_line(line, source)) for number, line in enumerate(whole, 1) if line.strip()]

    @cached_property
    def events(self) -> list[tuple[int, events.AnyEvent]]:
        return [(number, event) for number, event in self.lines if isinstance(event, events.Event)]

    def begun(self) -> None:
        if not any(isinstance(event, _BEGINS) for _, event in self.events):
            raise CannotCheckError("this is no log of a rank or a sampler")


_BEGINS = (events.Begin, events.SamplerBegin)
_ENDS = (events.End, events.Failed, events.SamplerEnd)
_BY_THREADS = (events.HostSample, events.DeviceSamples, events.Unavailable)
"""Two threads of a sampler write one file: each keeps its own order."""
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
    log.begun()
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
        elif isinstance(event, events.Evaluated) and expected is not None and event.step != expected:
            yield wrong(
                f"line {number}: evaluated at step {event.step} after step {expected}",
                "an evaluation follows the steps before it",
                "which lines were taken out, or put in",
            )


@check("log-clock", "clocks only go forward")
def clock(log: Log) -> Iterator[CheckResult]:
    last: dict[tuple[str, type | None], int] = {}
    for number, event in log.events:
        if isinstance(event, _BEGINS):
            last = {}
        for name in ("at_ns", "elapsed_ns"):
            now, key = getattr(event, name, None), (name, type(event) if isinstance(event, _BY_THREADS) else None)
            if now is None:
                continue
            if now < last.get(key, 0):
                yield wrong(
                    f"line {number}: {name} {now} after {last.get(key, 0)}", "this clock never goes back", "the log"
                )
            last[key] = now


@check("log-end", "the log has an end")
def end(log: Log) -> Iterator[CheckResult]:
    log.begun()
    last = log.events[-1][1]
    if not isinstance(last, _ENDS):
        said = f"last event: {last.__struct_config__.tag}"
        yield note(said, "the writer did not say that it ended", "whether it still runs, or was killed")


@check("log-record", "the record was made of this very file")
def of_record(log: Log) -> Iterator[CheckResult]:
    if log.record is None or not log.record.event_files:
        raise CannotCheckError("the run's record is not at hand" if log.record is None else "it took no hashes")
    for path in (log.path, folded(log.path)):
        said, found = log.record.event_files.get(path.name), sha256(path) if path.exists() else None
        if said == found:
            continue
        yield wrong(
            f"{path.name}: SHA-256 {(said or 'none')[:16]} on the record, {(found or 'none')[:16]} of the file",
            "the file was changed after the record was made, or is of another run",
            "who can write to the run's folder",
        )


LOG_CHECKS: tuple[Check[Log], ...] = (lines, order, clock, end)


def audit_log(path: Path, record: Record | None = None) -> Audit:
    """One event file, and whether it is what the record was made of."""
    return _audited(path, record, (*LOG_CHECKS, of_record))


def audit_logs(folder: Path, *, recorded: bool = False) -> list[Audit]:
    """All logs of ranks and samplers of a run; where it is `recorded`, its record's audit looks at their hashes."""
    paths = sorted([*folder.glob("rank*.jsonl"), *folder.glob("telemetry*.jsonl")])
    if not paths:
        raise UsageError(f"{folder} holds no event log of a rank; name a run folder, or a .jsonl file")
    return [_audited(path, None, LOG_CHECKS if recorded else (*LOG_CHECKS, of_record)) for path in paths]


def _audited(path: Path, record: Record | None, checks: tuple[Check[Log], ...]) -> Audit:
    try:
        data = whole_log(path)
    except OSError as error:
        raise UsageError(f"event log {path} cannot be read: {error.strerror}") from error
    name = f"{path.absolute().parent.name}/{path.name}"
    log = Log(path=path, data=data, record=record)
    if not log.events and writer_of(path.name) is None:
        raise UsageError(f"log {path} is of no known kind, and nothing was checked; no line of it is an event of a run")
    return Audit(title=name, checks=look(checks, log, name))
