"""`trainmark published`: rows of published benchmark tables, with their sources."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from trainmark.analysis import published_library as library, published_lookup as imported
from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.price_list import load_price_list
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.record.store import default_folder
from trainmark.view.published_table import render

NAME = "published"
GROUP = "Publish"
HELP = "Show rows of published benchmark tables, with their sources."
EXAMPLES = """\
  trainmark published                     every row
  trainmark published vit                 those of one workload
  trainmark published mlperf-resnet       MLPerf's results at every size
  trainmark published resnet50 --price-file prices.toml    with what a million items and the target cost
  trainmark published resnet50 --json     for programs; null is what was not published"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", nargs="?", metavar="WORKLOAD", help="only rows of this workload (default: all)")
    parser.add_argument(
        "--price-file", type=Path, metavar="FILE", help="TOML with the price of a device-hour by device: adds costs"
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of imports (default: $TRAINMARK_STORE)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    kept = imported.load_pages(args.store or default_folder())
    workload = args.workload
    added = tuple(row for row in kept.rows if workload is None or row.workload.casefold() == workload.casefold())
    only_imported = added and workload is not None and workload.casefold() not in library.list_workloads()
    rows = added if only_imported else (*library.load_rows(workload), *added)
    prices = load_price_list(args.price_file) if args.price_file else None
    screen = open_console()
    if args.json:
        documents = [{**asdict(row), "mfu": estimate_mfu(row), "imported": imported.is_imported(row)} for row in rows]
        if prices:
            costs = ({"cost": {**asdict(prices.cost(row)), "currency": prices.currency}} for row in rows)
            documents = [{**document, **cost} for document, cost in zip(documents, costs, strict=True)]
        screen.file.write(json.dumps(documents, indent=2) + "\n")
    else:
        screen.file.write(render(rows, prices=prices, **screen_options(screen)))
        if workload is None:
            more = library.load_other_rows()
            names = ", ".join(dict.fromkeys(row.workload for row in more))
            print_status(f"{len(more)} more rows, of FlagPerf's other cases and MLPerf, by name: {names}")
    for sentence in kept.damaged:
        print_status(sentence)
    return 0
