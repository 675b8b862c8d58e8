"""Runs one plan on many hosts by ssh, separately and in parallel, and resumes an interrupted fleet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainmark import __version__, workloads
from trainmark.features.fleet import hosts as fleets
from trainmark.features.fleet.hosts import HostDone, SavedFleet
from trainmark.features.hosts import remote_run, ssh
from trainmark.features.hosts.remote_run import RemoteCommand, RemoteNode
from trainmark.features.hosts.ssh import Host
from trainmark.launch import planning
from trainmark.launch.cluster_env import make_secret
from trainmark.launch.options import RunOptions
from trainmark.launch.session import open_store
from trainmark.launch.signals import catch_signals
from trainmark.record import site
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.format import number
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record
from trainmark.record.site import Site
from trainmark.record.store import Store

Say = Callable[[str], None]
JOBS = 32
"""Default number of hosts in parallel: each holds a connection and a process here."""


@dataclass(frozen=True, kw_only=True)
class HostAnswer:
    """The result of one host."""

    host: str
    records: tuple[Record, ...] = ()
    """All of them are in the store."""
    failed: str = ""
    """What went wrong."""


def make_plan(options: RunOptions) -> Plan:
    """The plan that every host runs; raises UsageError unless there is one, of one node."""
    if len(options.workloads) != 1:
        known = ", ".join(workloads.names())
        named = f"{len(options.workloads)} were named" if options.workloads else "none was named"
        raise UsageError(f"a fleet runs one workload on every host, and {named}; there are {known}")
    if Topology.parse(options.topology or "1x1").nodes != 1:
        raise UsageError(
            f"topology {options.topology} has several nodes, and in a fleet every host runs separately; use 1x8 for "
            "eight devices per host"
        )
    if options.shared_s is not None:
        raise UsageError("--budget gives runs different lengths; give all hosts the same: --steps or --seconds")
    [plan] = planning.make_plans(options)
    if planning.needs_search(plan, options):
        raise UsageError(
            "recipe fill searches a batch on every host, and different batches cannot be compared; search it on one, "
            "then use --set batch_per_device=N"
        )
    return plan


def run_fleet(
    options: RunOptions, hosts: str, *, jobs: int = JOBS, rerun: bool = False, say: Say
) -> tuple[SavedFleet, Path, int]:
    """Runs the plan on the hosts; returns the fleet, its file, and the exit code of a signal that ended it, else 0.

    Hosts that have their result from an unfinished fleet of the same plan and hosts are not run again, unless `rerun`.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    targets = {target.host: target for target in ssh.split_hosts(hosts)}
    known = site.load().entering_hosts(trust=options.trust)
    plan = make_plan(options)
    store = open_store(options)
    store.check_writable()
    over_there = replace(
        options, workloads=(workloads.word_of(plan),), hosts=None, store=None, repeat=1, quiet=False, trust=False
    )
    argv = [word for group in over_there.to_argv() for word in group]
    words = [*argv, *(["--repeat", str(options.repeat)] if options.repeat > 1 else [])]
    resumed = None if rerun else fleets.find_unfinished(store, words, list(targets), __version__)
    fleet, path = resumed or fleets.begin_fleet(store, words, list(targets), __version__)
    if kept := len(targets) - len(fleet.to_do):
        say(f"{kept} of {len(targets)} hosts have a result from {fleet.created}; --rerun runs them again")

    def keep(answer: HostAnswer) -> None:
        run_ids = tuple(record.run_id for record in answer.records)
        fleet.done[answer.host] = HostDone(run_ids=run_ids, failed=answer.failed)
        fleets.save_fleet(fleet, path)
        if not options.quiet:
            say(_progress(answer, len(targets) - len(fleet.to_do), len(targets)))

    code = _run_on_each(
        [targets[host] for host in fleet.to_do],
        argv,
        Topology.parse(plan.topology),
        known,
        store,
        repeat=options.repeat,
        jobs=jobs,
        on_answer=keep,
    )
    return fleet, path, code


