"""`trainmark doctor`: looks at the machine, or at the links between its ranks, and says what would help."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainmark.cli.terminal import console, say
from trainmark.spec.checks import CheckResult
from trainmark.spec.links import AllReduce

if TYPE_CHECKING:
    from trainmark.report.terminal import Paper
    from trainmark.spec.plan import Plan
    from trainmark.spec.topology import Topology

HELP = "Check this machine, or measure the links between ranks."
EXAMPLES = """\
  trainmark doctor                              is this machine ready for a run, and how fast are its devices?
  trainmark doctor --quick --platform cpu       the same in seconds, for the processor alone
  trainmark doctor --topology 1x8               how fast do its devices exchange gradients?
  trainmark doctor --topology 2x8 --hosts a,b   and those of two machines?
  trainmark doctor --topology 1x2 --json        the same for programs"""

RESULTS = "results"
"""Of the links: what each message size took."""

Found = tuple[Sequence[AllReduce], int, str]
"""Results, exit code, and what went wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topology", metavar="NxM", help="measure the links between so many nodes x devices per node")
    add("--hosts", metavar="A,B", help="the machines of --topology, reached by ssh")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--quick", action="store_true", help="measure the devices for 2 s, not 20 s")
    how_long.add_argument("--no-probe", action="store_true", help="look only, measure nothing")
    add("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    from trainmark.spec.errors import UsageError
    from trainmark.store.store import default_folder

    if args.hosts and not args.topology:
        raise UsageError("--hosts names the machines of a topology; say which, such as --topology 2x8")
    if args.topology and (args.quick or args.no_probe):
        raise UsageError("--quick and --no-probe are about this machine's devices; leave them out with --topology")
    store = default_folder()
    return _tell_links(args, store) if args.topology else _tell_machine(args, store)


def _tell_machine(args: argparse.Namespace, store: Path) -> int:
    from trainmark.doctor import checks, device_probe
    from trainmark.report import doctor_screen

    probe_s = 0.0 if args.no_probe else device_probe.QUICK_S if args.quick else device_probe.BUDGET_S
    asked = checks.Asked(store=store, platform=args.platform, probe_s=probe_s)
    results = list(checks.examine(asked, say if sys.stderr.isatty() else lambda sentence: None))
    summary, code = checks.summary(results), _exit_code(results)
    if args.json:
        _dump({"summary": summary, "ready": code == 0, "sections": [_document(result) for result in results]})
    else:
        sys.stdout.write(doctor_screen.machine(_paper(), results, summary))
    return code


def _tell_links(args: argparse.Namespace, store: Path) -> int:
    from trainmark.report import doctor_screen

    results = [links(args, store)]
    if results[0].sentence and not args.hosts:
        results.append(_network())
    told = [result for result in results if result.sentence]
    if told and args.json:
        _dump({"sections": [_document(result) for result in told]})
    else:
        sys.stdout.write(doctor_screen.links_screen(_paper(), told))
    return _exit_code(results)


def _exit_code(results: Sequence[CheckResult]) -> int:
    return next((result.exit_code for result in results if result.exit_code), 0)


def _network() -> CheckResult:
    from trainmark.doctor import site_checks
    from trainmark.spec import site

    return site_checks.network(site_checks.interfaces(), site.load().network.interface)


def _document(result: CheckResult) -> dict[str, Any]:
    facts = dict(result.facts)
    results = facts.pop(RESULTS, [])
    return {
        "name": result.name,
        "group": result.group,
        "verdict": result.verdict,
        "sentence": result.sentence,
        "remedy": result.remedy,
        "exit_code": result.exit_code,
        "facts": facts,
        "results": msgspec.to_builtins(results),
    }


def _dump(document: Mapping[str, Any]) -> None:
    json.dump(document, sys.stdout, ensure_ascii=False)
    print()


def links(args: argparse.Namespace, store: Path) -> CheckResult:
    """Starts the ranks of a topology only to let them exchange messages."""
    from trainmark.launch import planning
    from trainmark.launch.options import RunOptions
    from trainmark.spec import links
    from trainmark.spec.topology import Topology

    topology = Topology.parse(args.topology)
    if topology.devices == 1:
        return CheckResult(name="links", verdict="ok", sentence=f"{topology} has one rank, which exchanges with nobody")
    if args.hosts:
        results, code, sentence = _probe_hosts(args, topology)
    else:
        words = RunOptions(recipe="smoke", topology=args.topology, platform=args.platform)
        results, code, sentence = _probe_here(planning.decide("resnet50", words), topology, store)
    if code:
        return CheckResult(name="links", verdict="failed", sentence=sentence, exit_code=code, facts={RESULTS: results})
    if not results:
        return CheckResult(name="links", verdict="ok", sentence=sentence)
    remedy = _remedy(results[-1].size_bytes, topology)
    return CheckResult(
        name="links",
        verdict="doubt" if remedy else "ok",
        sentence=links.summary(results, ranks=topology.devices, hosts=topology.nodes),
        remedy=remedy,
        facts={RESULTS: results},
    )


def _probe_here(plan: Plan, topology: Topology, store: Path) -> Found:
    """On this machine, together with the others of its job if there are any; the first of them tells the results."""
    from trainmark.launch import cluster_env, launcher, lifeline_stdin
    from trainmark.launch.coordinator import Coordinator
    from trainmark.spec import site

    network = site.load().network
    here = cluster_env.find(topology, os.environ, network.port)
    if here.kind == "slurm-batch":
        command = [sys.executable, "-m", "trainmark", *sys.argv[1:]]
        os.execvp("srun", cluster_env.own_srun(topology, os.environ, command))  # noqa: S606
    if lifeline_stdin.asked():
        lifeline_stdin.end_with_stdin()
    if here.launchers == 1:
        return launcher.probe_only(plan, store, interface=network.interface)
    coordinator = Coordinator(here)
    try:
        results, code, sentence = launcher.probe_only(plan, store, coordinator=coordinator, interface=network.interface)
        if here.leads:
            coordinator.finish(code)
            return results, code, sentence
    finally:
        coordinator.leave()
    if sentence:
        say(f"trainmark: {sentence}")
    return [], code, ""


def _probe_hosts(args: argparse.Namespace, topology: Topology) -> Found:
    """What the doctor of the first host tells."""
    from trainmark.launch import ssh_run
    from trainmark.spec import site
    from trainmark.spec.errors import NotReadyError

    words = ["doctor", "--topology", str(topology), *(["--platform", args.platform] if args.platform else [])]
    document, code = ssh_run.ask_hosts(args.hosts, words, topology, site.load(), quiet=True)
    if document is None:
        return [], code, "ended before the links were measured"
    try:
        result = document["sections"][0]
        return msgspec.convert(result["results"], list[AllReduce]), code, str(result["sentence"])
    except (KeyError, IndexError, TypeError, msgspec.ValidationError) as error:
        raise NotReadyError(
            f"the first of the hosts {args.hosts} answers with something else than its links; "
            "see that it has the same version of trainmark as this machine"
        ) from error


def _remedy(largest_bytes: int, topology: Topology) -> str:
    """What to look at where the probe had no time for its large messages; nothing where it had."""
    from trainmark.spec import links
    from trainmark.train.link_probe import BUDGET_S, SIZES_BYTES

    if largest_bytes >= SIZES_BYTES[-1]:
        return ""
    slow = f"messages above {links.size(largest_bytes)} were left out, as {BUDGET_S:g} s were not enough for them"
    if topology.nodes == 1:
        return f"{slow}; see what else is running on this machine"
    return f"{slow}; see whether the ranks use the network meant for them (interface in trainmark.toml)"


def _paper() -> Paper:
    from trainmark.report.terminal import Paper

    screen = console()
    color = screen.color_system is not None and not screen.no_color
    return Paper(width=screen.width, color=color, encoding=screen.encoding)
