"""Renders forecasts as terminal tables: one per training, with intervals and their basis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainmark.features.forecast.cost import ForecastRange, TrainingCost
from trainmark.features.forecast.forecast import Forecast
from trainmark.features.forecast.rates import FORECAST, RateForecast
from trainmark.features.forecast.scaling_law import Backtest, BacktestLine
from trainmark.record.format import NOTHING, number
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table

UNITS_S = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


class ForecastFigure(NamedTuple):
    """A column of a forecast's table, with the value of one size."""

    title: str
    title_unit: str
    value: ForecastRange | None
    unit: str = ""
    """Unit of this value, where the column has none."""
    unit_size: float = 1.0

    @property
    def sort_key(self) -> float | None:
        return (self.value.value or self.value.low) * self.unit_size if self.value else None


def figures(
    one: Forecast, rate: RateForecast, cost: TrainingCost | None, others: Sequence[Forecast]
) -> list[ForecastFigure]:
    """Speed, then time, energy and cost where any size of these forecasts has them."""
    costs = [each for other in others for _, each in other.sizes if each]
    interval = rate.interval
    speed = ForecastRange(value=rate.rate, low=interval[0], high=interval[1]) if interval else None
    found = [ForecastFigure(one.known.metric, one.known.unit, speed)]
    if costs:
        found.append(_time(cost.time_s) if cost else ForecastFigure("time", "", None))
    if any(each.energy_kwh for each in costs):
        found.append(ForecastFigure("energy", "kWh", cost.energy_kwh if cost else None))
    if any(each.cost for each in costs):
        found.append(ForecastFigure("cost", one.assumed.price.currency or "", cost.cost if cost else None))
    return found


def _time(span: ForecastRange) -> ForecastFigure:
    """A time in one unit for value and interval."""
    unit, size_s = next((each for each in UNITS_S if (span.value or span.low) >= each[1]), UNITS_S[-1])
    return ForecastFigure("time", "", span.scale(1 / size_s), unit, size_s)


def render(found: Sequence[Forecast], *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
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
    speed, *rest = figures(one, *one.sizes[0], [one])
    columns = [Column(title=each.title, unit=tuple(each.title_unit.split())) for each in (speed, *rest)]
    columns.insert(1, Column(title="efficiency"))
    return TableModel(
        columns=[Column(title="topology", right=False, label=True), *columns],
        rows=[[Cell(pieces=pieces) for pieces in _row(one, rate, cost)] for rate, cost in one.sizes],
    )


def _row(one: Forecast, rate: RateForecast, cost: TrainingCost | None) -> Iterator[tuple[str, ...]]:
    yield (str(rate.topology), *(() if rate.kind == FORECAST else (f"({rate.kind})",)))
    speed, *rest = (_pieces(figure) for figure in figures(one, rate, cost, [one]))
    yield speed
    yield (NOTHING if rate.efficiency is None else f"{rate.efficiency:.3f}",)
    yield from rest


def _pieces(figure: ForecastFigure) -> tuple[str, ...]:
    if figure.value is None:
        return (NOTHING,)
    bounds = f"[{number(figure.value.low)}, {number(figure.value.high)}] {figure.unit}".rstrip()
    middle = figure.value.value
    return (bounds,) if middle is None else (f"{number(middle)} {figure.unit}".rstrip(), bounds)


def render_backtest(found: Backtest, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    columns = [
        Column(title="known", right=False, label=True),
        Column(title="times as many devices"),
        Column(title="forecasts"),
        Column(title="error", unit=("median",)),
        Column(title="error", unit=("one in ten", "exceeds")),
        Column(title="inside", unit=("the range",)),
    ]
    rows = [[Cell(pieces=(text,)) for text in _backtest_row(line)] for line in found.lines]
    draw_table(writer, TableModel(columns=columns, rows=rows))
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
