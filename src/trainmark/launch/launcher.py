"""Runs a plan on the ranks of this launcher, together with the other launchers, and makes its record."""

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
from trainmark.launch.restarts import Restarts
from trainmark.launch.signals import catching_signals
from trainmark.launch.workers import WorkerProcesses, WorkerTask
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
from trainmark.record.event_files import EventWriter
from trainmark.record.events import BatchFound, Event, Failed, FaultFound
from trainmark.record.machine import FillSearch
from trainmark.record.plan import Plan, Topology
from trainmark.record.rank_log import RankLog
from trainmark.record.record import Record
from trainmark.record.run_folder import HEAD_FILE, LAUNCHER_FILE, PLAN_FILE, RunHead
from trainmark.record.store import Store
from trainmark.record.workload_facts import derive_facts
from trainmark.train.ranks import host_name
from trainmark.train.rendezvous_store import LostStoreError


@dataclass(frozen=True, kw_only=True)
class Fault:
    error: TrainmarkError
    consequence: bool = False
    """It only says that another rank went away."""

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


def of_workers(workers: WorkerProcesses) -> Fault | None:
    """What went wrong under this launcher, if anything did: a rank that said so before one that ended without a word,
    and that before those that only noticed it. One that a signal killed before another said anything comes first."""
    told = workers.failures
    causes = [pair for pair in told if not pair[1].consequence]
    deaths = workers.deaths
    killed = [death for death in deaths if death.code < 0 and causes and death.at_ns < causes[0][1].at_ns]
    if causes and not killed:
        return _reported_fault(workers, *causes[0])
    if deaths:
        death = (killed or deaths)[0]
        log = next(log for log in workers.ranks if log.rank == death.rank)
        sentence = f"{_name(workers, log)} {death.how} {_at(log)}"
        return Fault(error=WorkloadError(_with_lines(workers, log, sentence)))
    if told:
        return _reported_fault(workers, *told[0])
    if workers.silent:  # we ended them, for what others will tell
        names = ", ".join(_name(workers, log) for log in workers.silent)
        return Fault(error=WorkloadError(f"{names} was ended with the others"), consequence=True)
    return None


def hang(workers: WorkerProcesses) -> Fault:
    where = ", ".join(f"{_name(workers, log)} was last seen {_at(log)}" for log in workers.ranks)
    stacks = f"stacks are in {workers.folder}/rank*.stacks"
    return Fault(error=HangError(f"no progress for {workers.limit_s:.0f} s: {where}; {stacks}"))


def lost_fault(workers: WorkerProcesses, heartbeat: Heartbeat, launchers: list[int]) -> Fault:
    who = f"{workers.env.unit} {', '.join(map(str, launchers))}" if workers.env.leads else "the leader"
    sentence = (
        f"{who} was not heard from for {heartbeat.lost_after_s:.0f} s while training stood still at step "
        f"{workers.ranks[0].step}: its machine or the link to it is down"
    )
    return Fault(error=WorkloadError(sentence))


def follow_leader(
    workers: WorkerProcesses, coordinator: Coordinator, heartbeat: Heartbeat, fault: Fault | None
) -> Fault | None:
    """The end of a run on a follower: faults and files go to the leader, whose exit code then counts everywhere."""
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
    """What went wrong first, once every follower has sent its files or is lost."""
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
        names = ", ".join(coordinator.name_of(launcher) for launcher in lost)
        sentence = f"{names} was lost: nothing was heard from it for {heartbeat.lost_after_s:.0f} s"
        faults.insert(0, Fault(error=WorkloadError(sentence)))
    return first_fault(faults)


def first_fault(faults: Sequence[Fault]) -> Fault | None:
    """Of faults in the order they were noticed, the one the others followed from."""
    if faults and all(isinstance(fault.error, HangError) for fault in faults):
        return Fault(error=HangError("; ".join(str(fault.error) for fault in faults)))
    causes = [fault for fault in faults if not fault.consequence]
    return next(iter(causes), faults[0] if faults else None)


