"""`trainmark doctor`: checks the machine, or measures the links between ranks, and suggests remedies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import print_status
from trainmark.features.doctor import host_checks, screen
from trainmark.features.links.rounds import all_rounds, usual_rounds
from trainmark.record import site
from trainmark.record.checks import CheckResult, failed
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.store import default_folder

if TYPE_CHECKING:
    from trainmark.platforms.platform import Device

PROBE_S, QUICK_S = 20.0, 2.0
"""Time to measure the devices for; with --quick."""

NAME = "doctor"
GROUP = "Cluster"
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
    add("--topology", metavar="NxM", help="measure the links between nodes x devices per node")
    add(
        "--pairs", action="store_true", help="with --topology: measure pairs of nodes, all pairs of a round in parallel"
    )
    add("--rounds", type=int, metavar="N", help="with --pairs: rounds (default: all with few nodes, else 2 log2 n)")
    add("--hosts", metavar="A,B", help="the machines of --topology, reached by ssh")
    add("--trust", action="store_true", help="use the ssh settings and programs of trainmark.toml in this folder")
    add("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: auto)")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--quick", action="store_true", help="measure the devices for 2 s, not 20 s")
    how_long.add_argument("--no-probe", action="store_true", help="check only, measure nothing")
    add("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    if args.hosts and not args.topology:
        raise UsageError("--hosts needs a topology, such as --topology 2x8")
    if args.topology and (args.quick or args.no_probe):
        raise UsageError("--quick and --no-probe are about this machine's devices; leave them out with --topology")
    if args.pairs and not args.topology:
        raise UsageError("--pairs needs a topology, such as --topology 10x8")
    if args.rounds is not None and (not args.pairs or args.rounds < 1):
        raise UsageError("--rounds needs --pairs and a number of at least 1")
    store = default_folder()
    return _check_links(args, store) if args.topology else _check_machine(args, store)


def _check_machine(args: argparse.Namespace, store: Path) -> int:
    probe_s = 0.0 if args.no_probe else QUICK_S if args.quick else PROBE_S
    results = list(examine(store, args.platform, probe_s))
    summary, code = screen.summarize(results), _exit_code(results)
    if args.json:
        screen.dump(
            {"summary": summary, "ready": code == 0, "sections": [screen.make_document(result) for result in results]}
        )
    else:
        sys.stdout.write(screen.render_machine(screen.make_writer(), results, summary))
    return code


def examine(store: Path, platform: str | None, probe_s: float, root: Path = Path("/")) -> Iterator[CheckResult]:
    """Every result, in the order of the screen; `root` is where /proc, /sys and /dev are."""
    devices: Sequence[Device] = ()
    try:
        from trainmark.features.doctor import device_checks
    except (ImportError, OSError) as error:  # a build for another system fails to find its libraries
        said, remedy = f"torch cannot be imported: {error}", "python -m pip install --force-reinstall torch"
        yield replace(failed(said, remedy), name="torch", group="Software")
    else:
        results, devices = device_checks.check_all_devices(platform, root)
        yield from results
        yield device_checks.check_torch()
    yield from host_checks.check_host(root, accelerators=sum(not device.is_cpu for device in devices))
    yield from host_checks.check_site(store)
    if devices and probe_s > 0:
        if sys.stderr.isatty():
            print_status(f"measuring matmuls and memory for {probe_s:g} s (--quick: 2 s, --no-probe: not at all)")
        yield from device_checks.check_speed(devices, probe_s)


def _check_links(args: argparse.Namespace, store: Path) -> int:
    from trainmark.features.links import measure as links

    topology = Topology.parse(args.topology)
    rounds = None
    if args.pairs:
        rounds = min(args.rounds or usual_rounds(topology.nodes), all_rounds(topology.nodes))
    where = {"hosts": args.hosts, "platform": args.platform, "trust": args.trust}
    results = [links.measure(topology, pair_rounds=rounds, store=store, say=print_status, **where)]
    if results[0].sentence and not args.hosts:
        results.append(host_checks.check_network(site.load().network.interface))
    shown = [result for result in results if result.sentence]
    if shown and args.json:
        screen.dump({"sections": [screen.make_document(result) for result in shown]})
    else:
        sys.stdout.write(screen.render_links(screen.make_writer(), shown))
    return _exit_code(results)


def _exit_code(results: Sequence[CheckResult]) -> int:
    return next((result.exit_code for result in results if result.exit_code), 0)
