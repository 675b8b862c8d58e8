"""`trainmark report`: runs as one page, or as a table, a list or a build server's tests."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.analysis.language import LANGUAGES
from trainmark.cli.terminal import say

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record
    from trainmark.store.store import Store

HELP = "Make a page of runs to read and share, or Markdown, CSV, JSON, JUnit or a published form."
EXAMPLES = """\
  trainmark report                        a page of the newest 10 runs, in the store
  trainmark report a1b2 c3d4 --html out.html
  trainmark report last published:flagperf-a100-resnet50-1x1 --html out.html
  trainmark report --limit 0 --format csv --out runs.csv
  trainmark report last --publish --html out.html
  trainmark report last --format flagperf --lang zh"""

FORMATS = ("html", "markdown", "csv", "json", "junit", "flagperf", "deepspark")
NEWEST = 10
"""Runs a report shows where none is named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="run ids, groups, record files or published:NAME (default: the newest)")
    add("--html", type=Path, metavar="FILE", help="write the page to FILE")
    add("--format", choices=FORMATS, metavar="FORM", help=f"one of {', '.join(FORMATS)} (default: html)")
    add("--out", type=Path, metavar="FILE", help="write to FILE (default: stdout; a page goes to the store)")
    add("--lang", choices=LANGUAGES, metavar="L", help="en or zh (default: by the locale)")
    add("--publish", action="store_true", help="replace hosts, users, paths and serials, and list what was replaced")
    add("--published", action="store_true", help="put the published rows of the same workloads into the table too")
    add("--limit", type=_count, metavar="N", help=f"the newest N runs, 0 for all (default: {NEWEST})")
    add("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    from trainmark.analysis.language import by_locale
    from trainmark.spec import escape
    from trainmark.store.store import Store, default_folder

    form, out = _asked(args)
    store = Store(args.store or default_folder())
    records, rows = _chosen(args, store)
    if args.published:
        rows = [*rows, *(row for row in _library({r.plan.workload for r in records}, store) if row not in rows)]
    folders = {record.run_id: store.runs / record.run_id for record in records}
    if args.publish:
        records = _published(records)
    language = args.lang or by_locale()
    if form == "html":
        path = out or store.folder / "reports" / f"report-{records[0].run_id if records else 'published'}.html"
        _write(path, _page(records, rows, store, language, folders), store)
        print(escape.terminal(str(path)))
        return 0
    text = _text(form, records, rows, language)
    if out is not None:
        _write(out, text, store)
    else:
        from trainmark.cli.terminal import console

        screen = console()
        screen.file.write(escape.fitted(text, screen.encoding))
    return 0


def leave_page(records: Sequence[Record], store: Store) -> Path | None:
    """Writes the page of these runs into the store; where it cannot, says so and fails nothing."""
    from trainmark.analysis.language import by_locale
    from trainmark.spec import escape

    if not records:
        return None
    path = store.folder / "reports" / f"{records[-1].run_id}.html"
    try:
        folders = {record.run_id: store.runs / record.run_id for record in records}
        _write(path, _page(records, (), store, by_locale(), folders), store)
    except Exception as error:  # the records are on disk: a page that cannot be drawn must not spoil the run
        say(escape.terminal(f"trainmark: the page {path} could not be made: {error}"))
        return None
    return path


def _asked(args: argparse.Namespace) -> tuple[str, Path | None]:
    """The form and the file; words that contradict each other are refused."""
    from trainmark.spec.errors import UsageError

    if args.html is None:
        form: str = args.format or "html"
        out: Path | None = args.out
        return form, out
    if args.format not in (None, "html"):
        raise UsageError(f"--html writes a page, but --format {args.format} was asked for; leave one of them out")
    if args.out is not None:
        raise UsageError(f"--html {args.html} and --out {args.out} both name the page; leave one of them out")
    return "html", args.html


def _chosen(args: argparse.Namespace, store: Store) -> tuple[list[Record], list[PublishedRow]]:
    """The records and published rows meant; without words the newest records."""
    from trainmark.published.lookup import subject
    from trainmark.spec import escape
    from trainmark.spec.errors import UsageError
    from trainmark.store.store import read_record

    if args.runs:
        if args.limit is not None:
            raise UsageError("--limit counts the newest runs, but runs were named; leave one of them out")
        subjects = [subject(word, store) for word in args.runs]
        # one run may be meant by several words
        records = {record.run_id: record for found in subjects for record in found.records}
        rows = dict.fromkeys(found.row for found in subjects if found.row is not None)
        return list(records.values()), list(rows)
    contents = store.contents()
    for damaged in contents.damaged:
        say(escape.terminal(str(damaged)))
    limit = NEWEST if args.limit is None else args.limit
    newest = contents.rows[: limit or None]
    if not newest:
        raise UsageError(f"the store {store.folder} holds no records yet; 'trainmark run' makes one")
    return [read_record(store.path(row.run_id)) for row in newest], []


def _library(workloads: set[str], store: Store) -> list[PublishedRow]:
    """Published rows of some workloads, those that were imported here among them."""
    from trainmark.published.lookup import published_rows

    return [row for row in published_rows(store) if row.workload in workloads]


def _published(records: list[Record]) -> list[Record]:
    from trainmark.report.publish import publishable
    from trainmark.spec import escape

    safe = publishable(records)
    for replaced in safe.replaced:
        say(escape.terminal(f"replaced {replaced}"))
    if safe.dropped:
        say(f"left out {safe.dropped} field{'s' * (safe.dropped > 1)} of which it is not known what may stand there")
    if not safe.replaced:
        say("nothing had to be replaced")
    return list(safe.records)


def _page(
    records: Sequence[Record],
    rows: Sequence[PublishedRow],
    store: Store,
    language: str,
    folders: dict[str, Path],
) -> str:
    from datetime import datetime, timezone

    from trainmark import __version__
    from trainmark.analysis.audit.records import audit_record
    from trainmark.report.html.document import render
    from trainmark.report.html.inputs import Contents

    return render(
        Contents(
            records=tuple(records),
            rows=tuple(rows),
            beside=tuple(_library({record.plan.workload for record in records}, store)),
            checks={record.run_id: audit_record(record) for record in records},
            folders=folders,
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            trainmark=__version__,
            language=language,
        )
    )


def _text(form: str, records: Sequence[Record], rows: Sequence[PublishedRow], language: str) -> str:
    from trainmark.report import csv_format, json_format, junit_format, markdown_format

    with_rows = {"markdown": markdown_format.render, "csv": csv_format.render, "json": json_format.render}
    if form in with_rows:
        return with_rows[form](records, rows)
    if rows:
        say(f"{len(rows)} published rows are left out: {form} is about runs")
    if form == "junit":
        from trainmark.analysis.audit.records import audit_record

        return junit_format.render(records, audit_record)
    from trainmark.published import write_deepspark, write_flagperf

    return (
        write_flagperf.write(records, lang=language)
        if form == "flagperf"
        else write_deepspark.write(records, lang=language)
    )


def _write(path: Path, text: str, store: Store) -> None:
    from trainmark.spec.errors import NotReadyError, UsageError
    from trainmark.spec.whole_files import write_whole

    if path.expanduser().resolve().parent == store.records.resolve():
        raise UsageError(f"{path} lies among the records, which are never replaced; choose another folder")
    try:
        write_whole(path.expanduser(), text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise NotReadyError(
            f"{path} could not be written: {error.strerror}; choose another place with --out"
        ) from error


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; try {NEWEST}")
    return int(text)