def _reported_fault(workers: WorkerProcesses, log: RankLog, failed: Failed) -> Fault:
    sentence = failed.sentence
    if Topology.parse(workers.plan.topology).devices > 1:
        sentence = f"{_name(workers, log)} failed {_at(log)}: {sentence}"
        if failed.exit_code not in endings.SAME_AGAIN:  # their sentence says all that the last lines would
            sentence = _with_lines(workers, log, sentence)
    return Fault(error=error_from_exit_code(failed.exit_code, sentence), consequence=failed.consequence)


def _name(workers: WorkerProcesses, log: RankLog) -> str:
    several_hosts = workers.env.launchers > 1 and log.host
    return f"rank {log.rank} on {log.host}" if several_hosts else f"rank {log.rank}"


def _at(log: RankLog) -> str:
    return f"in {log.phase} at step {log.step}"


def _with_lines(workers: WorkerProcesses, log: RankLog, sentence: str) -> str:
    lines = workers.last_lines(log.rank)
    return f"{sentence}; its last lines:\n{lines}" if lines else sentence


LIMIT_S = 5.0
SOURCE = Path(__file__).resolve().parents[3]
"""Where a checkout has its pyproject.toml, if this is one."""


def revision(source: Path = SOURCE) -> str | None:
    """`3f2a91c0d4e5`, with `-dirty` where files were changed since; None for an installed package, or without git."""
    if not (source / "pyproject.toml").is_file() or not (source / ".git").exists():
        return None
    words = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return said.stdout.strip() or None if said.returncode == 0 else None


POLL_S = 0.1
TERMINATE_LIMIT_S = 20.0
"""What a rank gets to finish its step and flush after SIGTERM."""
AFTER_FAILURE_S = 3.0
"""What the other ranks get to notice that one has failed."""

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
    interface: str | None = None,
    fill: FillSearch | None = None,
) -> Outcome:
    """Runs a plan to its end and keeps its record in the store, whatever happened to it.

    Without a coordinator this machine is all there is. `fill` is how its batch was found; `tags` and `note` are what
    the user said of it.
    """
    make_folder = partial(new_folder, plan, store.runs, group=group, tags=tags or {}, note=note)
    folder = coordinator.begin_run(plan, store.folder, make_folder) if coordinator else make_folder("")
    if fill:
        _note(folder, BatchFound(**msgspec.structs.asdict(fill)))
    leads = coordinator is None or coordinator.env.leads
    with catching_signals() as signals:
        try:
            outcome = execute(plan, folder, watch, coordinator, interface, signals)
        except BaseException as error:  # ours, or of whoever watches: what was measured is kept all the same
            if leads:
                with suppress(Exception):
                    _note(folder, FaultFound(exit_code=1, sentence=f"ended by {type(error).__name__}: {error}"))
                    store.add(gather.gather_record(folder))
            raise
        return _conclude(outcome, store, signals) if leads else outcome


def _conclude(outcome: Outcome, store: Store, signals: list[int]) -> Outcome:
    """Makes the record and keeps it. A signal that came too late to end the run ends what would have followed it."""
    found = outcome.error
    try:
        if found:
            _note(outcome.folder, FaultFound(exit_code=found.exit_code, sentence=str(found)))
        record = gather.gather_record(outcome.folder)
        store.add(record)
    except TrainmarkError as error:
        if found:  # what went wrong first is why
            sentence = f"{found}; and no record of it could be kept: {error}"
            raise error_from_exit_code(found.exit_code, sentence) from error
        raise
    if found:
        found = error_from_exit_code(found.exit_code, record.ended)
    elif number := endings.BY_SIGNAL.get(record.ended):
        found = SignalError(record.ended, number)
    elif record.status == "invalid":
        found = InvalidResultError(record.ended)
    elif signals:
        name = signal.Signals(signals[0]).name
        found = SignalError(f"{name} came when the run was over ({record.ended}); its record is valid", signals[0])
    return replace(outcome, error=found, record=record)


