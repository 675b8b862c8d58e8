"""`trainmark report`: writes runs as one HTML page, or in another format."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainmark import workloads
from trainmark.analysis.beside import find_published_rows
from trainmark.analysis.published_lookup import find_subject
from trainmark.cli.options import add_price_options, read_price
from trainmark.cli.terminal import mark_result_saved, open_console, print_status, show
from trainmark.features.report import output
from trainmark.features.report.output import list_formats
from trainmark.features.report.trend import select_trend_rows
from trainmark.record import escape
from trainmark.record.atomic_files import is_stream
from trainmark.record.errors import UsageError
from trainmark.record.index import make_row
from trainmark.record.language import LANGUAGES
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.store import Store, default_folder, read_record
from trainmark.view import NEWEST, TRENDED, WITH_ROWS
from trainmark.view.frame import save_page, write_report
from trainmark.view.publish import make_publishable

NAME = "report"
GROUP = "Read"
HELP = "Make a page of runs, or Markdown, CSV, JSON, JUnit, other forms."
EXAMPLES = """\
  trainmark report                        a page of the newest 10 runs, in the store
  trainmark report --trend resnet50       its plans from run to run, steps marked
  trainmark report a1b2 c3d4 --html out.html
  trainmark report last published:flagperf-a100-resnet50-1x1 --html out.html
  trainmark report --limit 0 --format csv --out runs.csv
  trainmark report --format openmetrics --out /var/lib/node_exporter/trainmark.prom
  trainmark report last --publish --html out.html
  trainmark report last --format flagperf --lang zh
  trainmark report last --format mllog --out result_0.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, known = parser.add_argument, list_formats()
    add("runs", nargs="*", metavar="RUN", help="run ids, groups, record files or published:NAME (default: the newest)")
    add("--html", type=Path, metavar="FILE", help="write the page to FILE")
    add("--format", choices=known, metavar="FORM", help=f"one of {', '.join(known)} (default: html)")
    add("--bom", action="store_true", help="begin CSV with a byte-order mark, for Excel")
    add("--out", type=Path, metavar="FILE", help="write to FILE (default: stdout; a page goes to the store)")
    add("--lang", choices=LANGUAGES, metavar="L", help="en or zh (default: by the locale)")
    add("--publish", action="store_true", help="replace hosts, users, paths and serials, and list what was replaced")
    add("--labels", action="store_true", help="with --publish: keep tags and notes, which are left out otherwise")
    add("--published", action="store_true", help="put the published rows of the same workloads into the table too")
    add(
        "--trend",
        nargs="?",
        const="",
        metavar="RUN|WORKLOAD",
        help="follow the plan of a run, those of a workload, or all, from run to run",
    )
    add(
        "--limit",
        type=_parse_count,
        metavar="N",
        help=f"the newest N runs, 0 for all (default: {NEWEST}, of a trend {TRENDED})",
    )
    add_price_options(parser)
    add("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    form, out = _parse_output(args)
    if args.bom and form != "csv":
        raise UsageError(f"--bom is for --format csv, not for {form}; leave it out")
    if args.labels and not args.publish:
        raise UsageError("--labels is about the copy that --publish makes; elsewhere tags and notes are always kept")
    store = Store(args.store or default_folder())
    if args.trend is None:
        records, rows = _find_records(args.runs, args.limit, store)
    else:
        records, rows = _find_trend_records(args, store), []
    if args.published:
        rows = [*rows, *(row for row in find_published_rows(records, store.folder) if row not in rows)]
    if args.publish:
        records = _make_publishable(records, labels=args.labels)
    if rows and form not in WITH_ROWS:
        print_status(f"{len(rows)} published rows are left out: {form} is about runs")
    text = output.render(
        form,
        records,
        rows,
        store=store,
        language=args.lang,
        published=args.publish,
        trend=args.trend is not None,
        # a price is private: a shared copy has one only if requested
        price=None if args.publish and args.price is None else read_price(args),
    )
    text = f"\ufeff{text}" if args.bom else text
    if out is not None:
        write_report(out, text, store)
    elif form == "html":
        out = save_page(f"report-{records[0].run_id if records else 'published'}.html", text, store)
    if out is None:
        screen = open_console()
        screen.file.write(escape.fit_encoding(text, screen.encoding))
    else:
        mark_result_saved()
        if form == "html" and not is_stream(out):
            show(str(out))
    return 0


def _parse_output(args: argparse.Namespace) -> tuple[str, Path | None]:
    """The form and the file; contradicting options are refused."""
    if args.html is None:
        form: str = args.format or "html"
        out: Path | None = args.out
        return form, out
    if args.format not in (None, "html"):
        raise UsageError(f"--html writes a page, but --format {args.format} was given; leave one of them out")
    if args.out is not None:
        raise UsageError(f"--html {args.html} and --out {args.out} both name the page; leave one of them out")
    return "html", args.html


def _find_records(words: Sequence[str], limit: int | None, store: Store) -> tuple[list[Record], list[PublishedRow]]:
    """The records and published rows named, else the newest records."""
    if words:
        if limit is not None:
            raise UsageError("--limit counts the newest runs, but runs were named; leave one of them out")
        subjects = [find_subject(word, store) for word in words]
        # one run may be meant by several words
        records = {record.run_id: record for found in subjects for record in found.records}
        rows = dict.fromkeys(found.row for found in subjects if found.row is not None)
        return list(records.values()), list(rows)
    contents = store.contents()
    for damaged in contents.damaged:
        print_status(str(damaged))
    newest = contents.rows[: NEWEST if limit is None else limit or None]
    if limit is None and newest and newest[0].group:  # all runs of the newest command
        newest = [row for row in newest if row.group == newest[0].group]
    if not newest:
        raise UsageError(f"the store {store.folder} holds no records yet; 'trainmark run' makes one")
    return [read_record(store.path(row.run_id)) for row in newest], []


def _find_trend_records(args: argparse.Namespace, store: Store) -> list[Record]:
    """The newest runs of the plans to follow."""
    word = args.trend
    if args.runs:
        raise UsageError(f"--trend finds the runs of a plan itself, but {args.runs[0]} was named too; leave one out")
    rows = store.rows()
    if not word or word in {*workloads.names(), *(row.workload for row in rows)}:
        found = select_trend_rows(rows, workload=word or None)
    else:
        meant = find_subject(word, store).records
        if not meant:
            raise UsageError(f"--trend follows runs, and {word} is a published row; name a run or a workload")
        found = select_trend_rows(rows, of=make_row(meant[0]))
    if not found:
        where = f"of {word!r}" if word else f"in the store {store.folder}"
        raise UsageError(f"no plan {where} has two valid runs on one device; a trend takes at least two")
    newest = found[: TRENDED if args.limit is None else args.limit or None]
    return [read_record(store.path(row.run_id)) for row in newest]


def _make_publishable(records: list[Record], *, labels: bool) -> list[Record]:
    safe = make_publishable(records, labels=labels)
    for replaced in safe.replaced:
        print_status(f"replaced {replaced}")
    if safe.dropped:
        print_status(f"left out {safe.dropped} field{'s' * (safe.dropped > 1)} that may hold anything")
    if not safe.replaced:
        print_status("nothing had to be replaced")
    return list(safe.records)


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; try {NEWEST}")
    return int(text)
