"""Audits a run's event logs: whole lines, unbroken numbers, clocks that only go forward, and a record that agrees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainmark.spec.audit import Audit, CannotCheckError, Check, check, look, note, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import UsageError
from trainmark.spec.record import Record
from trainmark.spec.timeline import RankTrace

SERIES = ("wait_ns", "compute_ns", "exchange_ns", "items")
CLOCKS = ("at_ns", "elapsed_ns")
LAST = ("end", "failed")


@dataclass(frozen=True, kw_only=True)
class LogCase:
    """One event file as it lies on disk."""

    name: str
    data: bytes
    record: Record | None = None
    """What the run left, where it is at hand."""

    @cached_property
    def lines(self) -> list[tuple[int, dict[str, Any] | None]]:
        """Line numbers and events; None is a line that is none. An empty line is where another writer began."""
        whole = self.data.split(b"\n")[:-1]
        return [(number, _event(line)) for number, line in enumerate(whole, 1) if line.strip()]

    @cached_property
    def events(self) -> list[tuple[int, dict[str, Any]]]:
        return [(number, event) for number, event in self.lines if event is not None]

    @property
    def rank(self) -> int | None:
        match = re.fullmatch(r"rank([0-9]+)\.jsonl", self.name.rpartition("/")[2])
        return int(match[1]) if match else None

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        return [(number, event) for number, event in self.events if event["event"] == kind]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


@check("lines", "every line is one whole event")
def lines(case: LogCase) -> Iterator[CheckResult]:
    if not case.events:
        yield wrong(f"{len(case.lines)} lines", "there is no event in it", "whether this is an event log")
        return
    for index, (number, event) in enumerate(case.lines):
        if event is not None:
            continue
        begins = index + 1 < len(case.lines) and (case.lines[index + 1][1] or {}).get("event") == "begin"
        if begins:
            yield note(
                f"line {number}", "it was cut off where the rank was started again", "why the rank was started again"
            )
        else:
            yield wrong(f"line {number}", "it is no event, and no writer leaves such a line", "what was changed")
    if not case.data.endswith(b"\n"):
        yield note(
            "the last line",
            "it was cut off in the middle, and was left out",
            "whether the run was killed, or still runs",
        )


@check("log-order", "a log begins at its beginning, and its steps have unbroken numbers")
def order(case: LogCase) -> Iterator[CheckResult]:
    if not case.of("begin"):
        raise CannotCheckError("this is no log of a rank or a sampler")
    if case.events[0][1]["event"] != "begin":
        yield wrong(
            f"line {case.events[0][0]}: {case.events[0][1]['event']}", "the first event is the begin", "the log"
        )
    expected: int | None = None
    for number, event in case.events:
        if event["event"] == "ready":
            expected = event["first_step"]
        elif event["event"] == "steps":
            if expected is not None and event["first"] != expected:
                yield wrong(
                    f"line {number}: step {event['first']} where {expected} is next",
                    "every step is written down once",
                    "which lines were taken out, or put in",
                )
            expected = event["first"] + len(event["compute_ns"])
        elif event["event"] == "evaluation" and expected is not None and event["step"] != expected:
            yield wrong(
                f"line {number}: evaluated at step {event['step']} after step {expected}",
                "an evaluation follows the steps before it",
                "which lines were taken out, or put in",
            )


@check("log-clock", "clocks only go forward")
def clock(case: LogCase) -> Iterator[CheckResult]:
    last: dict[tuple[str, str], int] = {}
    for number, event in case.events:
        if event["event"] == "begin":
            last = {}
        for name in CLOCKS:
            if name not in event:
                continue
            # two threads of a sampler write one file: each keeps its own order
            key = (name, event["event"] if event["event"] in ("host", "devices", "unavailable") else "")
            if event[name] < last.get(key, event[name]) or event[name] < 0:
                yield wrong(
                    f"line {number}: {name} {event[name]} after {last[key]}", "this clock never goes back", "the log"
                )
            last[key] = event[name]


@check("log-steps", "every step has its times, its items and its loss")
def steps(case: LogCase) -> Iterator[CheckResult]:
    if not case.of("steps"):
        raise CannotCheckError("no step is in it")
    for number, event in case.of("steps"):
        known = [name for name in (*SERIES, "loss") if name in event]
        counts = {len(event[name]) for name in known}
        whole = all(isinstance(value, int) and value >= 0 for name in known if name != "loss" for value in event[name])
        if len(counts) != 1 or not whole or not {"wait_ns", "compute_ns", "items", "loss"} <= set(known):
            yield wrong(f"line {number}", "a step has one whole time, count and loss of each kind", "the log")


@check("log-time", "evaluations happened when the steps before them were done")
def time(case: LogCase) -> Iterator[CheckResult]:
    begins, evaluations = case.of("begin"), case.of("evaluation")
    if len(begins) != 1 or not evaluations:
        raise CannotCheckError("the rank was started again" if len(begins) > 1 else "nothing was evaluated")
    done = begins[0][1]["startup_ns"]
    for number, event in case.events:
        if event["event"] == "steps":
            done += sum(event["wait_ns"]) + sum(event["compute_ns"])
        elif event["event"] == "evaluation" and event["elapsed_ns"] < done:
            yield wrong(
                f"line {number}: {event['elapsed_ns'] / 1e9:.3f} s, and {done / 1e9:.3f} s were spent before",
                "its steps took longer than there was time",
                "the times of the steps",
            )


@check("log-end", "the log has an end")
def end(case: LogCase) -> Iterator[CheckResult]:
    if not case.of("begin"):
        raise CannotCheckError("this is no log of a rank or a sampler")
    last = case.events[-1][1]["event"]
    if last not in LAST:
        yield note(
            f"last event: {last}", "the writer did not say that it ended", "whether it still runs, or was killed"
        )


@check("log-record", "the record holds what the log tells")
def of_record(case: LogCase) -> Iterator[CheckResult]:
    if case.rank is None:
        raise CannotCheckError("this is no log of a rank")
    if case.record is None:
        raise CannotCheckError("the run's record is not at hand")
    trace = next((trace for trace in case.record.timeline.ranks if trace.rank == case.rank), None)
    if trace is None:
        yield wrong(f"rank {case.rank}", "the record has no such rank", "whether both are of one run")
        return
    told = _replayed(case)
    for name in SERIES:
        kept = list(getattr(trace, name))
        if kept != told[name]:
            yield wrong(_first_unlike(name, kept, told[name]), "the record is made of these events", "the record")
    yield from _summed(case, trace)


def _replayed(case: LogCase) -> dict[str, list[int]]:
    """The series as they stood at the end; what a restart trained again counts once."""
    told: dict[str, list[int]] = {name: [] for name in SERIES}
    first: int | None = None
    for _, event in case.events:
        if event["event"] == "ready":
            kept = 0 if first is None else max(0, event["first_step"] - first)
            for name in SERIES:
                del told[name][kept:]
            first = first if first is not None and kept else event["first_step"]
        elif event["event"] == "steps":
            for name in SERIES:
                told[name] += event.get(name, ())
    return told


def _summed(case: LogCase, trace: RankTrace) -> Iterator[CheckResult]:
    phases = case.of("phases")
    if len(case.of("begin")) != 1 or not phases:
        return
    told = phases[-1][1]
    if dict(trace.phases_ns) != told["phases_ns"] or trace.memory_peak_bytes != told["memory_peak_bytes"]:
        yield wrong(
            f"{dict(trace.phases_ns)}, in the log {told['phases_ns']}; memory {trace.memory_peak_bytes}, in the log "
            f"{told['memory_peak_bytes']}",
            "the record is made of these events",
            "the record",
        )


def _first_unlike(name: str, kept: Sequence[int], told: Sequence[int]) -> str:
    for step, (one, other) in enumerate(zip(kept, told, strict=False)):
        if one != other:
            return f"{name} of step {step}: {one} on the record, {other} in the log"
    return f"{name}: {len(kept)} steps on the record, {len(told)} in the log"


CHECKS: tuple[Check[LogCase], ...] = (lines, order, clock, steps, time, end, of_record)


def audit_log(path: Path, record: Record | None = None) -> Audit:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"event log {path} cannot be read: {error.strerror}") from error
    name = f"{path.absolute().parent.name}/{path.name}"
    return Audit(title=name, checks=look(CHECKS, LogCase(name=name, data=data, record=record), name))


def audit_run_folder(folder: Path, record: Record | None = None) -> list[Audit]:
    """All event logs of ranks and samplers of a run."""
    paths = sorted([*folder.glob("rank*.jsonl"), *folder.glob("telemetry*.jsonl")])
    if not paths:
        raise UsageError(f"{folder} holds no event log of a rank; name a run folder, or a .jsonl file")
    return [audit_log(path, record) for path in paths]
