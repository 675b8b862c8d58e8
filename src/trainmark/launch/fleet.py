"""Runs one plan on every host of a list by itself, and resumes a fleet that was cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainmark import __version__, workloads
from trainmark.launch import fill, planning, ssh, ssh_fleet
from trainmark.launch.options import RunOptions
from trainmark.launch.session import store_of
from trainmark.launch.ssh_fleet import JOBS, HostAnswer
from trainmark.spec import site
from trainmark.spec.errors import UsageError
from trainmark.spec.format import number
from trainmark.spec.plan import Plan
from trainmark.spec.topology import Topology
from trainmark.store import fleets
from trainmark.store.fleets import HostDone, SavedFleet

Say = Callable[[str], None]


def plan_of(options: RunOptions) -> Plan:
    """The one plan that every host is to run; UsageError where it is not one, or not of one node."""
    if len(options.workloads) != 1:
        known = ", ".join(workloads.names())
        named = f"{len(options.workloads)} were named" if options.workloads else "none was named"
        raise UsageError(f"a fleet runs one workload on every host, and {named}; there are {known}")
    if Topology.parse(options.topology or "1x1").nodes != 1:
        raise UsageError(
            f"topology {options.topology} is of several nodes, and in a fleet every host runs by itself; use 1x8 for "
            "eight devices of each"
        )
    if options.shared_s is not None:
        raise UsageError("--budget makes runs as long as there is time; give all hosts the same: --steps or --seconds")
    [plan] = planning.plans(options)
    if fill.needs_search(plan, options):
        raise UsageError(
            "recipe fill finds a batch of its own on every host, and other batches cannot be compared; find it on one, "
            "then use --set batch_per_device=N"
        )
    return plan


def run(
    options: RunOptions, hosts: str, *, jobs: int = JOBS, rerun: bool = False, say: Say
) -> tuple[SavedFleet, Path, int]:
    """Runs the plan on the hosts; what came of each, its file, and the exit code of a signal that ended it, else 0.

    Hosts that have their result from an unfinished fleet of the same plan and hosts are not run again, unless `rerun`.
    """
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    targets = {target.host: target for target in ssh.host_list(hosts)}
    known = site.load().entering_hosts(trust=options.trust)
    plan = plan_of(options)
    store = store_of(options)
    store.check_writable()
    over_there = replace(
        options, workloads=(workloads.word_of(plan),), hosts=None, store=None, repeat=1, quiet=False, trust=False
    )
    argv = [word for group in over_there.to_argv() for word in group]
    words = [*argv, *(["--repeat", str(options.repeat)] if options.repeat > 1 else [])]
    resumed = None if rerun else fleets.find_unfinished(store, words, list(targets), __version__)
    fleet, path = resumed or fleets.begin(store, words, list(targets), __version__)
    if kept := len(targets) - len(fleet.to_do):
        say(f"{kept} of {len(targets)} hosts have a result from {fleet.created}; --rerun runs them again")

    def keep(answer: HostAnswer) -> None:
        run_ids = tuple(record.run_id for record in answer.records)
        fleet.done[answer.host] = HostDone(run_ids=run_ids, failed=answer.failed)
        fleets.save(fleet, path)
        if not options.quiet:
            say(_progress(answer, len(targets) - len(fleet.to_do), len(targets)))

    code = ssh_fleet.run_on_each(
        [targets[host] for host in fleet.to_do],
        argv,
        Topology.parse(plan.topology),
        known,
        store,
        repeat=options.repeat,
        jobs=jobs,
        heard=keep,
    )
    return fleet, path, code


def _progress(answer: HostAnswer, done: int, hosts: int) -> str:
    if answer.failed:
        return f"host {answer.host} failed: {answer.failed}"
    found = answer.records[-1].metrics.get("p_core")
    speed = f"{number(found.value)} {found.unit}" if found and found.value is not None else "no throughput"
    return f"host {answer.host}: {speed}, {done} of {hosts} done"
