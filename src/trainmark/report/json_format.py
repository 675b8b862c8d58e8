"""The report as one JSON document: the list of records as they were written, published rows behind them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trainmark.spec.published_row import PublishedRow, mfu
from trainmark.spec.record import Record


def render(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    documents = [*(record.to_json() for record in records), *map(_of_published, rows)]
    return json.dumps(documents, allow_nan=False) + "\n"


def _of_published(row: PublishedRow) -> dict[str, Any]:
    """Told apart from a record by its kind; null is what was not published."""
    source = {"source": row.source.title, "date": row.source.date}
    values = {name: value for name, value in asdict(row).items() if name not in ("source", "peak_source")}
    return {"kind": "published row", **values, **source, "mfu": mfu(row)}
