"""Measures the links between the ranks of a topology: they are started only to exchange messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.launch import cluster_env, coordinator, lifeline_stdin, planning, ssh_run, without_training
from trainmark.launch.options import RunOptions
from trainmark.launch.without_training import Probed
from trainmark.spec import links, site
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import NotReadyError
from trainmark.spec.links import AllReduce, PairLink
from trainmark.spec.plan import Plan
from trainmark.spec.topology import Topology
from trainmark.train.link_probe import BUDGET_S, SIZES_BYTES

NAME = "links"
RESULTS = "results"
"""The fact that holds what each message size took."""

PAIRS = "pairs"
"""The fact that holds what each pair of nodes carries."""
HOSTS = "hosts"
"""And what the nodes call themselves, in their order."""


def measure(
    topology: Topology,
    *,
    hosts: str | None,
    platform: str | None,
    store: Path,
    say: Callable[[str], None],
    trust: bool = False,
) -> CheckResult:
    """Between the devices of this machine and of its job, or of the hosts named."""
    if topology.devices == 1:
        return CheckResult(name=NAME, verdict="ok", sentence=f"{topology} has one rank, which exchanges with nobody")
    found = _probe(topology, hosts=hosts, platform=platform, store=store, say=say, trust=trust)
    results = found.results
    if found.exit_code:
        return _failed(found, {RESULTS: results})
    if not results:
        return CheckResult(name=NAME, verdict="ok", sentence=found.sentence)
    remedy = _remedy(results[-1].size_bytes, topology)
    return CheckResult(
        name=NAME,
        verdict="doubt" if remedy else "ok",
        sentence=links.summary(results, ranks=topology.devices, hosts=topology.nodes),
        remedy=remedy,
        facts={RESULTS: results},
    )


def measure_pairs(
    topology: Topology,
    rounds: int,
    *,
    hosts: str | None,
    platform: str | None,
    store: Path,
    say: Callable[[str], None],
    trust: bool = False,
) -> CheckResult:
    """Between nodes, two by two, of this machine's job or of the hosts named, in so many rounds of disjoint pairs."""
    if topology.nodes == 1:
        return CheckResult(name=NAME, verdict="ok", sentence=f"{topology} has one node, and no pair of them")
    found = _probe(topology, hosts=hosts, platform=platform, store=store, say=say, trust=trust, pair_rounds=rounds)
    if found.exit_code:
        return _failed(found, {PAIRS: found.pairs})
    if not found.pairs:
        return CheckResult(name=NAME, verdict="ok", sentence=found.sentence)
    return CheckResult(
        name=NAME,
        verdict="ok",
        sentence=links.pairs_summary(found.pairs, rounds),
        facts={PAIRS: found.pairs, HOSTS: found.hosts},
    )


def _failed(found: Probed, facts: Mapping[str, Any]) -> CheckResult:
    return CheckResult(
        name=NAME, verdict="failed", sentence=found.sentence, exit_code=found.exit_code, facts=dict(facts)
    )


def _probe(
    topology: Topology,
    *,
    hosts: str | None,
    platform: str | None,
    store: Path,
    say: Callable[[str], None],
    trust: bool,
    pair_rounds: int | None = None,
) -> Probed:
    if hosts:
        return _probe_hosts(hosts, topology, platform, pair_rounds, trust=trust)
    options = RunOptions(recipe="smoke", topology=str(topology), platform=platform)
    # which one does not matter: no model is built
    return _probe_here(planning.decide(workloads.names()[0], options), topology, store, pair_rounds, say)


def _probe_here(
    plan: Plan, topology: Topology, store: Path, pair_rounds: int | None, say: Callable[[str], None]
) -> Probed:
    """On this machine, together with the others of its job if there are any; the first of them tells the results."""
    network = site.load().network
    here = cluster_env.find(topology, os.environ, network.port)
    if here.is_batch:
        cluster_env.start_tasks(here, topology, [sys.executable, "-m", "trainmark", *sys.argv[1:]])
    secret = lifeline_stdin.end_with_stdin() if lifeline_stdin.is_wanted() else None
    if here.launchers == 1:
        return without_training.probe_links(plan, store, pair_rounds=pair_rounds, interface=network.interface)
    together = coordinator.Coordinator(here, secret=secret, interface=network.interface)
    try:
        found = without_training.probe_links(
            plan, store, pair_rounds=pair_rounds, coordinator=together, interface=network.interface
        )
        if here.leads:
            together.finish(found.exit_code)
            return found
    finally:
        together.leave()
    if found.sentence:
        say(f"trainmark: {found.sentence}")
    return Probed(exit_code=found.exit_code)


def _probe_hosts(
    hosts: str, topology: Topology, platform: str | None, pair_rounds: int | None, *, trust: bool
) -> Probed:
    """What the doctor of the first host tells."""
    words = ["doctor", "--topology", str(topology), *(["--platform", platform] if platform else [])]
    words += [] if pair_rounds is None else ["--pairs", "--rounds", str(pair_rounds)]
    known = site.load().entering_hosts(trust=trust)
    document, code = ssh_run.ask_hosts(hosts, words, topology, known, quiet=True)
    if document is None:
        return Probed(exit_code=code, sentence="ended before the links were measured")
    try:
        result = document["sections"][0]
        return Probed(
            results=msgspec.convert(result["results"], tuple[AllReduce, ...]),
            pairs=msgspec.convert(result.get("pairs", []), tuple[PairLink, ...]),
            hosts=msgspec.convert(result.get("hosts", []), tuple[str, ...]),
            exit_code=code,
            sentence=str(result["sentence"]),
        )
    except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise NotReadyError(
            f"the first of the hosts {hosts} answers with something else than its links; "
            "see that it has the same version of trainmark as this machine"
        ) from error


def _remedy(largest_bytes: int, topology: Topology) -> str:
    """What to look at where the probe had no time for its large messages; nothing where it had."""
    if largest_bytes >= SIZES_BYTES[-1]:
        return ""
    slow = f"messages above {links.size(largest_bytes)} were left out, as {BUDGET_S:g} s were not enough for them"
    if topology.nodes == 1:
        return f"{slow}; see what else is running on this machine"
    return f"{slow}; see whether the ranks use the network meant for them (interface in trainmark.toml)"
