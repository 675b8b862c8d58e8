"""Starts the ranks of a plan for something else than training: to measure links, or to compute the same steps again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trainmark.launch.coordinator import Coordinator
from trainmark.launch.launcher import Outcome, execute, new_folder
from trainmark.launch.signals import catching_signals
from trainmark.launch.workers import WorkerTask
from trainmark.spec import endings
from trainmark.spec.errors import SignalError
from trainmark.spec.links import AllReduce, PairLink
from trainmark.spec.plan import Plan
from trainmark.spec.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What ranks that were started only for it measured of the links between them; only the leader has results."""

    results: tuple[AllReduce, ...] = ()
    pairs: tuple[PairLink, ...] = ()
    hosts: tuple[str, ...] = ()
    """Of the pairs: what the nodes call themselves, in their order."""
    exit_code: int = 0
    sentence: str = ""
    """What went wrong, in words."""


def probe_links(
    plan: Plan,
    store: Path,
    *,
    pair_rounds: int | None = None,
    coordinator: Coordinator | None = None,
    interface: str | None = None,
) -> Probed:
    """Starts the ranks of a plan only to measure the links: among all of them, or so many rounds of pairs of nodes."""
    folder = _begin(plan, store, "probes", coordinator)
    with catching_signals() as signals:
        task: WorkerTask = "probe" if pair_rounds is None else "pairs"
        outcome = execute(
            plan, folder, lambda ranks: None, coordinator, interface, signals, task=task, pair_rounds=pair_rounds
        )
    probed = Probed(exit_code=outcome.exit_code, sentence=outcome.sentence)
    if coordinator and not coordinator.env.leads:
        return probed
    written = RunFolder(folder, only_ranks=[0])
    written.update()
    first = written.ranks[0]
    return replace(probed, results=first.link, pairs=tuple(first.pairs), hosts=first.pair_hosts)


def verify_steps(
    plan: Plan,
    store: Path,
    *,
    watch: Callable[[Path], None],
    coordinator: Coordinator | None = None,
    interface: str | None = None,
) -> Outcome:
    """Starts the ranks of a plan to compute its first steps again and again; what they found lies in the folder.

    `watch` is told which folder whenever something new is in it.
    """
    folder = _begin(plan, store, "verify", coordinator)
    with catching_signals() as signals:
        outcome = execute(plan, folder, lambda ranks: watch(folder), coordinator, interface, signals, task="verify")
        if signals and not outcome.error:
            error = SignalError(endings.ended_by(signal.Signals(signals[0]).name), signals[0])
            return replace(outcome, error=error)
        return outcome


def _begin(plan: Plan, store: Path, kind: str, coordinator: Coordinator | None) -> Path:
    make_folder = partial(new_folder, plan, store / kind)
    return coordinator.begin_run(plan, store, make_folder) if coordinator else make_folder("")
