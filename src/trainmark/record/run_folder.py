"""Reads a run's folder incrementally, during the run and after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from trainmark.record import events
from trainmark.record.atomic_files import sha256
from trainmark.record.errors import NotReadyError, TrainmarkError
from trainmark.record.events import AnyEvent, EventTail, Source, Unknown, Writer, parse_writer
from trainmark.record.foreign_files import read_plain
from trainmark.record.links import AllReduce, LinkLevel, PairLink
from trainmark.record.machine import (
    Artifact,
    CheckpointFacts,
    DeviceClock,
    ExchangeShape,
    FlopsFacts,
    MachineFacts,
    PrecisionProof,
    StepCheck,
    StepProfile,
)
from trainmark.record.numbers import Target, Whole
from trainmark.record.plan import Plan
from trainmark.record.record import Restart
from trainmark.record.timeline import RankTrace

RECENT_STEPS = 4096
"""Steps kept per rank by a reader that only watches a run."""
SERIES = ("wait_ns", "compute_ns", "exchange_ns", "items", "loss")


_KEPT: dict[type, str] = {
    events.EnvironmentSeen: "environment",
    events.PrecisionSeen: "precision",
    events.ExchangeCounted: "exchange",
    events.Profiled: "profile",
    events.FlopsCounted: "flops",
    events.OperatorsRepeated: "operators",
    events.Failed: "failed",
}
"""Events of which a log keeps the last, by the name of its field."""


@dataclass(kw_only=True)
class _Again:
    """A restarted worker whose first step is not known yet."""

    startup_ns: int
    reason: str | None
    """The failure of the worker before it, unless it only followed from another rank's."""
    damaged: tuple[str, ...] = ()


