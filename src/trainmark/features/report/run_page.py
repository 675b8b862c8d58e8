"""Draws the page of runs from their records, and keeps pages in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainmark import __version__, features
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.beside import find_published_rows
from trainmark.analysis.quantities import add_cost
from trainmark.features.report.document import render
from trainmark.features.report.inputs import ReportInputs
from trainmark.features.report.trend import Trend
from trainmark.record.checks import CheckResult
from trainmark.record.language import locale_language, translator
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store
from trainmark.view.files import save_page
from trainmark.view.sections import FactSection


def leave_page(records: Sequence[Record], store: Store, price: Price | None = None) -> Path:
    """Draws the page that a run ends with, and keeps it: its checks need the record alone;
    `report` and `audit` also check its events."""
    checks = {record.run_id: audit_record(record) for record in records}
    page = draw_page(records, store, checks=checks, folders=find_run_folders(records, store), price=price)
    return save_page(f"{records[-1].run_id}.html", page, store)


def draw_page(
    records: Sequence[Record],
    store: Store,
    rows: Sequence[PublishedRow] = (),
    *,
    checks: Mapping[str, tuple[CheckResult, ...]],
    folders: Mapping[str, Path],
    price: Price | None = None,
    language: str | None = None,
    published: bool = False,
    trends: Sequence[Trend] = (),
    facts: Mapping[str, Sequence[FactSection]] | None = None,
) -> str:
    """The page as text; `folders` are the runs' own by their ids."""
    language = language or locale_language()
    return render(
        ReportInputs(
            records=tuple(add_cost(record, price or Price()) for record in records),
            rows=tuple(rows),
            beside=tuple(find_published_rows(records, store.folder)),
            checks=checks,
            folders=folders,
            facts=facts or {},
            trends=tuple(trends),
            samples={} if published else {record.run_id: store.samples / record.run_id for record in records},
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            trainmark=__version__,
            language=language,
        )
    )


def find_run_folders(records: Iterable[Record], store: Store) -> dict[str, Path]:
    return {record.run_id: store.runs / record.run_id for record in records}


def collect_facts(records: Sequence[Record], store: Store, language: str) -> dict[str, list[FactSection]]:
    """By run id, what features know of the runs beside their records."""
    found: dict[str, list[FactSection]] = {}
    for feature in features.offers("record_facts"):
        for run_id, section in feature.sections(records, store, translator(language)).items():
            found.setdefault(run_id, []).append(section)
    return found
