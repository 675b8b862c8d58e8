"""`trainmark published`: what others measured, and where they say so."""

from __future__ import annotations

import argparse
import json

HELP = "Show the rows of published benchmark tables, with their pages."
EXAMPLES = """\
  trainmark published                     every row
  trainmark published vit                 those of one workload
  trainmark published resnet50 --json     for programs; null is what was not published"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", nargs="?", metavar="WORKLOAD", help="only rows of this workload (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from trainmark.cli.terminal import console
    from trainmark.results import published

    rows = published.rows(args.workload)
    screen = console()
    if args.json:
        screen.file.write(json.dumps([{**asdict(row), "mfu": published.mfu(row)} for row in rows], indent=2) + "\n")
        return 0
    from trainmark.results.published_table import render

    color = screen.color_system is not None and not screen.no_color
    screen.file.write(render(rows, width=screen.width, color=color, encoding=screen.encoding))
    return 0
