"""`trainmark reproduce`: runs an earlier run's plan again on this machine, and compares."""

from __future__ import annotations

import argparse

from trainmark import api
from trainmark.analysis import quantities
from trainmark.cli.progress import show_progress
from trainmark.cli.terminal import print_status
from trainmark.cli.verdict import add_verdict_options, parse_threshold, show_verdict
from trainmark.features.reproduce import rebuild
from trainmark.launch import session
from trainmark.launch.options import RunOptions
from trainmark.record.store import find_runs

NAME = "reproduce"
GROUP = "Judge"
HELP = "Run the plan of an earlier run again, then compare the two."
EXAMPLES = """\
  trainmark reproduce last                         the newest run, once more
  trainmark reproduce a1b2c3 --repeat 5            five times, as one run cannot show what changes between processes
  trainmark reproduce theirs.json --data /data/imagenet
  trainmark reproduce before.json --gate           in CI: exit 6 if slower than before, 7 if inconclusive

Exit codes are those of 'run' where the run fails, else those of 'compare'."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        help="run id, its beginning or end, 'last', 'last-WORKLOAD', a group of repeats, or a record file",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="K", help="run K times (default: once)")
    parser.add_argument("--data", metavar="DIR", help="where the same data lies on this machine (default: as before)")
    parser.add_argument("--platform", metavar="NAME", help="a platform's name, or a .toml file (default: as before)")
    parser.add_argument(
        "--trust", action="store_true", help="run the platform's or workload's file that the record names"
    )
    add_verdict_options(parser)
    parser.add_argument("--store", metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def run(args: argparse.Namespace) -> int:
    options = RunOptions(repeat=args.repeat, store=args.store, quiet=args.quiet)
    threshold = parse_threshold(args.threshold)
    store = session.open_store(options)
    original = find_runs(args.run, store)
    plan = rebuild.rebuild_plan(original.records, args.data, platform=args.platform, trust=args.trust)
    quantities.find_compared(args.metric, (original,))  # a wrong word ends here and not after the run
    result = session.run_plan(plan, options, say=print_status, watching=show_progress)
    for complaint in result.complaints:
        print_status(f"trainmark: {complaint}")
    if result.exit_code:
        return result.exit_code
    for record in result.records:
        print_status(f"record: {store.path(record.run_id)}")
    # the plan was the same: differences, such as the precision that ran, are listed and not refused
    found = api.compare(original, result.records, metric=args.metric, threshold=threshold, anyway=True)
    return show_verdict(found, as_json=args.json, gate=args.gate)
