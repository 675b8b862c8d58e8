"""Runs a plan on the ranks of this launcher, together with the other launchers, and makes its record."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.launch import cluster_env
from trainmark.launch.coordinator import LOST_S, Coordinator, Heartbeat
from trainmark.launch.faults import Fault, collect_faults, follow_leader, hang, lost_fault, of_workers
from trainmark.launch.restarts import Restarts
from trainmark.launch.signals import catching_signals
from trainmark.launch.workers import WorkerProcesses, WorkerTask
from trainmark.record import endings, gather
from trainmark.record.errors import (
    HangError,
    InvalidResultError,
    NotReadyError,
    SignalError,
    TrainmarkError,
    WorkloadError,
    of_exit_code,
)
from trainmark.record.event_files import EventWriter
from trainmark.record.events import BatchFound, Event, FaultFound
from trainmark.record.machine import FillSearch
from trainmark.record.plan import Plan, Topology
from trainmark.record.rank_log import RankLog
from trainmark.record.record import Record
from trainmark.record.run_folder import HEAD_FILE, LAUNCHER_FILE, PLAN_FILE, RunHead
from trainmark.record.store import Store
from trainmark.record.whole_files import write_whole
from trainmark.record.workload_facts import derive
from trainmark.train.ranks import host_name
from trainmark.train.rendezvous_store import LostStoreError

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
                    store.add(gather.record(folder))
            raise
        return _conclude(outcome, store, signals) if leads else outcome


def _conclude(outcome: Outcome, store: Store, signals: list[int]) -> Outcome:
    """Makes the record and keeps it. A signal that came too late to end the run ends what would have followed it."""
    found = outcome.error
    try:
        if found:
            _note(outcome.folder, FaultFound(exit_code=found.exit_code, sentence=str(found)))
        record = gather.record(outcome.folder)
        store.add(record)
    except TrainmarkError as error:
        if found:  # what went wrong first is why
            sentence = f"{found}; and no record of it could be kept: {error}"
            raise of_exit_code(found.exit_code, sentence) from error
        raise
    if found:
        found = of_exit_code(found.exit_code, record.ended)
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
        return Fault(error=SignalError(endings.ended_by(signal.Signals(signals[0]).name), signals[0]))
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
        workload_facts=derive(workload).to_json(),
        launcher_host=host_name(os.environ),
        launcher_pid=os.getpid(),
        token=token,
        **said,
    )
    try:
        folder.mkdir(parents=True)
        write_whole(folder / PLAN_FILE, json.dumps(plan.to_json(), indent=1).encode())
        write_whole(folder / HEAD_FILE, msgspec.json.format(msgspec.json.encode(head), indent=1))
    except OSError as error:
        raise NotReadyError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder
