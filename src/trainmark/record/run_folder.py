"""Reads a run's folder incrementally, during the run and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainmark.record import events
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.events import AnyEvent, EventTail, Source, Unknown, Writer, parse_writer
from trainmark.record.numbers import Target, Whole
from trainmark.record.plan import Plan
from trainmark.record.rank_log import RankLog

HEAD_FILE = "run.json"
PLAN_FILE = "plan.json"
LAUNCHER_FILE = "launcher.jsonl"


class RunHead(Struct, frozen=True, kw_only=True):
    """`run.json`: what a record holds of a run beside its plan."""

    run_id: str
    created: str
    item: str
    target: Target
    reference_global_batch: int
    group: str | None = None
    tags: dict[str, str] = {}
    note: str | None = None
    """With `tags`, the user's labels; older folders have none."""
    revision: str | None = None
    """Of the source that runs, where it is a checkout."""
    workload_facts: dict[str, Any] | None = None
    """Facts of the workload; older folders have none."""
    launcher_host: str = ""
    launcher_pid: Whole | None = None
    """Tells whether the run is alive before its ranks write; older folders have none."""
    token: str = ""
    """Lets another launcher check that it sees the same folder."""


@dataclass(kw_only=True)
class NodeSamples:
    """The latest samples of one machine."""

    launcher: int
    begin: events.SamplerBegin | None = None
    last: tuple[events.DeviceReading, ...] = ()
    """The last device readings."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    end: events.SamplerEnd | None = None
    last_ns: int | None = None
    not_understood: int = 0

    def add(self, event: AnyEvent | Unknown) -> None:
        match event:
            case events.SamplerBegin():
                self.begin = event
            case events.HostSample():
                pass
            case events.DeviceSamples():
                self.last = tuple(event.readings)
            case events.Unavailable():
                self.unavailable = event.fields
            case events.SamplerEnd():
                self.end = event
            case _:
                self.not_understood += 1
                return
        self.last_ns = event.at_ns

    @property
    def elapsed_s(self) -> float | None:
        """From the launch to the last line, by the machine's own steady clock."""
        if self.begin is None or self.last_ns is None:
            return None
        return (self.last_ns - self.begin.launched_ns) / 1e9


