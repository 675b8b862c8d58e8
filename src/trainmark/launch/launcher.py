"""Runs a plan on the ranks of this launcher, together with other launchers, and writes its record."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.launch import cluster_env
from trainmark.launch.coordinator import LOST_S, Coordinator, Heartbeat
from trainmark.launch.signals import catch_signals
from trainmark.launch.workers import WorkerProcesses
from trainmark.record import endings, gather
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import (
    HangError,
    InvalidResultError,
    NotReadyError,
    SignalError,
    TrainmarkError,
    WorkloadError,
    error_from_exit_code,
)
from trainmark.record.events import BatchFound, Event, EventWriter, Failed, FaultFound
from trainmark.record.machine import FillSearch
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.run_folder import HEAD_FILE, LAUNCHER_FILE, PLAN_FILE, RankLog, RunHead
from trainmark.record.store import Store
from trainmark.record.workload_facts import derive_facts
from trainmark.train.collectives import LostStoreError
from trainmark.train.ranks import read_host_name

NEWS_TIMEOUT_S = 3.0
"""How long a launcher whose ranks only lost peers waits for the report of another."""
NEWS_POLL_S = 0.05


class Restarts:
    """The restarts of one run, as often as its plan allows."""

    def __init__(
        self, workers: WorkerProcesses, coordinator: Coordinator | None = None, heartbeat: Heartbeat | None = None
    ) -> None:
        self._workers = workers
        self._coordinator, self._heartbeat = coordinator, heartbeat
        self._stopped = not workers.plan.max_restarts

    def is_due(self, *, ended: bool) -> bool:
        """Whether to restart the ranks now; `ended` is whether all local ranks have ended."""
        workers = self._workers
        if self._stopped:
            return False
        if self._coordinator is None or self._heartbeat is None:
            return workers.failed and workers.may_restart
        if self._heartbeat.restarts > workers.restarts:
            return True
        if not workers.failed and not ended:
            return False
        useful = workers.failed and workers.may_restart
        if useful and not workers.deaths and all(failed.consequence for _, failed in workers.failures):
            self._wait_for_news(self._heartbeat)
        # the first launcher decides for all: ranks cannot restart once others have finished
        decision = self._coordinator.decide_restart(workers.restarts, "restart" if useful else "stop")
        self._stopped = decision == "stop"
        return not self._stopped

    def _wait_for_news(self, heartbeat: Heartbeat) -> None:
        """Another launcher knows better whether a restart could help."""
        deadline_s = time.monotonic() + NEWS_TIMEOUT_S
        while heartbeat.restarts == self._workers.restarts and not heartbeat.fault and time.monotonic() < deadline_s:
            time.sleep(NEWS_POLL_S)


@dataclass(frozen=True, kw_only=True)
class Fault:
    error: TrainmarkError
    consequence: bool = False
    """It only says that another rank is gone."""

    def to_json(self) -> dict[str, Any]:
        return {
            "exit_code": self.error.exit_code,
            "sentence": str(self.error),
            "consequence": self.consequence,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Fault:
        error = error_from_exit_code(document["exit_code"], document["sentence"])
        return cls(error=error, consequence=document["consequence"])


def find_fault(workers: WorkerProcesses) -> Fault | None:
    """The fault of the ranks of this launcher, if any: a reported failure before a silent death, and both before mere
    consequences. A rank that was killed by a signal before any report comes first."""
    failures = workers.failures
    causes = [pair for pair in failures if not pair[1].consequence]
    deaths = workers.deaths
    killed = [death for death in deaths if death.code < 0 and causes and death.at_ns < causes[0][1].at_ns]
    if causes and not killed:
        return _make_reported_fault(workers, *causes[0])
    if deaths:
        death = (killed or deaths)[0]
        log = next(log for log in workers.ranks if log.rank == death.rank)
        sentence = f"{_name_rank(workers, log)} {death.how} {_describe_position(log)}"
        return Fault(error=WorkloadError(_append_log(workers, log, sentence)))
    if failures:
        return _make_reported_fault(workers, *failures[0])
    if workers.silent:  # ended by us, for a fault that another launcher reports
        names = ", ".join(_name_rank(workers, log) for log in workers.silent)
        return Fault(error=WorkloadError(f"{names} was ended with the others"), consequence=True)
    return None


def make_hang_fault(workers: WorkerProcesses) -> Fault:
    where = ", ".join(f"{_name_rank(workers, log)} was last seen {_describe_position(log)}" for log in workers.ranks)
    stacks = f"stacks are in {workers.folder}/rank*.stacks"
    return Fault(error=HangError(f"no progress for {workers.limit_s:.0f} s: {where}; {stacks}"))


def make_lost_fault(workers: WorkerProcesses, heartbeat: Heartbeat, launchers: list[int]) -> Fault:
    who = f"{workers.env.unit} {', '.join(map(str, launchers))}" if workers.env.is_leader else "the leader"
    sentence = (
        f"{who} was not heard from for {heartbeat.lost_after_s:.0f} s while training stood still at step "
        f"{workers.ranks[0].step}: its machine or the link to it is down"
    )
    return Fault(error=WorkloadError(sentence))


def follow_leader(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, fault: Fault | None
) -> Fault | None:
    """The end of a run on a follower: sends faults and files to the leader, whose exit code is that of all."""
    if not heartbeat.lost_launchers():
        with suppress(LostStoreError, HangError):
            if fault:
                coordinator.report(fault.to_json())
            coordinator.send_files({} if coordinator.shares_folder else workers.files())
            code = coordinator.wait_for_end()
            if not coordinator.shares_folder:
                shutil.rmtree(workers.folder, ignore_errors=True)  # the leader has it all
            return Fault(error=error_from_exit_code(code, "")) if code else None
    sentence = str(fault.error) if fault and not fault.consequence else "the leader was lost"
    return Fault(error=WorkloadError(f"{sentence}; what this machine measured is kept in {workers.folder}"))


def collect_faults(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, fault: Fault | None
) -> Fault | None:
    """The first fault, once every follower has sent its files or is lost."""
    if fault:
        coordinator.report(fault.to_json())
    lost = []
    for launcher in range(1, coordinator.env.launchers):

        def is_alive(launcher: int = launcher) -> bool:
            return launcher not in heartbeat.lost_launchers()

        if not coordinator.receive_files(launcher, workers.folder, is_alive):
            lost.append(launcher)
    faults = [Fault.from_json(document) for document in coordinator.faults()]
    if lost and all(each.consequence for each in faults):
        names = ", ".join(coordinator.describe_launcher(launcher) for launcher in lost)
        sentence = f"{names} was lost: nothing was heard from it for {heartbeat.lost_after_s:.0f} s"
        faults.insert(0, Fault(error=WorkloadError(sentence)))
    return choose_first_fault(faults)


def choose_first_fault(faults: Sequence[Fault]) -> Fault | None:
    """Of faults in the order they were noticed, the one that caused the others."""
    if faults and all(isinstance(fault.error, HangError) for fault in faults):
        return Fault(error=HangError("; ".join(str(fault.error) for fault in faults)))
    causes = [fault for fault in faults if not fault.consequence]
    return next(iter(causes), faults[0] if faults else None)


def _make_reported_fault(workers: WorkerProcesses, log: RankLog, failed: Failed) -> Fault:
    sentence = failed.sentence
    if Topology.parse(workers.plan.topology).devices > 1:
        sentence = f"{_name_rank(workers, log)} failed {_describe_position(log)}: {sentence}"
        if failed.exit_code not in endings.SAME_AGAIN:  # their message says all
            sentence = _append_log(workers, log, sentence)
    error = error_from_exit_code(failed.exit_code, sentence)
    error.log = workers.folder / f"rank{log.rank}.log"
    return Fault(error=error, consequence=failed.consequence)


def _name_rank(workers: WorkerProcesses, log: RankLog) -> str:
    several_hosts = workers.env.launchers > 1 and log.host
    return f"rank {log.rank} on {log.host}" if several_hosts else f"rank {log.rank}"


def _describe_position(log: RankLog) -> str:
    return f"in {log.phase} at step {log.step}"


def _append_log(workers: WorkerProcesses, log: RankLog, sentence: str) -> str:
    lines = workers.last_lines(log.rank)
    return f"{sentence}; its last lines:\n{lines}" if lines else sentence


GIT_TIMEOUT_S = 5.0
SOURCE = Path(__file__).resolve().parents[3]
"""The root of a checkout, if this is one."""


def read_revision(source: Path = SOURCE) -> str | None:
    """The git revision, `3f2a91c0d4e5` or `3f2a91c0d4e5-dirty`; None for an installed package, or without git."""
    if not (source / "pyproject.toml").is_file() or not (source / ".git").exists():
        return None
    words = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


POLL_S = 0.1
TERMINATE_LIMIT_S = 20.0
"""Time for a rank to finish its step and flush after SIGTERM."""
AFTER_FAILURE_S = 3.0
"""Time for the other ranks to notice that one has failed."""

Watcher = Callable[[list[RankLog]], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    folder: Path
    error: TrainmarkError | None = None
    """What went wrong."""
    record: Record | None = None
    """Only the leader has it."""

    @property
    def exit_code(self) -> int:
        return self.error.exit_code if self.error else 0

    @property
    def sentence(self) -> str:
        return str(self.error or "")


def run(
    plan: Plan,
    store: Store,
    *,
    group: str | None = None,
    tags: Mapping[str, str] | None = None,
    note: str | None = None,
    watch: Watcher = lambda ranks: None,
    coordinator: Coordinator | None = None,
    fill: FillSearch | None = None,
) -> Outcome:
    """Runs a plan to its end and stores its record, whatever happened.

    Without a coordinator it runs on this machine alone. `fill` is how its batch was found.
    """
    make_folder = partial(make_run_folder, plan, store.runs, group=group, tags=tags or {}, note=note)
    folder = coordinator.begin_run(plan, store.folder, make_folder) if coordinator else make_folder("")
    if fill:
        _write_event(folder, BatchFound(**msgspec.structs.asdict(fill)))
    leads = coordinator is None or coordinator.env.is_leader
    with catch_signals() as signals:
        try:
            outcome = execute(plan, folder, watch, coordinator, signals)
        except BaseException as error:  # also of the watcher: what was measured is kept
            if leads:
                with suppress(Exception):
                    _write_event(folder, FaultFound(exit_code=1, sentence=f"ended by {type(error).__name__}: {error}"))
                    store.add(gather.gather_record(folder))
            raise
        return _conclude(outcome, store, signals) if leads else outcome


def _conclude(outcome: Outcome, store: Store, signals: list[int]) -> Outcome:
    """Writes and stores the record. A signal that came too late to end the run ends what would have followed."""
    found = outcome.error
    try:
        if found:
            _write_event(outcome.folder, FaultFound(exit_code=found.exit_code, sentence=str(found)))
        record = gather.gather_record(outcome.folder)
        store.add(record)
    except TrainmarkError as error:
        if found:  # the first error is the cause
            sentence = f"{found}; and no record of it could be kept: {error}"
            raise error_from_exit_code(found.exit_code, sentence) from error
        raise
    if found:
        log, found = found.log, error_from_exit_code(found.exit_code, record.ended)
        found.log = log
    elif number := endings.BY_SIGNAL.get(record.ended):
        found = SignalError(record.ended, number)
    elif record.status == "invalid":
        found = InvalidResultError(record.ended)
    elif signals:
        name = signal.Signals(signals[0]).name
        found = SignalError(f"{name} came when the run was over ({record.ended}); its record is valid", signals[0])
    return replace(outcome, error=found, record=record)


def _write_event(folder: Path, event: Event) -> None:
    events = EventWriter(folder / LAUNCHER_FILE)
    events.write(event)
    events.close()


def run_task(
    plan: Plan,
    parent: Path,
    task: str,
    words: Sequence[str] = (),
    *,
    coordinator: Coordinator | None,
    watch: Callable[[Path], None] = lambda folder: None,
) -> Outcome:
    """Starts the ranks of a plan for a feature's `worker_task`; its results are in a new folder below `parent`.

    `watch` is called with the folder on new events.
    """
    make_folder = partial(make_run_folder, plan, parent)
    folder = coordinator.begin_run(plan, parent.parent, make_folder) if coordinator else make_folder("")
    with catch_signals() as signals:
        outcome = execute(plan, folder, lambda ranks: watch(folder), coordinator, signals, task=task, words=words)
        if signals and not outcome.error:
            error = SignalError(endings.launcher_ending(signal.Signals(signals[0]).name), signals[0])
            return replace(outcome, error=error)
        return outcome


def execute(
    plan: Plan,
    folder: Path,
    watch: Watcher,
    coordinator: Coordinator | None,
    signals: list[int],
    *,
    task: str = "train",
    words: Sequence[str] = (),
) -> Outcome:
    """Starts and supervises the ranks, and finds the first fault together with the other launchers."""
    here = coordinator.env if coordinator else cluster_env.make_local_env(Topology.parse(plan.topology))
    workers = WorkerProcesses(plan, here, folder, task=task, words=words, coordinator=coordinator)
    heartbeat = coordinator.start_heartbeat(_compute_lost_after_s(plan)) if coordinator else None
    try:
        workers.start()
        fault = _supervise(workers, signals, watch, Restarts(workers, coordinator, heartbeat), heartbeat)
    except (LostStoreError, HangError):
        fault = Fault(error=WorkloadError("the leader was lost"), consequence=True)
    finally:
        workers.end()
    fault = fault or _find_own_fault(workers, signals)
    if coordinator and heartbeat:
        end = collect_faults if here.is_leader else follow_leader
        fault = end(workers, coordinator, heartbeat, fault)
    return Outcome(folder=folder, error=fault.error if fault else None)


def _supervise(
    workers: WorkerProcesses, signals: list[int], watch: Watcher, restarts: Restarts, heartbeat: Heartbeat | None
) -> Fault | None:
    """Until the ranks have ended, or must be ended; returns a fault only where the logs do not tell it."""
    signalled_at_s: float | None = None
    failed_at_s: float | None = None
    handled = 0
    while True:
        ended = workers.wait(POLL_S)
        if workers.read() or ended:
            watch(workers.ranks)
        now = time.monotonic()
        if len(signals) > handled:
            handled = len(signals)
            if handled > 1:
                return None
            signalled_at_s = now
            workers.signal(signals[0])
        if signalled_at_s is not None and now - signalled_at_s > TERMINATE_LIMIT_S and signals[0] == signal.SIGTERM:
            return None
        if not signals and restarts.is_due(ended=ended):
            workers.restart()
            failed_at_s = None
        elif ended:
            return None
        elif workers.failed or (heartbeat and heartbeat.fault):
            failed_at_s = failed_at_s or now
            if now - failed_at_s > AFTER_FAILURE_S:
                return None
        if heartbeat and workers.silent_s > heartbeat.lost_after_s and (lost := heartbeat.lost_launchers()):
            workers.dump_stacks()
            return make_lost_fault(workers, heartbeat, lost)
        if workers.silent_s > workers.limit_s:
            workers.dump_stacks()
            return make_hang_fault(workers)


def _compute_lost_after_s(plan: Plan) -> float:
    """Sooner than the hang timeout, as a lost launcher is the better diagnosis."""
    return LOST_S if plan.hang_timeout_s is None else min(LOST_S, plan.hang_timeout_s / 2)


def _find_own_fault(workers: WorkerProcesses, signals: list[int]) -> Fault | None:
    if signals:
        if all(log.end for log in workers.ranks):
            return None  # they finished their step and reported it
        return Fault(error=SignalError(endings.launcher_ending(signal.Signals(signals[0]).name), signals[0]))
    return find_fault(workers)


def make_run_folder(plan: Plan, parent: Path, token: str, **fields: Any) -> Path:
    """`fields` are further fields of the head."""
    workload = workloads.of_plan(plan)
    stamp = gather.now_utc()
    compact = stamp.replace("-", "").replace(":", "").removesuffix("Z")
    run_id = f"{plan.workload}-{plan.recipe_name}-{plan.topology}-{plan.precision}-{compact}-{secrets.token_hex(3)}"
    folder = parent / run_id
    head = RunHead(
        run_id=run_id,
        created=stamp,
        revision=read_revision(),
        item=workload.item,
        target=workload.target,
        reference_global_batch=workload.reference_global_batch,
        workload_facts=derive_facts(workload).to_json(),
        launcher_host=read_host_name(os.environ),
        launcher_pid=os.getpid(),
        token=token,
        **fields,
    )
    try:
        folder.mkdir(parents=True)
        write_atomic(folder / PLAN_FILE, json.dumps(plan.to_json(), indent=1).encode())
        write_atomic(folder / HEAD_FILE, msgspec.json.format(msgspec.json.encode(head), indent=1))
    except OSError as error:
        raise NotReadyError(f"cannot create the run folder {folder}: {error.strerror}") from error
    return folder
