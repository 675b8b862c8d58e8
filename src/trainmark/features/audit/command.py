"""`trainmark audit`: checks results for contradictions with themselves and with what is known."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmark import features
from trainmark.analysis.audit_record import audit_document
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.record.audit import Audit, is_wrong, to_json
from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.foreign_files import MAX_RECORD_BYTES, read_plain
from trainmark.record.record import list_repeats, parse
from trainmark.record.store import Store, default_folder, find_group, series_reader
from trainmark.view.audit_screen import render

NAME = "audit"
GROUP = "Judge"
HELP = "Find what is impossible in runs, published pages and MLPerf logs."
EXAMPLES = """\
  trainmark audit                         the newest run, gathered anew from its events
  trainmark audit 7d00aa record.json      runs by id, and record files
  trainmark audit README.md               a published page; a folder of pages, or - for standard input
  trainmark audit published:vit --all     published rows, with what passed and what could not be checked
  trainmark audit results/SYSTEM/resnet   MLPerf Training: one log, a benchmark's folder, or a whole submission
  trainmark audit runs/ID                 the run of a folder

exit code: 5 if something is impossible ('wrong'), 2 if there was nothing to check, else 0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="RUN|FILE.md|LOG|FOLDER|-",
        help="run ids, groups, record files, Markdown pages, MLPerf result logs and folders of them, - for a page on "
        "standard input, run folders, 'published', "
        "'published:NAME' or 'published:WORKLOAD' (default: the newest run)",
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--all", action="store_true", help="also list what passed and what could not be checked")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    audits = [audit for word in args.what or ["last"] for audit in _audit_word(word, store)]
    screen = open_console()
    if args.json:
        screen.file.write(json.dumps(to_json(audits), indent=2, allow_nan=False) + "\n")
    else:
        screen.file.write(render(audits, everything=args.all, **screen_options(screen)))
    for title in (empty := [audit.title for audit in audits if audit.empty]):
        print_status(f"{title}: nothing to check; this is not a pass")
    return 5 if is_wrong(audits) else 2 if empty else 0


def _audit_word(word: str, store: Store) -> Iterator[Audit]:
    """A source that a feature recognises, else a run or its folder."""
    path = Path(word)
    folder = path.absolute()  # of a run, in a store
    if path.is_dir() and (file := folder.parent.parent / "records" / f"{folder.name}.json").is_file():
        yield from _audit_record(file)
        return
    for feature in features.offers("audit_source"):
        if feature.recognises(word):
            yield from feature.audits(word, store)
            return
    try:
        file = store.find(None if word == "last" else word)
    except UsageError:
        if not (repeats := find_group(word, store)):
            raise
        for record in repeats:
            yield from _audit_record(store.path(record.run_id))
    else:
        yield from _audit_record(file)


def _audit_record(file: Path) -> Iterator[Audit]:
    """A record file, and the events it was made of where they are still there."""
    folder = file.absolute().parent.parent / "runs" / file.stem
    has_events = file.absolute().parent.name == "records" and any(folder.glob("rank*.jsonl"))
    for document in _read_documents(file):
        checks = audit_document(document, file.name, folder if has_events else None, series_reader(file))
        yield Audit(title=str(document.get("run_id") or file.name), checks=checks)


def _read_documents(file: Path) -> list[dict[str, Any]]:
    """A record, or a list of them as `run --json` and `report --format json` write it."""
    try:
        content = read_plain(file, MAX_RECORD_BYTES)
        document = list_repeats(parse(content))
    except OSError as error:
        raise UsageError(f"record file {file} cannot be read: {error.strerror}") from error
    except TrainmarkError as error:
        if not content.lstrip().startswith((b"{", b"[")):
            known = "a record, a page in Markdown and a log of MLPerf are known"
            raise UsageError(f"file {file} is of no known kind, and nothing was checked; {known}") from error
        raise UsageError(f"record file {file} is damaged: {error}") from error
    documents = document if isinstance(document, list) else [document]
    if not documents or not all(isinstance(entry, dict) for entry in documents):
        raise UsageError(f"record file {file} is damaged: its JSON is neither a record nor a list of records")
    return documents
