"""A report of runs in any of its formats, as text or as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainmark import __version__
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.forecast.outcome import outcomes
from trainmark.analysis.priced import priced
from trainmark.analysis.trend import trends
from trainmark.published.lookup import published_rows
from trainmark.report import FORMATS
from trainmark.spec.checks import CheckResult
from trainmark.spec.errors import NotReadyError, UsageError, nearest
from trainmark.spec.language import by_locale
from trainmark.spec.price import Price
from trainmark.spec.published_row import PublishedRow
from trainmark.spec.record import Record
from trainmark.spec.whole_files import write_named, write_whole
from trainmark.store.store import Store


def render(
    form: str,
    records: Sequence[Record],
    rows: Sequence[PublishedRow] = (),
    *,
    store: Store,
    language: str | None = None,
    folders: Mapping[str, Path] | None = None,
    published: bool = False,
    price: Price | None = None,
    trend: bool = False,
) -> str:
    """The report as text; `folders` are the runs' own by their ids, where their artifacts and events lie. Forms for
    people and spreadsheets tell what the runs cost at a `price`; a page with a `trend` draws plans from run to run.

    The records of a `published` copy say other hosts than the events do, and are audited alone.
    """
    language, folders = language or by_locale(), folders or {}

    def audited(record: Record) -> tuple[CheckResult, ...]:
        folder = None if published else folders.get(record.run_id)
        return audit_record(record, folder if folder and folder.is_dir() else None)

    if form == "html":
        checks = {record.run_id: audited(record) for record in records}
        records = [priced(record, price or Price()) for record in records]
        return _page(records, rows, store, language, folders, checks, published=published, trend=trend)
    from trainmark.report import formats

    with_rows = {"markdown": formats.to_markdown, "csv": formats.to_csv, "json": formats.to_json}
    if form in ("markdown", "csv"):
        records = [priced(record, price or Price()) for record in records]
    if form in with_rows:
        return with_rows[form](records, rows)
    if form == "junit":
        return formats.to_junit(records, audited)
    if form == "mllog":
        return _mllog(records, folders)
    from trainmark.published import write_deepspark, write_flagperf

    written = {"flagperf": write_flagperf.write, "deepspark": write_deepspark.write}
    if form not in written:
        raise UsageError(f"report format {form!r} is not known; {nearest(form, FORMATS)}")
    return written[form](records, lang=language)


def _mllog(records: Sequence[Record], folders: Mapping[str, Path]) -> str:
    """A run as the log MLPerf takes; which division it may be in is part of it."""
    from trainmark.published.mlperf.write import divisions, log_text, opened

    if len(records) != 1:
        raise UsageError(
            f"mllog is the log of one run, and {len(records)} are meant; name one, or see 'trainmark package'"
        )
    run = opened(records[0], folders.get(records[0].run_id, Path()))
    return log_text(run, division=divisions([run], None))


def leave_page(records: Sequence[Record], store: Store, price: Price | None = None) -> Path:
    """Draws the page of these runs and keeps it."""
    page = render("html", records, store=store, folders=run_folders(records, store), price=price)
    return keep_page(f"{records[-1].run_id}.html", page, store)


def keep_page(name: str, page: str, store: Store) -> Path:
    """Writes a page into the store."""
    path = store.folder / "reports" / name
    try:
        write_whole(path, _encoded(page))
    except OSError as error:
        raise NotReadyError(f"{path} could not be written: {error.strerror}; name a file with --html") from error
    return path


def write(path: Path, text: str, store: Store) -> None:
    """To the file a user named."""
    if path.expanduser().resolve().parent == store.records.resolve():
        raise UsageError(f"{path} lies among the records, which are never replaced; choose another folder")
    write_named(path, _encoded(text))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def run_folders(records: Iterable[Record], store: Store) -> dict[str, Path]:
    return {record.run_id: store.runs / record.run_id for record in records}


def rows_beside(records: Iterable[Record], store: Store) -> list[PublishedRow]:
    """Published rows of the same workloads, those that were imported here among them."""
    workloads = {record.plan.workload for record in records}
    return [row for row in published_rows(store) if row.workload in workloads]


def _page(
    records: Sequence[Record],
    rows: Sequence[PublishedRow],
    store: Store,
    language: str,
    folders: Mapping[str, Path],
    checks: Mapping[str, tuple[CheckResult, ...]],
    *,
    published: bool,
    trend: bool,
) -> str:
    from trainmark.report.html.document import render as draw
    from trainmark.report.html.inputs import ReportInputs

    return draw(
        ReportInputs(
            records=tuple(records),
            rows=tuple(rows),
            beside=tuple(rows_beside(records, store)),
            checks=checks,
            folders=folders,
            outcomes=outcomes(records, store),
            trends=tuple(trends(records)) if trend else (),
            samples={} if published else {record.run_id: store.samples / record.run_id for record in records},
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            trainmark=__version__,
            language=language,
        )
    )
