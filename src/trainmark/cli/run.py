"""`trainmark run`: trains, and ends with the table, the doubts and the path of the record."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.terminal import console, say
from trainmark.cli.words import add_plan_words, plans, spoken

if TYPE_CHECKING:
    from trainmark.results.store import Store
    from trainmark.spec.plan import Plan
    from trainmark.spec.record import Record

HELP = "Train workloads and record how fast, how well and how steadily."
EXAMPLES = """\
  trainmark run                                  all workloads, full-size models, a few minutes
  trainmark run resnet50 --recipe smoke --json   a small network to > 90 %, the record on stdout
  trainmark run tacotron2 --recipe smoke         learns to read made speech; leaves a sample to listen to
  trainmark run vit --recipe smoke               a small transformer to > 60 % in about a minute
  trainmark run resnet50 --recipe quick --precision amp-bf16 --repeat 3
  trainmark run resnet50 --recipe fill --set batch_per_device=128 --steps 200
  trainmark run resnet50 --recipe reference --topology 1x8 --data /data/imagenet
  trainmark run tacotron2 --recipe reference --topology 1x8 --data /data/ljspeech --set target=0.5 --strict
  trainmark run tacotron2 --init-from public.pt  start from published weights
  trainmark run --resume resnet50-reference-1x8  go on from that run's last checkpoint"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_words(parser)
    add = parser.add_argument
    add("--repeat", type=int, default=1, metavar="K", help="run K times and report the spread")
    add("--store", metavar="DIR", help="where records are kept (default: $TRAINMARK_STORE or the user's data folder)")
    add("--resume", metavar="RUN", help="go on with an earlier run from its last checkpoint")
    add("--strict", action="store_true", help="exit 5 if the target is missed or the result is too noisy")
    add("--json", action="store_true", help="one JSON document on stdout: a record, or a list of them")
    add("--quiet", action="store_true", help="no progress, only the result")


def run(args: argparse.Namespace) -> int:
    from trainmark.results import table
    from trainmark.results.store import Store, default_folder
    from trainmark.spec.errors import UsageError

    if args.repeat < 1:
        raise UsageError(f"--repeat must be at least 1, not {args.repeat}")
    store = Store(Path(args.store).expanduser() if args.store else default_folder())
    store.check_writable()
    decided = [_resumed(args, store)] if args.resume else plans(args)
    _get_ready(decided, store, quiet=args.quiet)

    records: list[Record] = []
    code = 0
    for plan in decided:
        group = secrets.token_hex(4) if args.repeat > 1 else None
        for number in range(args.repeat):
            if args.repeat > 1 and not args.quiet:
                say(f"{plan.workload}: run {number + 1} of {args.repeat}")
            record, code = _one(plan, store, group, args)
            records.append(record)
            if code:
                break
        if code:
            break
    if args.json:
        documents = [record.to_json() for record in records]
        json.dump(documents[0] if len(documents) == 1 else documents, sys.stdout, ensure_ascii=False)
        print()
    else:
        out = console()
        sys.stdout.write(
            table.render(records, width=out.width, color=out.is_terminal and not out.no_color, encoding=out.encoding)
        )
        for record in records:
            print(f"record: {store.path(record.run_id)}")
            for artifact in record.artifacts:
                print(f"sample: {store.runs / record.run_id / artifact.file}  {artifact.caption}")
    return code


def _one(plan: Plan, store: Store, group: str | None, args: argparse.Namespace) -> tuple[Record, int]:
    from trainmark import workloads
    from trainmark.cli.progress import Progress
    from trainmark.run import launch

    workload = workloads.load(plan.workload)
    with Progress(plan, workload.item, workload.target.name, quiet=args.quiet) as progress:
        record, code, folder = launch.run(plan, store.folder, group=group, watch=progress.show)
    store.add(record)
    if code:
        say(f"trainmark: {record.ended}")
        say(f"trainmark: what was measured is kept in {folder}")
    elif args.strict:
        code = _strict(record)
    return record, code


def _strict(record: Record) -> int:
    """Under --strict a doubt about the target or the noise makes the result unusable."""
    refused = [doubt.text for doubt in record.doubts if doubt.code in ("target-missed", "few-steps", "drifting")]
    for text in refused:
        say(f"trainmark: not valid under --strict: {text}")
    return 5 if refused else 0


def _resumed(args: argparse.Namespace, store: Store) -> Plan:
    from trainmark.run import planning
    from trainmark.spec.errors import UsageError
    from trainmark.spec.plan import Plan

    if args.workloads:
        raise UsageError("--resume takes the workload of the run it resumes; leave the workload's name out")
    folder = store.run_folder(args.resume)
    plan = Plan.from_json(json.loads((folder / "plan.json").read_text(encoding="utf-8")))
    return planning.resumed(plan, folder, spoken(args))


def _get_ready(decided: list[Plan], store: Store, *, quiet: bool) -> None:
    """Makes the embedded data where it is missing, and looks the machine over before the first run starts."""
    from trainmark.data import embedded
    from trainmark.run import check

    for plan in decided:
        if plan.data.generated and Path(plan.data.folder) == embedded.folder(plan.data.name):
            embedded.ensure(plan.data.name, Path(plan.data.folder), (lambda _: None) if quiet else say)
        check.machine(plan, store.folder)
