"""Draws forecasts: one table a training, with the interval of every number and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainmark.analysis.forecast.backtest import Backtest, BacktestLine
from trainmark.analysis.forecast.rates import FORECAST, RateForecast
from trainmark.analysis.forecast.until import ForecastRange, WholeTraining
from trainmark.analysis.forecast.whole import WholeForecast
from trainmark.report.terminal import Cell, Column, TableModel, TerminalWriter, draw
from trainmark.spec.format import NOTHING, number

TIMES = "times as many devices"
UNITS_S = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def render(found: Sequence[WholeForecast], *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for index, one in enumerate(found):
        writer.put(*([""] if index else []), writer.text(" · ".join(one.known.subject), "bold"))
        draw(writer, _table(one))
        writer.put(one.basis)
        writer.put("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
        if one.notes:
            writer.put("", writer.numbered(one.notes))
    return writer.drawn()


def _table(one: WholeForecast) -> TableModel:
    outcomes = [outcome for _, outcome in one.sizes if outcome]
    columns = [
        Column(title="topology", right=False, label=True),
        Column(title=one.known.metric, unit=tuple(one.known.unit.split())),
        Column(title="efficiency"),
    ]
    if outcomes:
        columns.append(Column(title="time"))
    if any(outcome.energy_kwh for outcome in outcomes):
        columns.append(Column(title="energy", unit=("kWh",)))
    if any(outcome.cost for outcome in outcomes):
        columns.append(Column(title="cost", unit=(one.assumed.price.currency,) if one.assumed.price.currency else ()))
    titles = [column.title for column in columns]
    return TableModel(
        columns=columns,
        rows=[[Cell(pieces=pieces) for pieces in _row(rate, outcome, titles)] for rate, outcome in one.sizes],
    )


def _row(rate: RateForecast, outcome: WholeTraining | None, titles: Sequence[str]) -> list[tuple[str, ...]]:
    kind = () if rate.kind == FORECAST else (f"({rate.kind})",)
    cells: list[tuple[str, ...]] = [
        (str(rate.topology), *kind),
        _span(ForecastRange(value=rate.rate, low=rate.interval[0], high=rate.interval[1]))
        if rate.interval
        else (NOTHING,),
        (NOTHING if rate.efficiency is None else f"{rate.efficiency:.3f}",),
    ]
    if "time" in titles:
        cells.append(_time(outcome.time_s) if outcome else (NOTHING,))
    if "energy" in titles:
        cells.append(_span(outcome.energy_kwh) if outcome and outcome.energy_kwh else (NOTHING,))
    if "cost" in titles:
        cells.append(_span(outcome.cost) if outcome and outcome.cost else (NOTHING,))
    return cells


def _span(span: ForecastRange) -> tuple[str, ...]:
    bounds = f"[{number(span.low)}, {number(span.high)}]"
    return (bounds,) if span.value is None else (number(span.value), bounds)


def in_one_unit(span: ForecastRange) -> tuple[ForecastRange, str]:
    """Seconds in a unit in which the three can be compared at a glance."""
    unit, size_s = next((each for each in UNITS_S if (span.value or span.low) >= each[1]), UNITS_S[-1])
    middle = None if span.value is None else span.value / size_s
    return ForecastRange(value=middle, low=span.low / size_s, high=span.high / size_s), unit


def _time(span: ForecastRange) -> tuple[str, ...]:
    shown, unit = in_one_unit(span)
    bounds = f"[{number(shown.low)}, {number(shown.high)}] {unit}"
    return (bounds,) if shown.value is None else (f"{number(shown.value)} {unit}", bounds)


def render_backtest(found: Backtest, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    columns = [
        Column(title="known", right=False, label=True),
        Column(title=TIMES),
        Column(title="forecasts"),
        Column(title="error", unit=("median",)),
        Column(title="error", unit=("one in ten", "exceeds")),
        Column(title="inside", unit=("the range",)),
    ]
    draw(
        writer,
        TableModel(columns=columns, rows=[[Cell(pieces=(text,)) for text in _line(line)] for line in found.lines]),
    )
    writer.put(
        f"{found.inside} of {found.count} outcomes lay in their range, {100 * found.coverage:.0f} %; it is for 90 %. "
        "Every forecast was made without the data of its own submitter (MLPerf) or case (FlagPerf)."
    )
    return writer.drawn()


def _line(line: BacktestLine) -> tuple[str, ...]:
    up_to = f"more than {line.beyond:g}" if math.isinf(line.up_to) else f"{line.beyond:g} to {line.up_to:g}"
    return (
        "several sizes" if line.several else "one size",
        up_to,
        str(line.count),
        f"{100 * line.median_error:.1f} %",
        f"{100 * line.worst_decile:.1f} %",
        f"{line.inside} of {line.count}",
    )
