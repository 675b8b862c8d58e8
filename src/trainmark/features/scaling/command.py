"""`trainmark scaling`: shows the scaling efficiency of runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainmark.analysis import published_library as library, published_lookup as imported, scaling
from trainmark.analysis.scaling import PublishedScaling, Scaling, find_published_scalings, find_scalings
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.scaling.after_sweep import render_published, render_scalings
from trainmark.record.errors import UsageError
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.store import Store, default_folder, find_records, read_record

NAME = "scaling"
GROUP = "Judge"
HELP = "Show how well runs scale over topologies, with intervals."
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
    store = Store(args.store or default_folder())
    screen = open_console()
    if args.published is None:
        metric = args.metric or "p_core"
        found = (
            [scaling.compute_scaling(find_records(args.runs, store), metric)]
            if args.runs
            else _read_store(store, metric)
        )
        document = [scaling.to_json(group) for group in found]
        text = render_scalings(found, **screen_options(screen)) if found else ""
    elif args.runs:
        raise UsageError(f"--published uses no runs, but {args.runs[0]!r} was named; leave one of them out")
    else:
        alias = scaling.find_throughput(args.metric) if args.metric else None
        groups = _read_published(args.published, store)
        document = [scaling.published_to_json(group, (alias,) if alias else THROUGHPUTS) for group in groups]
        text = render_published(groups, metric=alias, **screen_options(screen))
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


def _read_published(workload: str, store: Store) -> list[PublishedScaling]:
    """Published rows of one workload or all, with imported ones."""
    imports = imported.load_rows(store.folder)
    rows = [
        *library.load_rows(workload or None),
        *(row for row in imports if workload.casefold() in ("", row.workload.casefold())),
    ]
    found = find_published_scalings(rows)
    if left_out := len(rows) - sum(len(group.points) for group in found):
        print_status(
            f"{left_out} of {len(rows)} published rows are left out: they have no throughput, or no other topology of "
            "the same batch beside them; 'trainmark published' shows them"
        )
    return found
