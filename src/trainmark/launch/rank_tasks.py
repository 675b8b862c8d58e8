"""Starts the ranks of a plan for other tasks than training: to measure links, or to verify steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trainmark.launch import cluster_env, signals
from trainmark.launch.coordinator import Coordinator
from trainmark.launch.launcher import Outcome, execute, make_run_folder
from trainmark.launch.signals import catch_signals
from trainmark.launch.workers import WorkerTask
from trainmark.record import endings, site
from trainmark.record.errors import SignalError
from trainmark.record.links import AllReduce, PairLink
from trainmark.record.plan import Plan, Topology
from trainmark.record.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Measured links between ranks; only the leader has results."""

    results: tuple[AllReduce, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    hosts: tuple[str, ...] = ()
    """The host names of the nodes, with pairs."""
    exit_code: int = 0
    sentence: str = ""
    """What went wrong."""


@contextmanager
def join_launchers(
    topology: Topology, own_command: Sequence[str], *, port: int | None = None, wait_s: float | None = None
) -> Iterator[Coordinator | None]:
    """Joins the other launchers of the job; None where there are none.

    In the batch script of a Slurm job it starts `own_command` on every node instead, and does not return.
    """
    network = site.load().network
    here = cluster_env.detect_env(topology, os.environ, port or network.port)
    if here.is_batch:
        cluster_env.start_tasks(here, topology, list(own_command))
    secret = signals.end_with_stdin() if signals.is_bound_to_stdin() else None
    if here.launchers == 1:
        yield None
        return
    together = Coordinator(here, secret=secret, interface=network.interface, join_timeout_s=wait_s)
    try:
        yield together
    finally:
        together.leave()


def probe_links(
    plan: Plan, store: Path, *, pair_rounds: int | None = None, together: Coordinator | None = None
) -> ProbeResult:
    """Starts the ranks of a plan to measure links: among all of them, or in rounds of pairs of nodes."""
    task: WorkerTask = "probe" if pair_rounds is None else "pairs"
    outcome = _start_ranks(plan, store / "probes", task, together, lambda folder: None, pair_rounds)
    probed = ProbeResult(exit_code=outcome.exit_code, sentence=outcome.sentence)
    if together and not together.env.is_leader:
        return probed
    folder = RunFolder(outcome.folder, only_ranks=[0])
    folder.update()
    first = folder.ranks[0]
    return replace(probed, results=first.link, pairs=tuple(first.pairs), hosts=first.pair_hosts)


def verify_steps(
    plan: Plan, store: Path, *, watch: Callable[[Path], None], together: Coordinator | None = None
) -> Outcome:
    """Starts the ranks of a plan to repeat its first steps; the results are in the folder.

    `watch` is called with the folder on new events.
    """
    return _start_ranks(plan, store / "verify", "verify", together, watch)


def _start_ranks(
    plan: Plan,
    place: Path,
    task: WorkerTask,
    together: Coordinator | None,
    watch: Callable[[Path], None],
    pair_rounds: int | None = None,
) -> Outcome:
    make_folder = partial(make_run_folder, plan, place)
    folder = together.begin_run(plan, place.parent, make_folder) if together else make_folder("")
    interface = site.load().network.interface
    with catch_signals() as signals:
        outcome = execute(
            plan, folder, lambda ranks: watch(folder), together, interface, signals, task=task, pair_rounds=pair_rounds
        )
        if signals and not outcome.error:
            error = SignalError(endings.launcher_ending(signal.Signals(signals[0]).name), signals[0])
            return replace(outcome, error=error)
        return outcome
