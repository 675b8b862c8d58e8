"""`trainmark reproduce`: runs an earlier run's plan again on this machine, and compares."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli import compare
from trainmark.cli.terminal import say
from trainmark.spec.errors import NotReadyError, UsageError

if TYPE_CHECKING:
    from trainmark.analysis.subject import Subject
    from trainmark.spec.plan import Plan

HELP = "Run the plan of an earlier run again on this machine, then compare the two."
EXAMPLES = """\
  trainmark reproduce last                         the newest run, once more
  trainmark reproduce a1b2c3 --repeat 5            five times, as one run cannot show what changes between processes
  trainmark reproduce theirs.json --data /data/imagenet
  trainmark reproduce before.json --gate           in CI: exit 6 if slower than before, 7 if it cannot be told

Exit codes are those of 'run' where the run fails, else those of 'compare'."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="run id, its beginning or end, 'last', a group of repeats, or a record file"
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="K", help="run K times (default: once)")
    parser.add_argument("--data", metavar="DIR", help="where the same data lies on this machine (default: as before)")
    compare.add_verdict_words(parser)
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(strict=False)


def run(args: argparse.Namespace) -> int:
    from trainmark.analysis.compare import quantities
    from trainmark.analysis.compare.comparison import compare as held_against
    from trainmark.published.lookup import of_records, subject
    from trainmark.store.store import Store, default_folder

    if args.repeat < 1:
        raise UsageError(f"--repeat must be at least 1, not {args.repeat}")
    threshold = compare.parsed_threshold(args.threshold)
    store = Store(args.store or default_folder())
    original = subject(args.run, store)
    plan = _plan(original, args.data)
    quantities.find(args.metric, (original,))  # a wrong word ends here and not after the run
    store.check_writable()

    from trainmark.cli.run import get_ready, run_all
    from trainmark.spec import site

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as 'run' does: torch warns of hosts without a reverse name
    get_ready([plan], store, quiet=args.quiet)
    records, code = run_all([(plan, None)], store, args, site.load(), None)
    if code:
        return code
    for record in records:
        say(f"record: {store.path(record.run_id)}")
    # the plan was the same: what came out unlike, such as the precision that ran, is told and not refused
    again = of_records("again", records)
    return compare.shown(held_against(original, again, metric=args.metric, threshold=threshold, anyway=True), args)


def _plan(original: Subject, data: str | None) -> Plan:
    """What the original was told, with its files where they lie on this machine."""
    from trainmark.spec.topology import Topology

    if not original.records:
        raise UsageError(f"{original.label} is a published row, which tells no plan; name a run")
    record = original.records[0]
    for each in original.records:
        if each.status != "valid":
            raise UsageError(f"run {each.run_id} is {each.status} ({each.ended}); there is no result to reproduce")
    plan = record.plan
    if Topology.parse(plan.topology).nodes > 1:
        raise UsageError(
            f"run {record.run_id} took {plan.topology}, and reproduce works on one machine; "
            "start it again with 'trainmark run --hosts', then 'trainmark compare'"
        )
    if plan.resume_from is not None:
        raise UsageError(f"run {record.run_id} went on from a checkpoint; reproduce the run it began with")
    if plan.init_from is not None and not Path(plan.init_from).is_file():
        raise NotReadyError(f"run {record.run_id} began with weights from {plan.init_from}, which is not there")
    return replace(plan, data=replace(plan.data, folder=str(_data_folder(plan, data))))


def _data_folder(plan: Plan, given: str | None) -> Path:
    """Where the same data lies here: as given, as on the record, or where this installation makes its own."""
    from trainmark.datasets import synthetic

    folder = Path(given).expanduser().absolute() if given else Path(plan.data.folder)
    if given and synthetic.is_generated(folder, given) != plan.data.generated:
        kind = "generated" if plan.data.generated else "real"
        raise UsageError(f"the run was trained on {kind} data, and {folder} holds the other kind; name a {kind} set")
    if given or folder.is_dir():
        return folder
    own = synthetic.folder(plan.data.name)
    if plan.data.generated and own.name == folder.name:  # another user's copy of what we can make too
        return own
    raise NotReadyError(f"the run's data folder {folder} is not on this machine; name it with --data DIR")
