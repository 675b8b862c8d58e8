"""`trainmark doctor`: checks the machine, or measures the links between ranks, and suggests remedies."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.doctor import checks, site_checks
from trainmark.record import escape, site
from trainmark.record.checks import CheckResult
from trainmark.record.errors import UsageError
from trainmark.record.language import ENGLISH
from trainmark.record.links import all_rounds, usual_rounds
from trainmark.record.plan import Topology
from trainmark.record.store import default_folder
from trainmark.view import facts
from trainmark.view.terminal import TerminalWriter

PROBE_S, QUICK_S = 20.0, 2.0
"""Time to measure the devices for; with --quick."""
STYLES = {"ok": "green", "doubt": "bold yellow", "failed": "bold red", "unknown": "cyan"}

_INDENT = 2
_VERDICT_COLUMNS = max(map(len, STYLES))
_BAR_COLUMNS = 20


def render_machine(writer: TerminalWriter, results: Sequence[CheckResult], summary: str) -> str:
    """Every result in a line or two, below the heading of its group; the summary comes last."""
    names = max((writer.length(result.name) for result in results), default=0)
    for group, members in itertools.groupby(results, key=lambda result: result.group):
        writer.put(writer.text(group, "bold"))
        for result in members:
            _draw_result(writer, result, names)
        writer.put("")
    worst = next((word for word in ("failed", "doubt") if any(one.verdict == word for one in results)), "ok")
    writer.put(writer.text(summary, "bold green" if worst == "ok" else STYLES[worst]))
    return writer.getvalue()


def render_links(writer: TerminalWriter, results: Sequence[CheckResult]) -> str:
    for result in results:
        writer.put(writer.text(f"{result.name}: {result.verdict}", f"bold {STYLES[result.verdict]}"))
        writer.put(*filter(None, (result.sentence, result.remedy)), indent=_INDENT)
        if measured := result.facts.get("results"):
            writer.put("")
            table = facts.link_table(measured, ENGLISH)
            writer.put(writer.grid(table.heads, table.rows), indent=_INDENT)
        if pairs := result.facts.get("pairs"):
            table = facts.pair_table(pairs, ENGLISH)
            writer.put("", writer.grid(table.heads, table.rows), indent=_INDENT)
    return writer.getvalue()


def _draw_result(writer: TerminalWriter, result: CheckResult, name_columns: int) -> None:
    row = writer.table(heads=False)
    row.add_column(width=_VERDICT_COLUMNS)
    row.add_column(width=name_columns)
    row.add_column(overflow="fold")
    row.add_row(
        writer.text(result.verdict, STYLES[result.verdict]), writer.text(result.name), writer.text(result.sentence)
    )
    writer.put(row, indent=_INDENT)
    text_column = _INDENT + _VERDICT_COLUMNS + name_columns + 4
    if (share := result.facts.get("share_of_peak")) is not None:
        writer.put(writer.text(_draw_bar(writer, share), STYLES[result.verdict]), indent=text_column)
    if result.remedy:
        _draw_remedy(writer, result.remedy, text_column)


def _draw_remedy(writer: TerminalWriter, remedy: str, column: int) -> None:
    line = f"→ {remedy}"
    if column + writer.length(line) <= writer.width:
        writer.put(writer.text(line, "bold"), indent=column)
    else:  # a line to paste must not be broken: the terminal folds it without a newline
        writer.put_unbroken(f"{' ' * _INDENT}{line}")


def _draw_bar(writer: TerminalWriter, share: float) -> str:
    full, empty = ("█", "░") if escape.can_encode(writer.encoding, "█░") else ("#", ".")
    filled = round(_BAR_COLUMNS * min(1.0, max(0.0, share)))
    return full * filled + empty * (_BAR_COLUMNS - filled)


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
    options = checks.DoctorOptions(store=store, platform=args.platform, probe_s=probe_s)
    results = list(checks.examine(options, print_status if sys.stderr.isatty() else lambda sentence: None))
    summary, code = checks.summarize(results), _exit_code(results)
    if args.json:
        _dump({"summary": summary, "ready": code == 0, "sections": [_document(result) for result in results]})
    else:
        sys.stdout.write(render_machine(_make_writer(), results, summary))
    return code


def _check_links(args: argparse.Namespace, store: Path) -> int:
    from trainmark.features.links import measure as links

    topology = Topology.parse(args.topology)
    rounds = None
    if args.pairs:
        rounds = min(args.rounds or usual_rounds(topology.nodes), all_rounds(topology.nodes))
    where = {"hosts": args.hosts, "platform": args.platform, "trust": args.trust}
    results = [links.measure(topology, pair_rounds=rounds, store=store, say=print_status, **where)]
    if results[0].sentence and not args.hosts:
        results.append(_check_network())
    shown = [result for result in results if result.sentence]
    if shown and args.json:
        _dump({"sections": [_document(result) for result in shown]})
    else:
        sys.stdout.write(render_links(_make_writer(), shown))
    return _exit_code(results)


def _exit_code(results: Sequence[CheckResult]) -> int:
    return next((result.exit_code for result in results if result.exit_code), 0)


def _check_network() -> CheckResult:
    return site_checks.check_network(site_checks.list_interfaces(), site.load().network.interface)


def _document(result: CheckResult) -> dict[str, Any]:
    """Measured links are top-level keys, where the doctor of another machine reads them."""
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


def _make_writer() -> TerminalWriter:
    screen = open_console()
    return TerminalWriter(**screen_options(screen))
