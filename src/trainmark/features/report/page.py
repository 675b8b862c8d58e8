"""Draws the page of runs from their records, and keeps pages in the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import __version__
from trainmark.analysis.beside import rows_beside
from trainmark.analysis.priced import priced
from trainmark.analysis.record_checks import check_record
from trainmark.features.report.document import render
from trainmark.features.report.inputs import DrawForecast, ReportInputs
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError
from trainmark.record.language import by_locale
from trainmark.record.price import Price
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.store import Store
from trainmark.record.whole_files import write_whole

if TYPE_CHECKING:
    from trainmark.features.forecast.outcome import ForecastOutcome
    from trainmark.features.report.trend import Trend


def leave_page(records: Sequence[Record], store: Store, price: Price | None = None) -> Path:
    """Draws the page that a run ends with, and keeps it: its checks are those a record alone allows, and cost nothing;
    `report` and `audit` hold it against its events."""
    checks = {record.run_id: check_record(record) for record in records}
    page = draw_page(records, store, checks=checks, folders=run_folders(records, store), price=price)
    return keep_page(f"{records[-1].run_id}.html", page, store)


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
    outcomes: Mapping[str, ForecastOutcome] | None = None,
    draw_forecast: DrawForecast | None = None,
    trends: Sequence[Trend] = (),
) -> str:
    """The page as text; `folders` are the runs' own by their ids."""
    return render(
        ReportInputs(
            records=tuple(priced(record, price or Price()) for record in records),
            rows=tuple(rows),
            beside=tuple(rows_beside(records, store.folder)),
            checks=checks,
            folders=folders,
            outcomes=outcomes or {},
            draw_forecast=draw_forecast,
            trends=tuple(trends),
            samples={} if published else {record.run_id: store.samples / record.run_id for record in records},
            made=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            trainmark=__version__,
            language=language or by_locale(),
        )
    )


def keep_page(name: str, page: str, store: Store) -> Path:
    """Writes a page into the store."""
    path = store.folder / "reports" / name
    try:
        write_whole(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise NotReadyError(f"{path} could not be written: {error.strerror}; name a file with --html") from error
    return path


def run_folders(records: Iterable[Record], store: Store) -> dict[str, Path]:
    return {record.run_id: store.runs / record.run_id for record in records}
