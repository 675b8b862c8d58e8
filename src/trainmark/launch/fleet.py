"""One workload and recipe on every host of a list by itself: checks what was asked; goes on with one cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainmark import __version__, workloads
from trainmark.launch import fill, planning, ssh, ssh_fleet
from trainmark.launch.options import RunOptions
from trainmark.launch.session import store_of
from trainmark.launch.ssh_fleet import AT_ONCE, HostAnswer
from trainmark.spec import site
from trainmark.spec.errors import UsageError
from trainmark.spec.format import number
from trainmark.spec.plan import Plan
from trainmark.spec.topology import Topology
from trainmark.store import fleets
from trainmark.store.fleets import FleetLog, HostDone

Say = Callable[[str], None]


def plan_of(options: RunOptions) -> Plan:
    """The one plan that every host is to run; UsageError where it is not one, or not of one node."""
    if len(options.workloads) != 1:
        known = ", ".join(workloads.names())
        named = f"{len(options.workloads)} were named" if options.workloads else "none was named"
        raise UsageError(f"a fleet runs one workload on every host, and {named}; there are {known}")
    if Topology.parse(options.topology or "1x1").nodes != 1:
        raise UsageError(
            f"topology {options.topology} is of several nodes, and in a fleet every host runs by itself; say 1x8 for "
            "eight devices of each"
        )
    if options.shared_s is not None:
        raise UsageError("--budget makes runs as long as there is time; give all hosts the same: --steps or --seconds")
    [plan] = planning.plans(options)
    if fill.needs_search(plan, options):
        raise UsageError(
            "recipe fill finds a batch of its own on every host, and other batches cannot be compared; find it on one, "
            "then say --set batch_per_device=N"
        )
    return plan


def run(
    options: RunOptions, hosts: str, *, at_once: int = AT_ONCE, anew: bool = False, say: Say
) -> tuple[FleetLog, int]:
    """Runs the plan on the hosts; what came of each, and the exit code of a signal that ended it early, else 0.

    Hosts that have their result from a fleet that was asked for the same and did not get to its end are not run again,
    unless `anew`.
    """
    if at_once < 1:
        raise UsageError(f"--at-once must be at least 1, not {at_once}")
    targets = {target.host: target for target in ssh.host_list(hosts)}
    known = site.load().entering_hosts(trust=options.trust)
    plan = plan_of(options)
    store = store_of(options)
    store.check_writable()
    over_there = replace(
        options, workloads=(workloads.word_of(plan),), hosts=None, store=None, repeat=1, quiet=False, trust=False
    )
    argv = [word for group in over_there.to_argv() for word in group]
    asked = [*argv, *(["--repeat", str(options.repeat)] if options.repeat > 1 else [])]
    log = None if anew else fleets.to_go_on_with(store, asked, list(targets), __version__)
    if log is None:
        log = fleets.begin(store, asked, list(targets), __version__)
    elif kept := len(targets) - len(log.to_do):
        say(f"{kept} of {len(targets)} hosts have their result from {log.begun.created}; --anew runs them again")
    heard = _Heard(log, len(targets), say if not options.quiet else lambda sentence: None)
    topology = Topology.parse(plan.topology)
    to_do = [targets[host] for host in log.to_do]
    code = ssh_fleet.run_on_each(
        to_do, argv, topology, known, store, repeat=options.repeat, at_once=at_once, heard=heard
    )
    return log, code


class _Heard:
    """Writes down what came of a host, and says it."""

    def __init__(self, log: FleetLog, hosts: int, say: Say) -> None:
        self._log, self._hosts, self._say = log, hosts, say

    def __call__(self, answer: HostAnswer) -> None:
        run_ids = tuple(record.run_id for record in answer.records)
        self._log.add(HostDone(host=answer.host, run_ids=run_ids, failed=answer.failed))
        done = self._hosts - len(self._log.to_do)
        if answer.failed:
            self._say(f"host {answer.host} failed: {answer.failed}")
            return
        found = answer.records[-1].metrics.get("p_core")
        speed = f"{number(found.value)} {found.unit}" if found and found.value is not None else "no throughput"
        self._say(f"host {answer.host}: {speed}, {done} of {self._hosts} done")
