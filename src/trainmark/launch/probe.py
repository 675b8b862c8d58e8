"""Starts the ranks of a plan only to measure the links: among all of them, or between pairs of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainmark.launch import launcher
from trainmark.launch.coordinator import Coordinator
from trainmark.launch.settlement import settle
from trainmark.launch.signals import catching_signals
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


def probe_only(
    plan: Plan,
    store: Path,
    *,
    pair_rounds: int | None = None,
    coordinator: Coordinator | None = None,
    interface: str | None = None,
) -> Probed:
    """Starts the ranks of a plan only to measure the links: among all of them, or so many rounds of pairs of nodes."""
    settled = settle(plan, store, coordinator, lambda token: launcher.new_folder(plan, store / "probes", None, token))
    with catching_signals() as signals:
        outcome = launcher.execute(
            plan,
            settled,
            lambda ranks: None,
            coordinator,
            interface,
            signals,
            only_probe=True,
            pair_rounds=pair_rounds,
        )
    probed = Probed(exit_code=outcome.exit_code, sentence=outcome.sentence)
    if coordinator and not coordinator.env.leads:
        return probed
    folder = RunFolder(settled.folder, only_ranks=[0])
    folder.update()
    first = folder.ranks[0]
    return replace(probed, results=first.link, pairs=tuple(first.pairs), hosts=first.pair_hosts)