def _progress(answer: HostAnswer, done: int, hosts: int) -> str:
    if answer.failed:
        return f"host {answer.host} failed: {answer.failed}"
    found = answer.records[-1].metrics.get("p_core")
    speed = f"{number(found.value)} {found.unit}" if found and found.value is not None else "no throughput"
    return f"host {answer.host}: {speed}, {done} of {hosts} done"


def _run_on_each(
    targets: Sequence[Host],
    argv: Sequence[str],
    topology: Topology,
    known: Site,
    store: Store,
    *,
    repeat: int = 1,
    jobs: int = JOBS,
    on_answer: Callable[[HostAnswer], None],
) -> int:
    """Runs `trainmark run WORDS` on every host; calls `on_answer` as each ends, one at a time. Returns the
    exit code of a signal that came meanwhile, else 0."""
    ssh.resolve_leader(targets[:1], known.remote)  # a wrong ssh setting fails here and not on every host
    job = _Job(argv=["run", *argv], topology=topology, site=known, store=store, repeat=repeat)

    def attend(target: Host) -> None:
        if not job.stop.is_set():
            answer = job.answer(target)
            with job.one_at_a_time:
                on_answer(answer)

    with catch_signals() as signals, ThreadPoolExecutor(max_workers=min(jobs, len(targets))) as pool:
        left = {pool.submit(attend, target) for target in targets}
        while left:
            ended, left = wait(left, timeout=remote_run.POLL_S)
            if signals:
                job.stop.set()
            if len(signals) > 1:
                job.stop_now.set()
            for one in ended:
                one.result()  # an internal error is raised here
    return 128 + signals[0] if signals else 0


@dataclass(frozen=True, kw_only=True)
class _Job:
    argv: list[str]
    topology: Topology
    site: Site
    store: Store
    repeat: int
    stop: threading.Event = field(default_factory=threading.Event)
    """Hosts are asked to end."""
    stop_now: threading.Event = field(default_factory=threading.Event)
    """And are not waited for."""
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    """Held while a document is read or written: msgspec crashes if two threads build a type at once."""

    def answer(self, target: Host) -> HostAnswer:
        records: list[Record] = []
        failed = ""
        for _ in range(self.repeat):
            try:
                record, failed = self._run(target)
            except TrainmarkError as error:
                record, failed = None, str(error)
            if record:
                records.append(record)
            if failed:
                break
        return HostAnswer(host=target.host, records=tuple(records), failed=failed)

    def _run(self, target: Host) -> tuple[Record | None, str]:
        remote = self.site.remote
        address = ssh.resolve_leader([target], remote)
        command = RemoteCommand(
            argv=self.argv, topology=self.topology, leader_address=address, secret=make_secret(), site=self.site
        )
        side = command.start(target)
        try:
            self._wait_for(side)
        finally:
            side.kill()
        if (document := side.document()) is None:
            error = remote_run.make_error(side, remote)
            return None, "it was interrupted" if self.stop.is_set() else str(error)
        with self.one_at_a_time:
            record = remote_run.parse_record(document, target.host)
        if side.folder is not None:
            remote_run.fetch_or_warn(target, remote, side.folder, record.run_id, self.store.folder)
        with self.one_at_a_time:
            record = remote_run.keep_record(record, self.store)
        code = side.process.returncode
        if self.stop.is_set() and code:
            return record, "it was interrupted"
        return record, f"its run ended with exit code {code}: {record.ended}" if code else ""

    def _wait_for(self, side: RemoteNode) -> None:
        """Waits until it has ended; asks it to end when we stop."""
        gone_at_s: float | None = None
        while not side.has_ended:
            if self.stop.is_set() and gone_at_s is None:
                side.close_input()
                gone_at_s = time.monotonic()
            if gone_at_s is not None and time.monotonic() - gone_at_s > remote_run.END_LIMIT_S:
                return
            if self.stop_now.is_set():
                return
            time.sleep(remote_run.POLL_S)
