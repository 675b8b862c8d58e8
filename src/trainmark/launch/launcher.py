"""Runs a plan on the ranks of this launcher, together with the other launchers, and makes its record."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.launch import cluster_env, network
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.coordinator import LOST_S, Coordinator, Heartbeat
from trainmark.launch.faults import Fault, hang, of_workers
from trainmark.launch.restarts import Restarts
from trainmark.launch.settlement import Settled, collect_faults, fault_of_lost, follow, settle
from trainmark.launch.signals import catching_signals
from trainmark.launch.store_server import StoreServer
from trainmark.launch.workers import Launch, WorkerProcesses, WorkerTask
from trainmark.spec import endings
from trainmark.spec.errors import HangError, NotReadyError, TrainmarkError
from trainmark.spec.event_files import EventWriter
from trainmark.spec.events import BatchFound, Event, FaultFound
from trainmark.spec.machine import FillSearch
from trainmark.spec.plan import Plan
from trainmark.spec.rank_log import RankLog
from trainmark.spec.record import Record
from trainmark.spec.revision import revision
from trainmark.spec.run_folder import HEAD_FILE, LAUNCHER_FILE, PLAN_FILE, RunHead
from trainmark.spec.topology import Topology
from trainmark.spec.whole_files import write_whole
from trainmark.spec.workload_facts import derive
from trainmark.store import gather
from trainmark.store.store import Store
from trainmark.train.ranks import host_name
from trainmark.train.store_client import LostStoreError

POLL_S = 0.1
TERMINATE_LIMIT_S = 20.0
"""What a rank gets to finish its step and flush after SIGTERM."""
AFTER_FAILURE_S = 3.0
"""What the other ranks get to notice that one has failed."""

Watcher = Callable[[list[RankLog]], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit_code: int
    folder: Path
    record: Record | None = None
    """Only the leader has it."""
    sentence: str = ""
    """What went wrong, in words."""


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
    made = partial(new_folder, plan, store.runs, group=group, tags=tags or {}, note=note)
    settled = settle(plan, store.folder, coordinator, made)
    if fill:
        _note(settled.folder, BatchFound(**msgspec.structs.asdict(fill)))
    leads = coordinator is None or coordinator.env.leads
    with catching_signals() as signals:
        try:
            outcome = execute(plan, settled, watch, coordinator, interface, signals)
        except BaseException as error:  # ours, or of whoever watches: what was measured is kept all the same
            if leads:
                with suppress(Exception):
                    _note(settled.folder, FaultFound(exit_code=1, sentence=f"ended by {type(error).__name__}: {error}"))
                    store.add(gather.record(settled.folder))
            raise
        return _conclude(outcome, settled, store, signals) if leads else outcome


def _conclude(outcome: Outcome, settled: Settled, store: Store, signals: list[int]) -> Outcome:
    """Makes the record and keeps it. A signal that came too late to end the run ends what would have followed it."""
    try:
        if outcome.exit_code:
            _note(settled.folder, FaultFound(exit_code=outcome.exit_code, sentence=outcome.sentence))
        record = gather.record(settled.folder)
        store.add(record)
    except TrainmarkError as error:
        if outcome.exit_code:  # what went wrong first is why
            both = TrainmarkError(f"{outcome.sentence}; and no record of it could be kept: {error}")
            both.exit_code = outcome.exit_code
            raise both from error
        raise
    code, sentence = outcome.exit_code, record.ended
    if not code and (number := endings.BY_SIGNAL.get(record.ended)):
        code = 128 + number
    elif not code and record.status == "invalid":
        code = endings.INVALID_CODE
    elif not code and signals:
        code = 128 + signals[0]
        sentence = f"{signal.Signals(signals[0]).name} came when the run was over ({record.ended}); its record is valid"
    return Outcome(exit_code=code, folder=settled.folder, record=record, sentence=sentence)


def _note(folder: Path, event: Event) -> None:
    events = EventWriter(folder / LAUNCHER_FILE)
    events.write(event)
    events.close()


def execute(
    plan: Plan,
    settled: Settled,
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
    workers = WorkerProcesses(plan, here, settled.folder, task=task, pair_rounds=pair_rounds)
    heartbeat = coordinator.start_heartbeat(_lost_after_s(plan)) if coordinator else None
    with _meeting_of_ranks(here, coordinator) as (connect, prefix):
        launch = Launch(
            plan_file=settled.plan_file,
            launched_ns=time.perf_counter_ns(),
            variables=network.collective_variables(here, interface) if here.world > 1 else {},
            connect=connect,
            prefix=prefix,
        )
        try:
            workers.start(launch)
            fault = _supervise(workers, signals, watch, Restarts(workers, coordinator, heartbeat), heartbeat)
        except (LostStoreError, HangError):
            fault = Fault(exit_code=4, sentence="the leader was lost", consequence=True)
        finally:
            workers.end()
        fault = fault or _own_fault(workers, signals)
        if coordinator and heartbeat:
            if here.leads:
                fault = collect_faults(coordinator, heartbeat, settled.folder, fault)
            else:
                fault = follow(workers, coordinator, heartbeat, settled, fault)
    if fault:
        return Outcome(exit_code=fault.exit_code, folder=settled.folder, sentence=fault.sentence)
    return Outcome(exit_code=0, folder=settled.folder)


@contextmanager
def _meeting_of_ranks(
    here: ClusterEnv, coordinator: Coordinator | None
) -> Iterator[tuple[Callable[[], socket.socket] | None, str]]:
    """How each rank gets a connection to where it meets the others, and what its keys begin with there."""
    if coordinator:
        yield coordinator.connect, coordinator.rank_prefix
    elif here.world == 1:
        yield None, ""
    else:
        with closing(StoreServer()) as server:
            yield server.connect, ""


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
        if not signals and restarts.due(ended=ended):
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
            return fault_of_lost(workers, heartbeat, lost)
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
        return Fault(exit_code=128 + signals[0], sentence=endings.ended_by(signal.Signals(signals[0]).name))
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
