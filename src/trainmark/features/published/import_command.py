"""`trainmark import`: the tables of published pages, and the logs of MLPerf, as rows to compare with."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from trainmark.analysis import published_lookup as imported
from trainmark.analysis.peaks import estimate_mfu
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.published.audit import add_findings
from trainmark.features.published.read import find_pages
from trainmark.record.errors import UsageError
from trainmark.record.store import default_folder
from trainmark.view.published_table import render

NAME = "import"
GROUP = "Publish"
HELP = "Read published pages and MLPerf logs into the store."
EXAMPLES = """\
  trainmark import README.md                  a page in Markdown, as FlagPerf or DeepSpark publish results
  trainmark import FlagPerf/training          every page of a folder; what is not of results is named and left out
  curl -s ADDRESS | trainmark import -        a page from standard input
  trainmark import results/SYSTEM/resnet      MLPerf Training: one log, a benchmark's folder, or a whole submission
  trainmark import *.md --dry-run             show what would be read, keep nothing
  trainmark import README.md --json           for programs; null is what was not published"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pages",
        nargs="+",
        metavar="FILE.md|LOG|FOLDER|-",
        help="pages in Markdown, MLPerf result logs, folders of either, or - for a page on standard input",
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    store, day = args.store or default_folder(), datetime.now(timezone.utc).date().isoformat()
    pages = list(find_pages(args.pages))  # every file is read before anything is stored
    documents, notes = [], []
    for name, page, content in ((one.name, one.page, one.content) for one in pages):
        keeps = bool(page.rows) and not args.dry_run
        kept = imported.save_page(store, add_findings(page), content=content, day=day) if keeps else None
        documents.append({
            "file": name,
            "title": page.title,
            "rows": [{**asdict(row), "mfu": estimate_mfu(row)} for row in page.rows],
            "said": [asdict(said) for said in page.said],
            "unread": list(page.unread),
            "kept": str(kept.path) if kept else None,
            "new": kept.new if kept else None,
        })  # fmt: skip
        notes += [f"{name}: not read: {sentence}" for sentence in page.unread]
        if kept and kept.new:
            notes.append(f"{name}: {len(page.rows)} row{'' if len(page.rows) == 1 else 's'} kept in {kept.path}")
        elif kept:
            notes.append(f"{name}: imported before as {kept.path}; nothing was changed")
    screen, rows = open_console(), [row for one in pages for row in one.page.rows]
    if args.json:
        screen.file.write(json.dumps({"pages": documents}, indent=2) + "\n")
    elif rows:
        screen.file.write(render(rows, **screen_options(screen)))
    for sentence in notes:
        print_status(sentence)
    if not rows:
        names = ", ".join(str(word) for word in args.pages)
        raise UsageError(f"no rows of results could be read from {names}; see 'trainmark import --help'")
    return 0
