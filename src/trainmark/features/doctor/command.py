"""`trainmark doctor`: looks at the machine, or at the links between its ranks, and says what would help."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.record.checks import CheckResult

if TYPE_CHECKING:
    from trainmark.view.terminal import TerminalWriter

NAME = "doctor"
HELP = "Check this machine, or measure the links between ranks."
EXAMPLES = """\
  trainmark doctor                              is this machine ready for a run, and how fast are its devices?
  trainmark doctor --quick --platform cpu       the same in seconds, for the processor alone
  trainmark doctor --topology 1x8               how fast do its devices exchange gradients?
  trainmark doctor --topology 2x8 --hosts a,b   and those of two machines?
  trainmark doctor --topology 4x8 --pairs --hosts a,b,c,d   which two of them exchange slowly?
  trainmark doctor --topology 1x2 --json        the same for programs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--topology", metavar="NxM", help="measure the links between so many nodes x devices per node")
    add(
        "--pairs", action="store_true", help="of --topology: measure the nodes two by two, all pairs of a round at once"
    )
    add("--rounds", type=int, metavar="N", help="of --pairs: so many rounds (default: all of few nodes, else 2 log2 n)")
    add("--hosts", metavar="A,B", help="the machines of --topology, reached by ssh")
    add("--trust", action="store_true", help="follow what trainmark.toml in this folder says of ssh and programs")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--quick", action="store_true", help="measure the devices for 2 s, not 20 s")
    how_long.add_argument("--no-probe", action="store_true", help="look only, measure nothing")
    add("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    from trainmark.record.errors import UsageError
    from trainmark.record.store import default_folder

    if args.hosts and not args.topology:
        raise UsageError("--hosts names the machines of a topology; say which, such as --topology 2x8")
    if args.topology and (args.quick or args.no_probe):
        raise UsageError("--quick and --no-probe are about this machine's devices; leave them out with --topology")
    if args.pairs and not args.topology:
        raise UsageError("--pairs are of the nodes of a topology; say which, such as --topology 10x8")
    if args.rounds is not None and (not args.pairs or args.rounds < 1):
        raise UsageError("--rounds says in how many rounds --pairs are measured, at least 1; say both, or neither")
    store = default_folder()
    return _tell_links(args, store) if args.topology else _tell_machine(args, store)


def _tell_machine(args: argparse.Namespace, store: Path) -> int:
    from trainmark.features.doctor import checks, device_probe, screen as doctor_screen

    probe_s = 0.0 if args.no_probe else device_probe.QUICK_S if args.quick else device_probe.BUDGET_S
    asked = checks.Asked(store=store, platform=args.platform, probe_s=probe_s)
    results = list(checks.examine(asked, print_status if sys.stderr.isatty() else lambda sentence: None))
    summary, code = checks.summary(results), _exit_code(results)
    if args.json:
        _dump({"summary": summary, "ready": code == 0, "sections": [_document(result) for result in results]})
    else:
        sys.stdout.write(doctor_screen.machine(_paper(), results, summary))
    return code


def _tell_links(args: argparse.Namespace, store: Path) -> int:
    from trainmark.features.doctor import screen as doctor_screen
    from trainmark.launch import links
    from trainmark.record.plan import Topology
    from trainmark.record.tournament import all_rounds, usual_rounds

    topology = Topology.parse(args.topology)
    rounds = None
    if args.pairs:
        rounds = min(args.rounds or usual_rounds(topology.nodes), all_rounds(topology.nodes))
    asked = {"hosts": args.hosts, "platform": args.platform, "trust": args.trust}
    results = [links.measure(topology, pair_rounds=rounds, store=store, say=print_status, **asked)]
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
    from trainmark.features.doctor import site_checks
    from trainmark.record import site

    return site_checks.network(site_checks.interfaces(), site.load().network.interface)


def _document(result: CheckResult) -> dict[str, Any]:
    """What was measured of the links stands beside the facts, where another machine's doctor looks for it."""
    facts = dict(result.facts)
    measured = {name: facts.pop(name, []) for name in ("results", "pairs", "hosts")}
    return {
        "name": result.name,
        "group": result.group,
        "verdict": result.verdict,
        "sentence": result.sentence,
        "remedy": result.remedy,
        "exit_code": result.exit_code,
        "facts": facts,
        **msgspec.to_builtins(measured),
    }


def _dump(document: Mapping[str, Any]) -> None:
    json.dump(document, sys.stdout, ensure_ascii=False)
    print()


def _paper() -> TerminalWriter:
    from trainmark.view.terminal import TerminalWriter

    screen = open_console()
    return TerminalWriter(**screen_options(screen))
