"""`trainmark scaling`: shows the scaling efficiency of runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainmark.analysis import scaling
from trainmark.analysis.scaling import Scaling, find_scalings
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.scaling.after_sweep import render_scalings
from trainmark.record.store import Store, default_folder, find_records, read_record

NAME = "scaling"
GROUP = "Judge"
HELP = "Show how well runs scale over topologies, with intervals."
EXAMPLES = """\
  trainmark scaling                       every group of like runs in the store
  trainmark scaling a1b2 c3d4             two runs, by the beginnings or ends of their ids
  trainmark scaling a1b2 c3d4 --metric p_train"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run ids or parts of them, groups, or record files (default: all runs)"
    )
    parser.add_argument("--metric", metavar="M", help="p_core, p_train or p_whole (default: p_core)")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    screen = open_console()
    metric = args.metric or "p_core"
    found = (
        [scaling.compute_scaling(find_records(args.runs, store), metric)] if args.runs else _read_store(store, metric)
    )
    document = [scaling.to_json(group) for group in found]
    text = render_scalings(found, **screen_options(screen)) if found else ""
    screen.file.write(json.dumps({"scalings": document}, indent=2) + "\n" if args.json else text)
    return 0


def _read_store(store: Store, metric: str) -> list[Scaling]:
    """Every group of the store; reports on stderr what is left out, and why there is no group."""
    contents = store.contents()
    for damaged in contents.damaged:
        print_status(str(damaged))
    # records are long: read only those that may have another topology
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for row in contents.rows:
        if row.status == "valid":
            key = (row.workload, row.precision, row.platform, row.device)
            alike.setdefault(key, []).append((row.topology, row.run_id))
    runs = [run_id for rows in alike.values() if len({size for size, _ in rows}) > 1 for _, run_id in rows]
    found = find_scalings([read_record(store.path(run_id)) for run_id in runs], metric)
    if not found:
        print_status(
            f"the store {store.folder} holds no valid runs that differ in their topology alone; "
            "'trainmark run --topology 1x2' makes another, 'trainmark scaling RUN RUN' says what differs"
        )
    return found
