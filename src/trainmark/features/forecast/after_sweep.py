"""Renders forecasts as terminal tables: of larger topologies after a sweep, of those requested, and the back-test."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainmark.features.forecast.forecast import Forecast, ForecastRange, TrainingCost, forecast_next_sizes
from trainmark.features.forecast.rates import FORECAST, RateForecast
from trainmark.features.forecast.scaling_law import Backtest, BacktestLine
from trainmark.record.format import NOTHING, number
from trainmark.record.record import Record
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table

NAME, ORDER = "forecast", 2
UNITS_S = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def render(records: Sequence[Record], *, width: int, color: bool, encoding: str) -> str:
    return render_forecasts([forecast_next_sizes(records)], width=width, color=color, encoding=encoding)


class ForecastColumn(NamedTuple):
    """A column of a forecast's table, by the speed and the cost of a size."""

    title: str
    unit: str
    value: Callable[[RateForecast, TrainingCost | None], ForecastRange | None]


def columns(one: Forecast) -> list[ForecastColumn]:
    """Speed, then time, energy and cost where any size has them."""
    costs = [cost for _, cost in one.sizes if cost]
    shown = [ForecastColumn(one.known.metric, one.known.unit, lambda rate, _: _speed(rate))]
    if costs:
        longest_s = max(cost.time_s.value or cost.time_s.low for cost in costs)
        unit, size_s = next((each for each in UNITS_S if longest_s >= each[1]), UNITS_S[-1])
        shown.append(ForecastColumn("time", unit, lambda _, cost: cost.time_s.scale(1 / size_s) if cost else None))
    if any(cost.energy_kwh for cost in costs):
        shown.append(ForecastColumn("energy", "kWh", lambda _, cost: cost.energy_kwh if cost else None))
    if any(cost.cost for cost in costs):
        currency = one.price.currency or ""
        shown.append(ForecastColumn("cost", currency, lambda _, cost: cost.cost if cost else None))
    return shown


def _speed(rate: RateForecast) -> ForecastRange | None:
    return ForecastRange(value=rate.rate, low=rate.interval[0], high=rate.interval[1]) if rate.interval else None


def render_forecasts(
    found: Sequence[Forecast], *, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for index, one in enumerate(found):
        writer.put(*([""] if index else []), writer.text(" · ".join(one.known.subject), "bold"))
        draw_table(writer, _table(one))
        writer.put(one.basis)
        writer.put("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
        if one.notes:
            writer.put("", writer.numbered_list(one.notes))
    return writer.getvalue()


def _table(one: Forecast) -> TableModel:
    shown = columns(one)
    heads = [Column(title=each.title, unit=tuple(each.unit.split())) for each in shown]
    heads.insert(1, Column(title="efficiency"))
    rows = []
    for rate, cost in one.sizes:
        cells = [format_range(each.value(rate, cost)) for each in shown]
        cells.insert(1, (NOTHING if rate.efficiency is None else f"{rate.efficiency:.3f}",))
        name = (str(rate.topology), *(() if rate.kind == FORECAST else (f"({rate.kind})",)))
        rows.append([Cell(pieces=pieces) for pieces in (name, *cells)])
    return TableModel(columns=[Column(title="topology", right=False, label=True), *heads], rows=rows)


def format_range(span: ForecastRange | None) -> tuple[str, ...]:
    """The value and its range, as pieces of a cell."""
    if span is None:
        return (NOTHING,)
    bounds = f"[{number(span.low)}, {number(span.high)}]"
    return (bounds,) if span.value is None else (number(span.value), bounds)


def render_backtest(found: Backtest, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    heads = [
        Column(title="known", right=False, label=True),
        Column(title="times as many devices"),
        Column(title="forecasts"),
        Column(title="error", unit=("median",)),
        Column(title="error", unit=("one in ten", "exceeds")),
        Column(title="inside", unit=("the range",)),
    ]
    rows = [[Cell(pieces=(text,)) for text in _backtest_row(line)] for line in found.lines]
    draw_table(writer, TableModel(columns=heads, rows=rows))
    writer.put(
        f"{found.inside} of {found.count} outcomes were in their 90 % range, {100 * found.coverage:.0f} %. "
        "Every forecast was made without the data of its own submitter (MLPerf) or case (FlagPerf)."
    )
    return writer.getvalue()


def _backtest_row(line: BacktestLine) -> tuple[str, ...]:
    up_to = f"more than {line.beyond:g}" if math.isinf(line.up_to) else f"{line.beyond:g} to {line.up_to:g}"
    return (
        "several sizes" if line.several else "one size",
        up_to,
        str(line.count),
        f"{100 * line.median_error:.1f} %",
        f"{100 * line.worst_decile:.1f} %",
        f"{line.inside} of {line.count}",
    )