def _note(folder: Path, event: Event) -> None:
    events = EventWriter(folder / LAUNCHER_FILE)
    events.write(event)
    events.close()


def execute(
    plan: Plan,
    folder: Path,
    watch: Watcher,
    coordinator: Coordinator | None,
    interface: str | None,
    signals: list[int],
    *,
    task: WorkerTask = "train",
    pair_rounds: int | None = None,
) -> Outcome:
    """Starts the ranks, sees them to their end and finds out with the other launchers what went wrong."""
    here = coordinator.env if coordinator else cluster_env.alone(Topology.parse(plan.topology))
    workers = WorkerProcesses(
        plan, here, folder, task=task, pair_rounds=pair_rounds, interface=interface, coordinator=coordinator
    )
    heartbeat = coordinator.start_heartbeat(_lost_after_s(plan)) if coordinator else None
    try:
        workers.start()
        fault = _supervise(workers, signals, watch, Restarts(workers, coordinator, heartbeat), heartbeat)
    except (LostStoreError, HangError):
        fault = Fault(error=WorkloadError("the leader was lost"), consequence=True)
    finally:
        workers.end()
    fault = fault or _own_fault(workers, signals)
    if coordinator and heartbeat:
        end = collect_faults if here.leads else follow_leader
        fault = end(workers, coordinator, heartbeat, fault)
    return Outcome(folder=folder, error=fault.error if fault else None)


def _supervise(
    workers: WorkerProcesses, signals: list[int], watch: Watcher, restarts: Restarts, heartbeat: Heartbeat | None
) -> Fault | None:
    """Until the ranks have ended, or must be ended; a fault is returned only where nobody else could name it."""
    asked_at_s: float | None = None
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
            asked_at_s = now
            workers.signal(signals[0])
        if asked_at_s is not None and now - asked_at_s > TERMINATE_LIMIT_S and signals[0] == signal.SIGTERM:
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
            return lost_fault(workers, heartbeat, lost)
        if workers.silent_s > workers.limit_s:
            workers.dump_stacks()
            return hang(workers)


def _lost_after_s(plan: Plan) -> float:
    """Sooner than silence is a hang: that a launcher is gone says more than that nothing moves."""
    return LOST_S if plan.hang_timeout_s is None else min(LOST_S, plan.hang_timeout_s / 2)


def _own_fault(workers: WorkerProcesses, signals: list[int]) -> Fault | None:
    if signals:
        if all(log.end for log in workers.ranks):
            return None  # they finished their step and said so themselves
        return Fault(error=SignalError(endings.launcher_ending(signal.Signals(signals[0]).name), signals[0]))
    return of_workers(workers)


def new_folder(plan: Plan, parent: Path, token: str, **said: Any) -> Path:
    """`said` are fields of the head that neither plan nor workload know."""
    workload = workloads.of_plan(plan)
    stamp = gather.now_utc()
    compact = stamp.replace("-", "").replace(":", "").removesuffix("Z")
    run_id = f"{plan.workload}-{plan.recipe_name}-{plan.topology}-{plan.precision}-{compact}-{secrets.token_hex(3)}"
    folder = parent / run_id
    head = RunHead(
        run_id=run_id,
        created=stamp,
        revision=revision(),
        item=workload.item,
        target=workload.target,
        reference_global_batch=workload.reference_global_batch,
        workload_facts=derive_facts(workload).to_json(),
        launcher_host=host_name(os.environ),
        launcher_pid=os.getpid(),
        token=token,
        **said,
    )
    try:
        folder.mkdir(parents=True)
        write_atomic(folder / PLAN_FILE, json.dumps(plan.to_json(), indent=1).encode())
        write_atomic(folder / HEAD_FILE, msgspec.json.format(msgspec.json.encode(head), indent=1))
    except OSError as error:
        raise NotReadyError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder
