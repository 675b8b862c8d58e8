"""Measures the links between the ranks of a topology: they are started only to exchange messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trainmark import workloads
from trainmark.launch import cluster_env, coordinator, lifeline_stdin, planning, ssh_run, without_training
from trainmark.launch.options import RunOptions
from trainmark.spec import links, site
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import NotReadyError
from trainmark.spec.links import AllReduce
from trainmark.spec.plan import Plan
from trainmark.spec.topology import Topology
from trainmark.train.link_probe import BUDGET_S, SIZES_BYTES

NAME = "links"
RESULTS = "results"
"""The fact that holds what each message size took."""

Found = tuple[Sequence[AllReduce], int, str]
"""Results, exit code, and what went wrong."""


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
    if hosts:
        results, code, sentence = _probe_hosts(hosts, topology, platform, trust=trust)
    else:
        options = RunOptions(recipe="smoke", topology=str(topology), platform=platform)
        # which one does not matter: no model is built
        results, code, sentence = _probe_here(planning.decide(workloads.names()[0], options), topology, store, say)
    if code:
        return CheckResult(name=NAME, verdict="failed", sentence=sentence, exit_code=code, facts={RESULTS: results})
    if not results:
        return CheckResult(name=NAME, verdict="ok", sentence=sentence)
    remedy = _remedy(results[-1].size_bytes, topology)
    return CheckResult(
        name=NAME,
        verdict="doubt" if remedy else "ok",
        sentence=links.summary(results, ranks=topology.devices, hosts=topology.nodes),
        remedy=remedy,
        facts={RESULTS: results},
    )


def _probe_here(plan: Plan, topology: Topology, store: Path, say: Callable[[str], None]) -> Found:
    """On this machine, together with the others of its job if there are any; the first of them tells the results."""
    network = site.load().network
    here = cluster_env.find(topology, os.environ, network.port)
    if here.kind == "slurm-batch":
        cluster_env.start_by_srun(topology, [sys.executable, "-m", "trainmark", *sys.argv[1:]])
    secret = lifeline_stdin.end_with_stdin() if lifeline_stdin.is_wanted() else None
    if here.launchers == 1:
        return without_training.probe_links(plan, store, interface=network.interface)
    together = coordinator.Coordinator(here, secret=secret, interface=network.interface)
    try:
        results, code, sentence = without_training.probe_links(
            plan, store, coordinator=together, interface=network.interface
        )
        if here.leads:
            together.finish(code)
            return results, code, sentence
    finally:
        together.leave()
    if sentence:
        say(f"trainmark: {sentence}")
    return [], code, ""


def _probe_hosts(hosts: str, topology: Topology, platform: str | None, *, trust: bool) -> Found:
    """What the doctor of the first host tells."""
    words = ["doctor", "--topology", str(topology), *(["--platform", platform] if platform else [])]
    known = site.load().entering_hosts(trust=trust)
    document, code = ssh_run.ask_hosts(hosts, words, topology, known, quiet=True)
    if document is None:
        return [], code, "ended before the links were measured"
    try:
        result = document["sections"][0]
        return msgspec.convert(result["results"], list[AllReduce]), code, str(result["sentence"])
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
