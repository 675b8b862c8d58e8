"""Runs one plan on many hosts by ssh, separately and in parallel, and resumes an interrupted fleet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from trainmark import __version__, workloads
from trainmark.features.fleet import hosts as fleets
from trainmark.features.fleet.hosts import HostDone, SavedFleet
from trainmark.features.hosts import remote_run, ssh
from trainmark.features.hosts.ssh import Host
from trainmark.launch import planning
from trainmark.launch.options import RunOptions
from trainmark.launch.session import open_store
from trainmark.launch.signals import catch_signals
from trainmark.record import site
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.format import number
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Record

JOBS = 32
"""Default number of hosts in parallel: each holds a connection and a process here."""


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
    options: RunOptions, hosts: str, *, jobs: int = JOBS, rerun: bool = False, say: Callable[[str], None]
) -> tuple[SavedFleet, Path, int]:
    """Runs the plan on the hosts; returns the fleet, its file, and the exit code of a signal that ended it, else 0.

    Hosts that have their result from an unfinished fleet of the same plan and hosts are not run again, unless `rerun`.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    targets = {target.host: target for target in ssh.split_hosts(hosts)}
    known = site.load().entering_hosts(trust=options.trust)
    plan = make_plan(options)
    topology = Topology.parse(plan.topology)
    store = open_store(options)
    store.check_writable()
    over_there = replace(
        options, workloads=(workloads.word_of(plan),), hosts=None, store=None, repeat=1, quiet=False, trust=False
    )
    argv = ["run", *(word for group in over_there.to_argv() for word in group)]
    words = [*argv[1:], *(["--repeat", str(options.repeat)] if options.repeat > 1 else [])]
    fleet, path = fleets.open_fleet(store, words, list(targets), __version__, rerun=rerun)
    if kept := len(targets) - len(fleet.to_do):
        say(f"{kept} of {len(targets)} hosts have a result from {fleet.created}; --rerun runs them again")
    # held while a document is read or written: msgspec crashes if two threads build a type at once
    one_at_a_time = threading.Lock()

    def run_once(target: Host) -> Record | str:
        """The record, which is in the store, or what went wrong."""
        document, code, folder = remote_run.run_command([target], argv, topology, known, quiet=True, signals=signals)
        if document is None:
            return "it was interrupted"
        with one_at_a_time:
            record = remote_run.parse_record(document, target.host)
        if folder is not None:
            remote_run.fetch_or_warn(target, known.remote, folder, record.run_id, store.folder)
        with one_at_a_time:
            record = remote_run.keep_record(record, store)
        if not code:
            return record
        return "it was interrupted" if signals else f"its run ended with exit code {code}: {record.ended}"

    def attend(target: Host) -> None:
        records: list[Record] = []
        failed = ""
        while not failed and len(records) < options.repeat and not signals:
            try:
                result = run_once(target)
            except TrainmarkError as error:
                result = str(error)
            if isinstance(result, str):
                failed = result
            else:
                records.append(result)
        if not failed and len(records) < options.repeat:
            return  # a signal came before it was begun
        with one_at_a_time:
            fleet.done[target.host] = HostDone(run_ids=tuple(record.run_id for record in records), failed=failed)
            fleets.save_fleet(fleet, path)
            if not options.quiet:
                said = f"host {target.host} failed: {failed}" if failed else f"host {target.host}: {_speed(records)}"
                say(said if failed else f"{said}, {len(targets) - len(fleet.to_do)} of {len(targets)} done")

    to_do = [targets[host] for host in fleet.to_do]
    ssh.resolve_leader(to_do[:1], known.remote)  # a wrong ssh setting fails here and not on every host
    with catch_signals() as signals, ThreadPoolExecutor(max_workers=min(jobs, len(to_do))) as pool:
        left = {pool.submit(attend, target) for target in to_do}
        while left:  # Python hands signals to the main thread only while that one wakes up
            ended, left = wait(left, timeout=remote_run.POLL_S)
            for one in ended:
                one.result()  # an internal error is raised here
    return fleet, path, 128 + signals[0] if signals else 0


def _speed(records: list[Record]) -> str:
    found = records[-1].metrics.get("p_core")
    return f"{number(found.value)} {found.unit}" if found and found.value is not None else "no throughput"
