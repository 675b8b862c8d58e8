"""Forecasts larger topologies from the runs of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.features.forecast import table
from trainmark.features.forecast.forecast import Assumptions, forecast_next_sizes
from trainmark.record import site
from trainmark.record.record import Record

NAME, ORDER = "forecast", 2


def render(records: Sequence[Record], *, width: int, color: bool, encoding: str) -> str:
    found = forecast_next_sizes(records, Assumptions(price=site.load().price))
    return table.render([found], width=width, color=color, encoding=encoding)
