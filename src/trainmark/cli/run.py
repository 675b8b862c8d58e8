"""`trainmark run`: trains, then prints one sentence per workload, the table, its notes and the path of the record."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from trainmark import features
from trainmark.analysis.beside import find_published_rows
from trainmark.analysis.comparison import make_repeats_document
from trainmark.analysis.quantities import add_cost
from trainmark.cli.group_screen import find_screen, show_screen
from trainmark.cli.options import add_run_options, options_from_args
from trainmark.cli.progress import show_progress
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, screen_options, show
from trainmark.launch.options import LOCAL, SWEEP
from trainmark.record import site
from trainmark.record.errors import UsageError
from trainmark.record.store import default_folder
from trainmark.view import facts, headline, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.launch.session import Result
    from trainmark.record.record import Record
    from trainmark.record.store import Store


NAME = "run"
GROUP = "Measure"
HELP = "Train workloads and record how fast, how well and how steadily."
EXAMPLES = """\
  trainmark run                                     what this machine reaches, in three minutes
  trainmark run resnet50 --recipe smoke             a small network trained to > 90 %
  trainmark run resnet50 --precision amp-bf16 --set batch_per_device=64 --repeat 3
  trainmark run resnet50 --sweep 1x1,1x2,1x4        how it scales, and a forecast of larger sizes
  trainmark run resnet50 --recipe reference --topology 1x8 --data /data/imagenet
  trainmark run ./my_model.py --recipe smoke        a network of your own"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser, SWEEP, LOCAL)


def run(args: argparse.Namespace) -> int:
    from trainmark.launch import session  # which imports torch

    options = options_from_args(args)
    this_command = [sys.executable, "-m", "trainmark", *sys.argv[1:]]
    result = session.run(options, own_command=this_command, say=print_status, watching=show_progress)
    mark_result_saved()
    for complaint in result.complaints:
        print_status(f"trainmark: {complaint}")
    if args.debug and result.error and result.error.log:
        print_status(result.error.log.read_text(encoding="utf-8", errors="replace"))
    if result.is_leader:
        _print_result(result, session.open_store(options), as_json=args.json, repeated=args.repeat > 1)
        if args.sweep and not args.json:
            show_sweep(result.records)
    return result.exit_code


def show_sweep(records: Sequence[Record]) -> None:
    """What each feature makes of runs of several topologies, or why it makes nothing."""
    screen = open_console()
    for feature in features.offers("after_sweep"):
        try:
            screen.file.write("\n" + feature.render(records, **screen_options(screen)))
        except UsageError as error:
            print_status(f"no {feature.NAME}: {error}")


def _print_result(result: Result, store: Store, *, as_json: bool, repeated: bool = False) -> None:
    # a run without a single step has nothing to show but its error
    records = [record for record in result.records if record.timeline.steps or record.status == "valid"]
    if as_json:
        plain = [record.to_json() for record in result.records]
        document = make_repeats_document(result.records) if repeated else plain[0] if len(plain) == 1 else plain
        json.dump(document, sys.stdout, ensure_ascii=False)
        print()
        if records and (page := _write_page(records, store)):
            print_status(f"page: {page}")
    elif records and (screen := find_screen(records)):
        show_screen(screen, records, store, _write_page(records, store, screen.PAGE))
    elif records:
        price = site.load().price
        headlines = (*headline.write_headlines(records, find_published_rows(records, store.folder)), *result.left_out)
        shape = screen_options(open_console())
        sys.stdout.write(table.render([add_cost(one, price) for one in records], sentences=headlines, **shape))
        for record in records:
            sys.stdout.write(facts.describe_profile(record, run_folder=store.runs / record.run_id, **shape))
            show(f"record: {store.path(record.run_id)}")
            for artifact in record.artifacts:
                show(f"sample: {store.runs / record.run_id / artifact.file}  {artifact.caption}")
        if again := resume_command(records[-1], store):
            show(f"to resume: {again}")
        if page := _write_page(records, store):
            show(f"page: {page}")


def resume_command(record: Record, store: Store) -> str | None:
    """The command that resumes an unfinished run; None where it left no checkpoint."""
    checkpoints = store.runs / record.run_id / "checkpoints"
    if record.status != "incomplete" or not checkpoints.is_dir() or not any(checkpoints.iterdir()):
        return None
    elsewhere = [] if store.folder == default_folder() else ["--store", str(store.folder)]
    return shlex.join(["trainmark", "run", "--resume", record.run_id.rpartition("-")[2], *elsewhere])


def _write_page(records: Sequence[Record], store: Store, name: str | None = None) -> str | None:
    """The path of the page of these runs; a failure to write it is printed and fails nothing."""
    try:
        for feature in features.offers("run_page"):
            return str(feature.leave_page(records, store, site.load().price, name))
        return None
    except Exception as error:  # the records are on disk: a broken page must not fail the run
        print_status(f"trainmark: the page of these runs could not be made: {error}")
        return None