class RunFolder:
    """Everything the processes of a run have written so far."""

    def __init__(self, path: Path, *, only_ranks: Iterable[int] | None = None, keep: int | None = None) -> None:
        """With `only_ranks`, only their logs are read, and exist before their first line.

        Each rank's log keeps at least `keep` of its last steps, by default all.
        """
        self.path = path
        self.head: RunHead | None = None
        self.plan: Plan | None = None
        self.ranks: dict[int, RankLog] = {}
        self.samplers: dict[int, NodeSamples] = {}
        self.fill: events.BatchFound | None = None
        self.fault: events.FaultFound | None = None
        """The root failure found by the launchers."""
        self._tails: dict[str, tuple[Writer, EventTail]] = {}
        self._finds_files = only_ranks is None
        self._keep = keep
        for rank in only_ranks or ():
            self._follow(f"rank{rank}.jsonl")

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> list[RankLog]:
        """The ranks in their order."""
        return [self.ranks[rank] for rank in sorted(self.ranks)]

    @property
    def nodes(self) -> list[NodeSamples]:
        """The machines in the order of their launchers."""
        return [self.samplers[launcher] for launcher in sorted(self.samplers)]

    @property
    def not_understood(self) -> int:
        """Lines of ranks and samplers that this version cannot read."""
        return sum(log.not_understood for log in self.logs) + sum(node.not_understood for node in self.nodes)

    def open(self) -> None:
        """Reads the plan and the launcher's events."""
        self.head, self.plan = _head(self.path / HEAD_FILE), _plan(self.path)
        self._follow(LAUNCHER_FILE)
        self.update()

    def update(self) -> bool:
        """Reads new events; True where a rank wrote some (samplers keep writing while a rank hangs)."""
        if self._finds_files:
            self.head = self.head or _head(self.path / HEAD_FILE)
            self.plan = self.plan or _plan(self.path)
            for name in _names(self.path):
                self._follow(name)
        has_news = False
        for writer, tail in self._tails.values():
            for event in tail.new_events():
                self._add(writer, event)
                has_news = has_news or writer.source == "rank"
            if writer.source == "rank":
                self.ranks[writer.number].torn = tail.torn
        return has_news

    def each_rank(self) -> Iterator[RankLog]:
        """Every rank's complete log in turn; its steps are dropped before the next is read."""
        for number in sorted(_numbers(self.path, "rank")):
            self.ranks[number] = log = read_rank(self.path, number)
            yield log
            log.forget(0)

    def list_samplers(self) -> list[int]:
        """Launchers with samples, in order."""
        return sorted(_numbers(self.path, "telemetry"))

    def sampler_events(self, launcher: int) -> Iterator[AnyEvent | Unknown]:
        """All events of a launcher's sampler."""
        return EventTail(self.path / f"telemetry{launcher}.jsonl").new_events()

    def event_files(self) -> dict[str, str]:
        """SHA-256 of every event file, by name."""
        names = sorted(name for name in _names(self.path) if parse_writer(name))
        return {name: sha256(self.path / name) for name in names}

    def _follow(self, name: str) -> None:
        if name in self._tails or (writer := parse_writer(name)) is None:
            return
        self._tails[name] = (writer, EventTail(self.path / name))
        if writer.source == "rank":
            self.ranks[writer.number] = RankLog(rank=writer.number, keep=self._keep)
        elif writer.source == "telemetry":
            self.samplers[writer.number] = NodeSamples(launcher=writer.number)

    def _add(self, writer: Writer, event: AnyEvent | Unknown) -> None:
        if writer.source == "rank":
            self.ranks[writer.number].add(event)
        elif writer.source == "telemetry":
            self.samplers[writer.number].add(event)
        elif isinstance(event, events.BatchFound):
            self.fill = event
        elif isinstance(event, events.FaultFound):
            self.fault = event


def read_rank(path: Path, number: int, *, until: int | None = None) -> RankLog:
    """A rank's log; with `until`, read only up to that many steps."""
    log, tail = RankLog(rank=number), EventTail(path / f"rank{number}.jsonl")
    for event in tail.new_events():
        log.add(event)
        if until is not None and len(log.compute_ns) >= until:
            break
    log.torn = tail.torn
    return log


def open_run(path: Path) -> RunFolder:
    """A run's folder, without its ranks and samplers yet; NotReadyError where it is none."""
    folder = RunFolder(path, only_ranks=())
    folder.open()
    if folder.head is None or folder.plan is None:
        raise NotReadyError(f"{path} is not a run folder: {_explain_damage(path)}")
    return folder


def read_plan(path: Path) -> Plan:
    """The plan of a run folder; NotReadyError where it is missing or damaged."""
    try:
        return Plan.from_json(msgspec.json.decode((path / PLAN_FILE).read_bytes()))
    except OSError as error:
        raise NotReadyError(f"{path} does not say what was to run: {PLAN_FILE}: {error.strerror}") from error
    except (ValueError, RecursionError, TrainmarkError) as error:
        raise NotReadyError(f"{path} does not say what was to run: {PLAN_FILE} is damaged: {error}") from error


def _head(path: Path) -> RunHead | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunHead)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _plan(folder: Path) -> Plan | None:
    try:
        return read_plan(folder)
    except NotReadyError:
        return None


def _explain_damage(path: Path) -> str:
    """Why a folder cannot be read."""
    try:
        msgspec.json.decode((path / HEAD_FILE).read_bytes(), type=RunHead)
        read_plan(path)
    except OSError as error:
        return f"{HEAD_FILE}: {error.strerror}"
    except (ValueError, RecursionError, TrainmarkError) as error:
        return str(error)
    return "it changed while it was read"


def _numbers(folder: Path, source: Source) -> list[int]:
    """Numbers of the ranks or samplers that have written."""
    return [writer.number for name in _names(folder) if (writer := parse_writer(name)) and writer.source == source]


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
