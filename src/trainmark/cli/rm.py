"""`trainmark rm`: takes runs out of the store, with everything they left."""

from __future__ import annotations

import argparse

from trainmark.cli.removing import add_removal_options, carry_out, may_go_on

NAME = "rm"
HELP = "Remove runs from the store: records, events, checkpoints, samples and pages."
EXAMPLES = """\
  trainmark rm a1b2c3 --dry-run           what would go, and how many bytes
  trainmark rm a1b2c3 5a8c9d0e            a run, and all runs of a group"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run ids or parts of them, or groups")
    add_removal_options(parser)


def run(args: argparse.Namespace) -> int:
    from trainmark.spec.errors import UsageError
    from trainmark.store import removal
    from trainmark.store.store import Store, default_folder

    store = Store(args.store or default_folder())
    run_ids = dict.fromkeys(run_id for word in args.runs for run_id in store.named(word))
    if going := [run_id for run_id in run_ids if may_go_on(store, run_id)]:
        raise UsageError(f"run {going[0]} still goes on, and nothing was removed; end it first, or leave it out")
    carry_out([removal.of_run(store, run_id) for run_id in run_ids], store.folder, dry_run=args.dry_run)
    return 0
