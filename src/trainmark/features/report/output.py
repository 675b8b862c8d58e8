"""A report of runs in any of its formats, as text or as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmark import features
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.priced import priced
from trainmark.features.report.run_page import draw_page
from trainmark.features.report.trend import compute_trends
from trainmark.record.checks import CheckResult
from trainmark.record.errors import UsageError, nearest
from trainmark.record.language import by_locale
from trainmark.record.price import Price
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.view import FORMATS


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
        return draw_page(
            records,
            store,
            rows,
            checks=checks,
            folders=folders,
            price=price,
            language=language,
            published=published,
            trends=compute_trends(records) if trend else (),
        )
    from trainmark.features.report import formats

    with_rows = {"markdown": formats.to_markdown, "csv": formats.to_csv, "json": formats.to_json}
    if form in ("markdown", "csv"):
        records = [priced(record, price or Price()) for record in records]
    if form in with_rows:
        return with_rows[form](records, rows)
    if form == "junit":
        return formats.to_junit(records, audited)
    if form == "openmetrics":
        from trainmark.features.report.openmetrics import to_openmetrics

        return to_openmetrics(records)
    for feature in features.offers("report_format"):
        if form in feature.FORMATS:
            return str(feature.FORMATS[form](records, language=language, folders=folders))
    raise UsageError(f"report format {form!r} is not known; {nearest(form, list_formats())}")


def list_formats() -> tuple[str, ...]:
    """Ours, and what other features write."""
    return (*FORMATS, *(name for feature in features.offers("report_format") for name in feature.FORMATS))
