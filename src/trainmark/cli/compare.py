"""`trainmark compare`: whether one result is faster than another, and how surely."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.verdict import add_verdict_options, parse_threshold, show
from trainmark.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmark.analysis.subject import Subject
    from trainmark.store.store import Store

HELP = "Tell whether B is faster than A, by how much and how surely; refuses unlike things."
EXAMPLES = """\
  trainmark compare a1b2c3 d4e5f6                  two runs, by the beginnings or ends of their ids
  trainmark compare 5a8c9d0e 7b1f2a3c              two groups of repeats, as 'run --repeat 5' makes them
  trainmark compare a1b2c3,d4e5f6 last             repeats that were run one by one, against the newest run
  trainmark compare before.json after.json --gate  in CI: exit 6 if slower, 7 if it cannot be told
  trainmark compare last 5a8c9d0e --metric e2e_time --threshold 5%
  trainmark compare published:flagperf-a100-vit-1x1 last --anyway
  trainmark compare --null 5a8c9d0e                how often repeats of one plan are told apart: our false alarms

A is the base and B the new one. The verdict is 'same' where the 95 % interval of the ratio lies within the threshold,
'faster' or 'slower' where it lies wholly beyond, and 'inconclusive' where it lies across. Exit codes: 6 slower or
worse, 7 inconclusive with --gate, else 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="A, then B: a run, a group of repeats, runs joined by commas, a record file, or published:NAME",
    )
    parser.add_argument("--anyway", action="store_true", help="go on where the two are not alike, and list how")
    parser.add_argument(
        "--null", action="store_true", help="split repeats of one plan to measure the rate of false alarms"
    )
    add_verdict_options(parser)
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    from trainmark.store.store import Store, default_folder

    store = Store(args.store or default_folder())
    threshold = parse_threshold(args.threshold)
    if args.null:
        return _null(args, store, threshold)
    if len(args.runs) != 2:
        raise UsageError(f"compare takes two results, A and B, not {len(args.runs)}; join repeats with commas: a,b,c")
    from trainmark import api

    a, b = args.runs
    found = api.compare(a, b, metric=args.metric, threshold=threshold, anyway=args.anyway, store=store.folder)
    return show(found, as_json=args.json, gate=args.gate)


def _null(args: argparse.Namespace, store: Store, threshold: float) -> int:
    from trainmark.analysis.compare.null import measure, to_json
    from trainmark.cli.terminal import console

    found = measure(_repeats(args.runs, store), metric=args.metric, threshold=threshold)
    screen = console()
    if args.json:
        screen.file.write(json.dumps(to_json(found), indent=2) + "\n")
        return 0
    from trainmark.report.compare_screen import render_null

    color = screen.color_system is not None and not screen.no_color
    screen.file.write(render_null(found, width=screen.width, color=color, encoding=screen.encoding))
    return 0


def _repeats(words: list[str], store: Store) -> Subject:
    """The runs named, or of all plans in the store the one that was run most often on one device."""
    from collections import Counter

    from trainmark.published.lookup import of_records, subject
    from trainmark.store.store import read_record

    if words:
        return subject(",".join(words), store) if len(words) > 1 else subject(words[0], store)
    rows = store.rows(status="valid")
    plans = Counter((row.fingerprint, row.device) for row in rows)
    if not plans:
        raise UsageError(
            f"the store {store.folder} holds no valid runs to split; 'trainmark run --repeat 10' makes some"
        )
    (often, _), *_ = plans.most_common(1)
    chosen = [row for row in rows if (row.fingerprint, row.device) == often][:MOST_SPLIT]
    return of_records("the plan run most often", [read_record(store.path(row.run_id)) for row in chosen])


MOST_SPLIT = 40
"""The newest runs of a plan tell enough; reading all of a large store would take long."""
