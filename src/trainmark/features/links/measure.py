"""Measures the links between the ranks of a topology, without training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.features.hosts import remote_run
from trainmark.features.links.probe import BUDGET_S, SIZES_BYTES
from trainmark.features.links.rounds import summarise_pairs
from trainmark.launch import launcher, planning
from trainmark.launch.coordinator import Coordinator, join_launchers
from trainmark.launch.options import RunOptions
from trainmark.record import links, site
from trainmark.record.checks import CheckResult, Verdict
from trainmark.record.errors import NotReadyError
from trainmark.record.format import summarise_links
from trainmark.record.links import COLLECTIVES, AllReduce, Collective, PairLink
from trainmark.record.plan import Plan, Topology
from trainmark.record.run_folder import RunFolder

NAME = "links"
RESULTS = "results"
"""The fact with the times per message size."""

ABSENT = "absent"
"""The fact with the collectives that the backend lacks."""
PAIRS = "pairs"
"""The fact with the bandwidth per pair of nodes."""
HOSTS = "hosts"
"""The fact with the host names of the nodes."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Measured links between ranks; only the leader has results."""

    results: tuple[AllReduce, ...] = ()
    absent: tuple[Collective, ...] = ()
    """Collectives that the backend lacks."""
    pairs: tuple[PairLink, ...] = ()
    hosts: tuple[str, ...] = ()
    """The host names of the nodes, with pairs."""
    exit_code: int = 0
    sentence: str = ""
    """What went wrong."""


def measure(
    topology: Topology,
    *,
    pair_rounds: int | None = None,
    hosts: str | None,
    platform: str | None,
    store: Path,
    say: Callable[[str], None],
    trust: bool = False,
) -> CheckResult:
    """Between the devices of this machine and its job, or of the given hosts; with `pair_rounds` between pairs of
    nodes, in so many rounds of disjoint pairs."""
    if pair_rounds is not None and topology.nodes == 1:
        return _make_result("ok", f"{topology} has one node, and no pair of them")
    if topology.devices == 1:
        return _make_result("ok", f"{topology} has one rank, which exchanges with nobody")
    if hosts:
        found = _probe_hosts(hosts, topology, platform, pair_rounds, trust=trust)
    else:
        options = RunOptions(recipe="smoke", topology=str(topology), platform=platform)
        # which workload does not matter: no model is built
        plan = planning.make_plan(workloads.names()[0], options)
        found = _probe_here(plan, topology, store, pair_rounds, say)
    measured: dict[str, Any] = {RESULTS: found.results} if pair_rounds is None else {PAIRS: found.pairs}
    if found.absent:
        measured[ABSENT] = found.absent
    if found.exit_code:
        return replace(_make_result("failed", found.sentence, **measured), exit_code=found.exit_code)
    if not any(measured.values()):
        return _make_result("ok", found.sentence)
    if pair_rounds is not None:
        return _make_result("ok", summarise_pairs(found.pairs, pair_rounds), **measured, **{HOSTS: found.hosts})
    remedy = _find_remedy(found.results[-1].size_bytes, topology)
    sentence = summarise_links(found.results, ranks=topology.devices, hosts=topology.nodes)
    return replace(_make_result("doubt" if remedy else "ok", sentence, **measured), remedy=remedy)


def _make_result(verdict: Verdict, sentence: str, **measured: Any) -> CheckResult:
    return CheckResult(name=NAME, verdict=verdict, sentence=sentence, facts=measured)


def _probe_here(
    plan: Plan, topology: Topology, store: Path, pair_rounds: int | None, say: Callable[[str], None]
) -> ProbeResult:
    """On this machine, together with the other launchers of its job; the leader reports the results."""
    own_command = [sys.executable, "-m", "trainmark", *sys.argv[1:]]
    with join_launchers(topology, own_command) as together:
        found = probe_links(plan, store, pair_rounds=pair_rounds, together=together)
        leads = together is None or together.env.is_leader
        if together and leads:
            together.finish(found.exit_code)
    if leads:
        return found
    if found.sentence:
        say(f"trainmark: {found.sentence}")
    return ProbeResult(exit_code=found.exit_code)


def probe_links(plan: Plan, store: Path, *, pair_rounds: int | None, together: Coordinator | None) -> ProbeResult:
    """Starts the ranks of a plan to measure links: among all of them, or in rounds of pairs of nodes."""
    words = [] if pair_rounds is None else [str(pair_rounds)]
    outcome = launcher.run_task(plan, store / "probes", NAME, words, coordinator=together)
    probed = ProbeResult(exit_code=outcome.exit_code, sentence=outcome.sentence)
    if together and not together.env.is_leader:
        return probed
    folder = RunFolder(outcome.folder, only_ranks=[0])
    folder.update()
    first = folder.ranks[0]
    there = {level.collective for level in first.link_levels}
    absent = tuple(name for name in COLLECTIVES if first.link and name not in there)
    return replace(probed, results=first.link, absent=absent, pairs=tuple(first.pairs), hosts=first.pair_hosts)


def _probe_hosts(
    hosts: str, topology: Topology, platform: str | None, pair_rounds: int | None, *, trust: bool
) -> ProbeResult:
    """The result of `trainmark doctor` on the first host."""
    words = ["doctor", "--topology", str(topology), *(["--platform", platform] if platform else [])]
    words += [] if pair_rounds is None else ["--pairs", "--rounds", str(pair_rounds)]
    known = site.load().entering_hosts(trust=trust)
    document, code = remote_run.query_hosts(hosts, words, topology, known, quiet=True)
    if document is None:
        return ProbeResult(exit_code=code, sentence="ended before the links were measured")
    try:
        result = document["sections"][0]
        return ProbeResult(
            results=msgspec.convert(result["results"], tuple[AllReduce, ...]),
            pairs=msgspec.convert(result.get("pairs", []), tuple[PairLink, ...]),
            hosts=msgspec.convert(result.get("hosts", []), tuple[str, ...]),
            exit_code=code,
            sentence=str(result["sentence"]),
        )
    except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise NotReadyError(
            f"the first of the hosts {hosts} sent no links; "
            "check that it has the same version of trainmark as this machine"
        ) from error


def _find_remedy(largest_bytes: int, topology: Topology) -> str:
    """What to check where the probe had no time for large messages; empty where it had."""
    if largest_bytes >= SIZES_BYTES[-1]:
        return ""
    slow = (
        f"messages above {links.format_size(largest_bytes)} were left out, as {BUDGET_S:g} s were not enough for them"
    )
    if topology.nodes == 1:
        return f"{slow}; see what else is running on this machine"
    return f"{slow}; see whether the ranks use the network meant for them (interface in trainmark.toml)"