@dataclass(kw_only=True)
class RankLog:
    rank: int = 0
    host: str = ""
    pid: int | None = None
    restart: int = 0
    """Restarts before this worker began."""
    startup_ns: int = 0
    steps_per_epoch: int | None = None
    items_per_step: float | None = None
    first_step: int = 0
    """Where the run began; 0 unless it resumed another."""
    wait_ns: list[int] = field(default_factory=list)
    compute_ns: list[int] = field(default_factory=list)
    exchange_ns: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    stretches: list[events.StretchTimed] = field(default_factory=list)
    evaluations: list[events.Evaluated] = field(default_factory=list)
    samples: int = 0
    """Samples of the current evaluation this rank has evaluated."""
    environment: MachineFacts | None = None
    precision: PrecisionProof | None = None
    step_check: StepCheck | None = None
    """How one step on the device compared with the CPU."""
    resumed: events.Resumed | None = None
    restarts: list[Restart] = field(default_factory=list)
    link: tuple[AllReduce, ...] = ()
    """What the links between the ranks were measured to carry."""
    link_levels: tuple[LinkLevel, ...] = ()
    """The same for each kind of link apart."""
    pairs: list[PairLink] = field(default_factory=list)
    """What pairs of nodes were measured to carry."""
    pair_hosts: tuple[str, ...] = ()
    exchange: ExchangeShape | None = None
    profile: StepProfile | None = None
    flops: FlopsFacts | None = None
    saved: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """For each checkpoint its step and the phases until then."""
    saved_bytes: int | None = None
    """Of the last of them."""
    restored_ns: int | None = None
    """Time to load one."""
    before_ns: dict[str, int] = field(default_factory=lambda: {"startup": 0})
    """Time before the worker's first line: start-up, and what a restart kept and lost."""
    phases_ns: dict[str, int] = field(default_factory=dict)
    memory_peak_bytes: int | None = None
    suspended_ns: int = 0
    apart_at: int | None = None
    """The step of the first evaluation at which its weights were not those of all ranks."""
    end: events.End | None = None
    failed: events.Failed | None = None
    artifacts: tuple[Artifact, ...] = ()
    no_sample: str | None = None
    """Why the trained model left no sample of its work, where it should have."""
    rounds: list[events.RoundVerified] = field(default_factory=list)
    """Of a verify, which trains nothing."""
    operators: events.OperatorsRepeated | None = None
    torn: bool = False
    """The event file ends in the middle of a line, which was dropped."""
    device_from_ns: int | None = None
    """When it first touched its device, by the machine's monotonic clock."""
    trained_from_ns: int | None = None
    """When the first step came, by the machine's monotonic clock."""
    trained_until_ns: int | None = None
    phase: str = "startup"
    _again: _Again | None = None

    keep: int | None = None
    """Minimum number of last steps to keep; None keeps all."""
    forgotten: int = 0
    forgotten_ns: int = 0

    @property
    def kept_from(self) -> int:
        """The number of the first step that is kept."""
        return self.first_step + self.forgotten

    @property
    def step(self) -> int:
        """The number of the step that comes next."""
        return self.kept_from + len(self.compute_ns)

    @property
    def busy_ns(self) -> int:
        """What all steps took, waiting included."""
        return self.forgotten_ns + sum(self.wait_ns) + sum(self.compute_ns)

    @property
    def clock_gap_ns(self) -> int:
        """How much longer its clock ran over training than steps and phases add up to; 0 where it was started again."""
        if self.trained_from_ns is None or self.trained_until_ns is None or self.restart:
            return 0
        told = sum(ns for phase, ns in self.phases_ns.items() if phase not in ("startup", "init"))
        return self.trained_until_ns - self.trained_from_ns - self.busy_ns - told

    def forget(self, keep: int) -> None:
        """Drops all but the last `keep` steps."""
        old = max(0, len(self.compute_ns) - keep)
        self.forgotten_ns += sum(self.wait_ns[:old]) + sum(self.compute_ns[:old])
        self.forgotten += old
        for name in SERIES:
            setattr(self, name, getattr(self, name)[old:])

    def add(self, event: AnyEvent | Unknown) -> None:
        match event:
            case events.Steps():
                self.phase = "train"
                for name in SERIES:
                    getattr(self, name).extend(getattr(event, name))
                if self.keep is not None and len(self.compute_ns) > 2 * self.keep:
                    self.forget(self.keep)
            case events.StretchTimed():
                self.stretches.append(event)
            case events.Alive():
                self.phase, self.samples = event.phase, event.samples
            case events.Begin():
                self._begin(event)
            case events.DeviceOpening():
                self.device_from_ns = self.device_from_ns or event.at_ns
            case events.Resumed():
                self.restored_ns = event.took_ns
                if self._again is None:
                    self.resumed = event
                else:
                    self._again.damaged = tuple(event.damaged)
            case events.Ready():
                self._ready(event)
            case events.Evaluated():
                self.evaluations.append(event)
                self.phase = "train"
            case events.LinksMeasured():
                self.link, self.link_levels = tuple(event.results), tuple(event.levels)
            case events.PairsMeasured():
                self.pairs += event.pairs
                self.pair_hosts = tuple(event.hosts)
            case events.Saved():
                self.saved.append((event.step, self._add_phases(event.phases_ns)))
                self.saved_bytes = event.size_bytes
                self.phase = "train"
            case events.Phases():
                self.phases_ns, self.memory_peak_bytes = self._add_phases(event.phases_ns), event.memory_peak_bytes
                self.trained_until_ns, self.suspended_ns = event.at_ns, event.suspended_ns
            case events.ArtifactsLeft():
                self.artifacts = tuple(event.artifacts)
            case events.RanksApart():
                self.apart_at = event.step if self.apart_at is None else self.apart_at
            case events.StepCompared():
                if self.step_check is None or not self.step_check.differing:
                    self.step_check = event
            case events.NoSample():
                self.no_sample = event.reason
            case events.RoundVerified():
                self.rounds.append(event)
            case events.End():
                self.end, self.phase = event, "end"
            case _ if type(event) in _KEPT:
                setattr(self, _KEPT[type(event)], event)

    def _begin(self, event: events.Begin) -> None:
        """The worker's first line; an earlier worker's steps are kept until this one's first step is known."""
        if self.pid is None:
            self.startup_ns, self.before_ns = event.startup_ns, {"startup": event.startup_ns}
        else:
            reason = None if self.failed is None or self.failed.consequence else self.failed.sentence
            self._again = _Again(startup_ns=event.startup_ns, reason=reason)
        self.rank, self.host, self.pid, self.phase = event.rank, event.host, event.pid, "init"
        self.restart = event.restart
        self.failed = self.end = None

    def _ready(self, event: events.Ready) -> None:
        self.steps_per_epoch, self.items_per_step = event.steps_per_epoch, event.items_per_step
        self.phase = "train"
        if self.trained_from_ns is None:
            self.trained_from_ns = event.at_ns
        if self._again is None:
            self.first_step = event.first_step
        else:
            self._resume_at(event.first_step, self._again)

    def _resume_at(self, step: int, again: _Again) -> None:
        """Drops steps that are repeated, and charges lost time to `restart`."""
        kept = max(0, step - self.first_step)
        for name in SERIES:
            del getattr(self, name)[max(0, kept - self.forgotten) :]
        if self.forgotten > kept:
            self.forgotten, self.forgotten_ns = kept, self.forgotten_ns * kept // self.forgotten  # about
        self.saved = [(at, phases) for at, phases in self.saved if kept and at <= step]
        self.evaluations = [event for event in self.evaluations if kept and event.step <= step]
        self.first_step = self.first_step if kept else step
        phases = dict(self.saved[-1][1]) if self.saved else {"startup": self.startup_ns}
        lost_ns = max(0, again.startup_ns - sum(phases.values()) - self.busy_ns)
        self.before_ns = {**phases, "restart": phases.get("restart", 0) + lost_ns}
        self.phases_ns, self._again = {}, None
        self.restarts.append(Restart(step=step, lost_s=lost_ns / 1e9, reason=again.reason, damaged=again.damaged))

    def _add_phases(self, phases_ns: Mapping[str, int]) -> dict[str, int]:
        """A worker's phases plus those before it, which its start-up stands for."""
        whole = dict(self.before_ns)
        for phase, ns in phases_ns.items():
            if phase != "startup":
                whole[phase] = whole.get(phase, 0) + ns
        return whole

    def clock(self) -> DeviceClock | None:
        """The device's events beside the host's clock, of all stretches; None where the host times the steps."""
        if not self.stretches:
            return None
        return DeviceClock(
            rank=self.rank,
            stretches=len(self.stretches),
            host_s=sum(stretch.host_ns for stretch in self.stretches) / 1e9,
            device_s=sum(stretch.device_ns for stretch in self.stretches) / 1e9,
        )

    def checkpoint(self) -> CheckpointFacts | None:
        """What saving and restoring took; None where neither happened."""
        if not self.saved and self.restored_ns is None:
            return None
        waited_ns = [0, *(phases.get("checkpoint", 0) for _, phases in self.saved)]
        each_ns = [later - sooner for sooner, later in pairwise(waited_ns)]
        return CheckpointFacts(
            size_bytes=self.saved_bytes,
            saves=len(self.saved),
            save_s=median(each_ns) / 1e9 if each_ns else None,
            restore_s=None if self.restored_ns is None else self.restored_ns / 1e9,
        )

    def trace(self) -> RankTrace:
        return RankTrace(
            rank=self.rank,
            host=self.host,
            phases_ns=self.phases_ns or self.before_ns,
            wait_ns=self.wait_ns,
            compute_ns=self.compute_ns,
            exchange_ns=self.exchange_ns or (),
            items=self.items,
            memory_peak_bytes=self.memory_peak_bytes,
        )


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
    unavailable: Mapping[str, str] = field(default_factory=dict)
    end: events.SamplerEnd | None = None
    last_ns: int | None = None

    def add(self, event: AnyEvent | Unknown) -> None:
        match event:
            case events.SamplerBegin():
                self.begin = event
            case events.DeviceSamples():
                self.last = tuple(event.readings)
            case events.Unavailable():
                self.unavailable = event.fields
            case events.SamplerEnd():
                self.end = event
        self.last_ns = getattr(event, "at_ns", self.last_ns)

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
            self.follow(f"rank{rank}.jsonl")

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

    def update(self) -> bool:
        """Reads new events; True where a rank wrote some (samplers keep writing while a rank hangs)."""
        if self._finds_files:
            with contextlib.suppress(NotReadyError):
                self.head = self.head or read_head(self.path)
                self.plan = self.plan or read_plan(self.path)
            for name in _names(self.path):
                self.follow(name)
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
        return sorted(_numbers(self.path, "telemetry"))

    def sampler_events(self, launcher: int) -> Iterator[AnyEvent | Unknown]:
        return EventTail(self.path / f"telemetry{launcher}.jsonl").new_events()

    def event_files(self) -> dict[str, str]:
        """SHA-256 of every event file, by name."""
        names = sorted(name for name in _names(self.path) if parse_writer(name))
        return {name: sha256(self.path / name) for name in names}

    def follow(self, name: str) -> None:
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
    """A run's folder with its plan and its launcher's events, without its ranks and samplers yet; NotReadyError where
    it is none."""
    folder = RunFolder(path, only_ranks=())
    folder.head, folder.plan = read_head(path), read_plan(path)
    folder.follow(LAUNCHER_FILE)
    folder.update()
    return folder


def read_head(path: Path) -> RunHead:
    """The head of a run folder; NotReadyError where it is missing or damaged."""
    try:
        return msgspec.json.decode(read_plain(path / HEAD_FILE), type=RunHead)
    except OSError as error:
        raise NotReadyError(f"{path} is not a run folder: {HEAD_FILE}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NotReadyError(f"{path} is not a run folder: {HEAD_FILE} is damaged: {error}") from error


def read_plan(path: Path) -> Plan:
    """The plan of a run folder; NotReadyError where it is missing or damaged."""
    try:
        return Plan.from_json(msgspec.json.decode(read_plain(path / PLAN_FILE)))
    except OSError as error:
        raise NotReadyError(f"{path} does not say what was to run: {PLAN_FILE}: {error.strerror}") from error
    except (ValueError, RecursionError, TrainmarkError) as error:
        raise NotReadyError(f"{path} does not say what was to run: {PLAN_FILE} is damaged: {error}") from error


def _numbers(folder: Path, source: Source) -> list[int]:
    """Numbers of the ranks or samplers that have written."""
    return [writer.number for name in _names(folder) if (writer := parse_writer(name)) and writer.source == source]


def _names(folder: Path) -> list[str]:
    """Names of the plain files in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except OSError:
        return []
