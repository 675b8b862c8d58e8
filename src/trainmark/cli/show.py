"""`trainmark show`: one run, in brief or in full."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import api, features
from trainmark.analysis.published_lookup import load_published_rows
from trainmark.analysis.quantities import add_cost
from trainmark.cli.group_screen import find_screen, show_screen
from trainmark.cli.options import add_price_options, read_price
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.record import escape
from trainmark.record.errors import UsageError
from trainmark.record.language import _
from trainmark.record.store import Store, default_folder, find_group
from trainmark.view import table
from trainmark.view.describe import describe, describe_briefly

if TYPE_CHECKING:
    from rich.console import Console

    from trainmark.record.record import Record

NAME = "show"
GROUP = "Read"
HELP = "Show one run: table, notes and files; --all for everything known."
EXAMPLES = """\
  trainmark show                          the newest run, or all runs of the command that made it
  trainmark show --all                    all that is known of it
  trainmark show 7d00aa                   by the beginning or the end of its id
  trainmark show results/record.json      from a file
  trainmark show last --markdown          as a table for a page"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run id or a part of it, a group of repeats, a record file, 'last' or 'last-WORKLOAD'",
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    add_price_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="everything: plan, metrics, phases, steps, machine, doubts")
    form.add_argument("--json", action="store_true", help="print the record as it was written")
    form.add_argument("--markdown", action="store_true", help="print the published table of this run as Markdown")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    price = read_price(args)
    screen = open_console()
    try:
        record, path = api.find(args.run, store)
    except UsageError:
        if not (repeats := find_group(args.run or "", store)):
            raise
        _show_group([add_cost(one, price) for one in repeats] if not args.json else repeats, args, screen)
        return 0
    together = find_group(record.group, store) if record.group and not args.run else []
    if len(together) > 1 and not (args.json or args.markdown or args.all):
        if drawn := find_screen(together):
            page = store.folder / "reports" / drawn.PAGE
            show_screen(drawn, together, store, str(page) if page.is_file() else None)
        else:
            _show_group([add_cost(one, price) for one in together], args, screen)
        return 0
    if args.json:  # as it was written, without what a reader's price makes of it
        text = json.dumps(record.to_json(), allow_nan=False) + "\n"
    elif args.markdown:
        text = escape.fit_encoding(table.markdown([add_cost(record, price)]), screen.encoding)
    elif not args.all and record.timeline.steps:  # of a run that never made a step there is no table
        rows = [row for row in load_published_rows(store) if row.workload == record.plan.workload]
        text = describe_briefly(add_cost(record, price), rows, store, path=path, **screen_options(screen))
    else:
        folder = store.runs / record.run_id
        text = describe(
            add_cost(record, price),
            path=path,
            run_folder=folder if folder.is_dir() else None,
            sections=[
                section
                for feature in features.offers("record_facts")
                for section in feature.sections([record], store, _).values()
            ],
            **screen_options(screen),
        )
    screen.file.write(text)
    return 0


def _show_group(records: list[Record], args: argparse.Namespace, screen: Console) -> None:
    """Repeats of one plan in one table."""
    if args.json:
        screen.file.write(json.dumps([record.to_json() for record in records], allow_nan=False) + "\n")
        return
    text = table.markdown(records) if args.markdown else table.render(records, **screen_options(screen))
    screen.file.write(escape.fit_encoding(text, screen.encoding))
    runs = ", ".join(record.run_id for record in records)
    print_status(f"group {records[0].group} of {len(records)} runs: {runs}")
