"""`trainmark compare`: whether one result is faster than another, and how certainly."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainmark import api
from trainmark.cli.options import add_price_options, read_prices
from trainmark.cli.verdict import add_verdict_options, parse_threshold, show_verdict
from trainmark.record.errors import UsageError
from trainmark.record.store import Store, default_folder

NAME = "compare"
GROUP = "Judge"
HELP = "Tell whether B is faster than A, by how much and how surely."
EXAMPLES = """\
  trainmark compare a1b2c3 d4e5f6                  two runs, by the beginnings or ends of their ids
  trainmark compare 5a8c9d0e 7b1f2a3c              two groups of repeats, as 'run --repeat 5' makes them
  trainmark compare a1b2c3,d4e5f6 last             repeats that were run one by one, against the newest run
  trainmark compare before.json after.json --gate  in CI: exit 6 if slower, 7 if inconclusive
  trainmark compare last 5a8c9d0e --metric e2e_time --threshold 5%
  trainmark compare a1b2c3 d4e5f6 --metric cost_per_million --price 2.10/h,3.40/h --anyway
  trainmark compare published:flagperf-a100-vit-1x1 last --anyway
  trainmark compare published:resnet50 last --anyway    the published row that is most like the run

A is the base and B the new one. The verdict is 'same' where the 95 % interval of the ratio lies within the threshold,
'faster' or 'slower' where it lies wholly beyond, and 'inconclusive' where it lies across. A published figure has no
interval: it is taken to be right within a factor of 2. Where others used the machine that trained, one device is not
compared with itself. Exit codes: 6 slower or worse, 7 where others' load hides the answer, and with --gate where it is
inconclusive, else 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="A, then B: a run, a group of repeats, runs joined by commas, a record file, or published:NAME",
    )
    parser.add_argument("--anyway", action="store_true", help="go on where the two are not alike, and list how")
    add_verdict_options(parser)
    add_price_options(parser, desc="of A and B, or of each: 2.10/h,3.40/h")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    threshold = parse_threshold(args.threshold)
    if len(args.runs) != 2:
        raise UsageError(f"compare takes two results, A and B, not {len(args.runs)}; join repeats with commas: a,b,c")
    a, b = args.runs
    found = api.compare(
        a,
        b,
        metric=args.metric,
        threshold=threshold,
        anyway=args.anyway,
        store=store.folder,
        price=read_prices(args),
    )
    return show_verdict(found, as_json=args.json, gate=args.gate)
