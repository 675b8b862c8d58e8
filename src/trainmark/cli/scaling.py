"""`trainmark scaling`: how much of the ideal speed-up more devices brought."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.analysis.scaling import Scaling
    from trainmark.store.store import Store

NAME = "scaling"
HELP = "Show how well runs scale over topologies, with intervals; refuses runs that are not alike."
EXAMPLES = """\
  trainmark scaling                       every group of like runs in the store
  trainmark scaling a1b2 c3d4             two runs, by the beginnings or ends of their ids
  trainmark scaling a1b2 c3d4 --metric p_train
  trainmark scaling --published vit       the same for published tables, by each of their throughputs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run ids or parts of them, groups, or record files (default: all runs)"
    )
    parser.add_argument("--metric", metavar="M", help="p_core, p_train or p_whole (default: p_core)")
    parser.add_argument(
        "--published",
        nargs="?",
        const="",
        metavar="WORKLOAD",
        help="use published rows instead of runs, of one workload or all",
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from trainmark.spec.errors import UsageError

    if args.published is None:
        return _of_runs(args)
    if args.runs:
        raise UsageError(f"--published uses no runs, but {args.runs[0]!r} was named; leave one of them out")
    return _of_published(args)


def _of_runs(args: argparse.Namespace) -> int:
    from trainmark.analysis.scaling import scaling, to_json
    from trainmark.cli.terminal import console, look
    from trainmark.store.lookup import records_of
    from trainmark.store.store import Store, default_folder

    store = Store(args.store or default_folder())
    metric = args.metric or "p_core"
    found = [scaling(records_of(args.runs, store), metric)] if args.runs else _in_store(store, metric)
    screen = console()
    if args.json:
        screen.file.write(json.dumps({"scalings": [to_json(group) for group in found]}, indent=2) + "\n")
    elif found:
        from trainmark.report.scaling_table import render

        screen.file.write(render(found, **look(screen)))
    return 0


def _in_store(store: Store, metric: str) -> list[Scaling]:
    """Every group of the store; says on stderr what was left out, and what is missing where there is no group."""
    from trainmark.analysis.scaling import all_scalings
    from trainmark.cli.terminal import say
    from trainmark.spec import escape
    from trainmark.store.store import read_record

    contents = store.contents()
    for damaged in contents.damaged:
        say(escape.terminal(str(damaged)))
    rows = [row for row in contents.rows if row.status == "valid"]
    topologies: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        topologies.setdefault((row.workload, row.precision, row.platform, row.device), set()).add(row.topology)
    # whole records are long: only those are read that can have another topology beside them
    records = [
        read_record(store.path(row.run_id))
        for row in rows
        if len(topologies[row.workload, row.precision, row.platform, row.device]) > 1
    ]
    found = all_scalings(records, metric)
    if not found:
        say(
            escape.terminal(
                f"the store {store.folder} holds no valid runs that differ in their topology alone; "
                "'trainmark run --topology 1x2' makes another, 'trainmark scaling RUN RUN' says what differs"
            )
        )
    return found


def _of_published(args: argparse.Namespace) -> int:
    from trainmark.analysis.scaling import throughput_alias
    from trainmark.analysis.scaling_published import published_scalings, to_json
    from trainmark.cli.terminal import console, look, say
    from trainmark.published import imported, library
    from trainmark.spec.metrics import THROUGHPUTS
    from trainmark.store.store import default_folder

    metric = throughput_alias(args.metric) if args.metric else None
    rows = library.rows(args.published or None)
    of_user = imported.rows(args.store or default_folder())
    asked = args.published.casefold()
    rows = (*rows, *(row for row in of_user if asked in ("", row.workload.casefold())))
    found = published_scalings(rows)
    if left_out := len(rows) - sum(len(group.points) for group in found):
        say(
            f"{left_out} of {len(rows)} published rows are left out: they have no throughput, or no other topology of "
            "the same batch beside them; 'trainmark published' shows them"
        )
    screen = console()
    if args.json:
        aliases = (metric,) if metric else THROUGHPUTS
        screen.file.write(json.dumps({"scalings": [to_json(group, aliases) for group in found]}, indent=2) + "\n")
        return 0
    from trainmark.report.scaling_table import render_published

    text = render_published(found, metric=metric, **look(screen))
    screen.file.write(text)
    return 0
