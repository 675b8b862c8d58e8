"""`trainmark import`: the tables of a published page as rows to compare with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmark.published.imported import Kept
    from trainmark.published.page import PublishedPage

HELP = "Read the result tables of published pages into the store, and say what could not be read."
EXAMPLES = """\
  trainmark import README.md                  a page in Markdown, as FlagPerf or DeepSpark publish results
  trainmark import *.md --dry-run             show what would be read, keep nothing
  trainmark import README.md --json           for programs; null is what was not published"""

MOST_BYTES = 8 * 2**20
"""A longer file is no page of results."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="+", type=Path, metavar="FILE.md", help="pages in Markdown")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--dry-run", action="store_true", help="keep nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from datetime import datetime, timezone

    from trainmark.published import imported, read
    from trainmark.spec.errors import UsageError
    from trainmark.store.store import default_folder

    store = args.store or default_folder()
    day = datetime.now(timezone.utc).date().isoformat()
    # every file is looked at before anything is kept
    contents = [(path, _content(path)) for path in args.pages]
    found: list[tuple[Path, PublishedPage, Kept | None]] = []
    for path, content in contents:
        page = read.read(_text(path, content), name=path.name)
        kept = imported.keep(store, page, content=content, day=day) if page.rows and not args.dry_run else None
        found.append((path, page, kept))
    _show(found, as_json=args.json)
    _tell(found)
    if not any(page.rows for _, page, _ in found):
        names = ", ".join(str(path) for path in args.pages)
        raise UsageError(f"no rows of results could be read from {names}; 'trainmark import --help' says what is read")
    return 0


def _content(path: Path) -> bytes:
    from trainmark.spec.errors import UsageError

    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"page {path} cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"page {path} has more than {MOST_BYTES // 2**20} MiB; give a page of results in Markdown")
    return content


def _text(path: Path, content: bytes) -> str:
    from trainmark.spec.errors import UsageError

    for encoding in ("utf-8-sig", "gb18030"):  # the second is what older Chinese pages are written in
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise UsageError(f"page {path} is not text in UTF-8 or GB 18030; give a page in Markdown")


def _show(found: list[tuple[Path, PublishedPage, Kept | None]], *, as_json: bool) -> None:
    from trainmark.cli.terminal import console, look
    from trainmark.report.published_table import render

    screen = console()
    if as_json:
        screen.file.write(json.dumps({"pages": [_document(*entry) for entry in found]}, indent=2) + "\n")
    elif rows := [row for _, page, _ in found for row in page.rows]:
        screen.file.write(render(rows, **look(screen)))


def _document(path: Path, page: PublishedPage, kept: Kept | None) -> dict[str, Any]:
    from dataclasses import asdict

    from trainmark.analysis.peaks import mfu

    return {
        "file": str(path),
        "title": page.title,
        "rows": [{**asdict(row), "mfu": mfu(row)} for row in page.rows],
        "said": [asdict(said) for said in page.said],
        "unread": list(page.unread),
        "kept": str(kept.path) if kept else None,
        "new": kept.new if kept else None,
    }


def _tell(found: list[tuple[Path, PublishedPage, Kept | None]]) -> None:
    """On stderr: what could not be read, and where the rest is kept."""
    from trainmark.cli.terminal import say
    from trainmark.spec import escape

    for path, page, kept in found:
        for sentence in page.unread:
            say(escape.terminal(f"{path}: not read: {sentence}"))
        count = f"{len(page.rows)} row{'' if len(page.rows) == 1 else 's'}"
        if kept and kept.new:
            say(escape.terminal(f"{path}: {count} kept in {kept.path}"))
        elif kept:
            say(escape.terminal(f"{path}: imported before as {kept.path}; nothing was changed"))
