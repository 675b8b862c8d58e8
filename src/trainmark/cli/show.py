"""`trainmark show`: one run in full."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "Show one run in full: plan, metrics, phases, quality, doubts."
EXAMPLES = """\
  trainmark show                          the newest run
  trainmark show 7d00aa                   by the beginning or the end of its id
  trainmark show results/record.json      from a file
  trainmark show last --markdown          as a table for a page"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="run id, its beginning or end, a record file, or 'last'")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the record as it was written")
    form.add_argument("--markdown", action="store_true", help="print the published table of this run as Markdown")


def run(args: argparse.Namespace) -> int:
    from trainmark import api
    from trainmark.cli.terminal import console, look
    from trainmark.spec import escape
    from trainmark.store.store import Store, default_folder

    store = Store(args.store or default_folder())
    record, path = api.find(args.run, store)
    screen = console()
    if args.json:
        text = json.dumps(record.to_json(), allow_nan=False) + "\n"
    elif args.markdown:
        from trainmark.report.table import markdown

        text = escape.fitted(markdown([record]), screen.encoding)
    else:
        from trainmark.report.describe import describe

        folder = store.runs / record.run_id
        text = describe(record, path=path, run_folder=folder if folder.is_dir() else None, **look(screen))
    screen.file.write(text)
    return 0
