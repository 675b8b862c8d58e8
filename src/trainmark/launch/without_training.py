"""Starts the ranks of a plan for something else than training: to measure links, or to compute the same steps again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainmark.launch.coordinator import Coordinator
from trainmark.launch.launcher import Outcome, execute, new_folder
from trainmark.launch.settlement import settle
from trainmark.launch.signals import catching_signals
from trainmark.spec import endings
from trainmark.spec.links import AllReduce
from trainmark.spec.plan import Plan
from trainmark.spec.run_folder import RunFolder


def probe_links(
    plan: Plan, store: Path, *, coordinator: Coordinator | None = None, interface: str | None = None
) -> tuple[list[AllReduce], int, str]:
    """Starts the ranks of a plan only to measure the links between them: results, exit code, and what went wrong."""
    settled = settle(plan, store, coordinator, partial(new_folder, plan, store / "probes"))
    with catching_signals() as signals:
        outcome = execute(plan, settled, lambda ranks: None, coordinator, interface, signals, task="probe")
    if coordinator and not coordinator.env.leads:
        return [], outcome.exit_code, outcome.sentence
    folder = RunFolder(settled.folder, only_ranks=[0])
    folder.update()
    return list(folder.ranks[0].link), outcome.exit_code, outcome.sentence


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
    settled = settle(plan, store, coordinator, partial(new_folder, plan, store / "verify"))
    with catching_signals() as signals:
        outcome = execute(
            plan, settled, lambda ranks: watch(settled.folder), coordinator, interface, signals, task="verify"
        )
        if signals and not outcome.exit_code:
            return replace(
                outcome, exit_code=128 + signals[0], sentence=endings.ended_by(signal.Signals(signals[0]).name)
            )
        return outcome
