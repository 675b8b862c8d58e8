"""Renders the page of forecasts: a table of all sizes, one chart per training, and their basis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainmark.features.forecast import rates
from trainmark.features.forecast.cost import TrainingCost
from trainmark.features.forecast.forecast import Forecast, forecast_next_sizes
from trainmark.features.forecast.rates import RateForecast
from trainmark.features.forecast.table import ForecastFigure, figures
from trainmark.record.errors import UsageError
from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say, translator
from trainmark.record.numbers import Bounds, around
from trainmark.record.record import Record
from trainmark.view import chart
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import build_page, number_cell, page_footer, page_header, sortable_table
from trainmark.workloads import title as workload_title

_WIDE = (1000, 300)


def render(found: Sequence[Forecast], *, language: str, made: str, trainmark: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    sizes = ", ".join(dict.fromkeys(str(rate.topology) for one in found for rate, _ in one.sizes))
    title = say("Forecast of {sizes}").format(sizes=sizes)
    subjects = [" · ".join(one.known.subject) for one in found[:4]]
    charts = [chart for one in found if (chart := draw_chart(one, say, wide=len(found) == 1))]
    drawn = el("section", el("h2", say("By size")), el("div", charts, class_="charts"), class_="growth")
    body = [
        page_header(title, [*subjects, say("made {date}").format(date=made)], say),
        el(
            "main",
            _table(found, say),
            drawn if charts else None,
            el("section", el("h2", say("What it rests on")), [_basis(one, say) for one in found], class_="run"),
        ),
        page_footer(trainmark, say),
    ]
    return build_page(f"{title} · trainmark", body, language=language, trainmark=trainmark)


def _table(found: Sequence[Forecast], say: Say) -> Markup:
    speed, *rest = figures(found[0], *found[0].sizes[0], found)
    heads = [
        (say("topology"), False),
        *([(say("Workload"), False)] if len(found) > 1 else []),
        (f"{speed.title}, {speed.title_unit}", True),
        (say("efficiency"), True),
        *((_head(figure, say), True) for figure in rest),
    ]
    rows = [el("tr", [*_row(one, rate, cost, found, say)]) for one in found for rate, cost in one.sizes]
    return el(
        "section",
        el("h2", say("Every size, with its 90 % range"), id="summary-title"),
        sortable_table(heads, rows, kind="sizes"),
        class_="summary",
    )


def _head(figure: ForecastFigure, say: Say) -> str:
    words = {"time": say("time"), "energy": say("energy, kWh"), "cost": say("cost")}
    unit = f", {figure.title_unit}" if figure.title == "cost" and figure.title_unit else ""
    return words[figure.title] + unit


def _row(
    one: Forecast, rate: RateForecast, cost: TrainingCost | None, found: Sequence[Forecast], say: Say
) -> Iterator[Markup]:
    kind = el("small", kind_word(rate.kind, say))
    yield el("th", str(rate.topology), kind, scope="row", data_key=f"{rate.topology.devices:08}")
    if len(found) > 1:
        yield el("td", one.known.subject[0], el("small", " · ".join(one.known.subject[1:])))
    speed, *rest = figures(one, rate, cost, found)
    yield _cell(speed, say, main=True)
    yield number_cell(NOTHING if rate.efficiency is None else f"{100 * rate.efficiency:.1f} %", rate.efficiency)
    for figure in rest:
        yield _cell(figure, say)


def _cell(figure: ForecastFigure, say: Say, *, main: bool = False) -> Markup:
    span = figure.value
    if span is None:
        return number_cell(NOTHING, None)
    unit = say("days") if figure.unit == "days" else figure.unit
    middle = NOTHING if span.value is None else f"{number(span.value)} {unit}".rstrip()
    ends = f"{format_range((span.low, span.high))} {unit}".rstrip()
    return number_cell([middle, el("small", ends)], figure.sort_key, "number main" if main else "number")


def _basis(one: Forecast, say: Say) -> list[Child]:
    held = say("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
    return [
        el("p", f"{one.basis} {held}", class_="note"),
        el("ul", [el("li", note) for note in one.notes], class_="doubts") if one.notes else None,
    ]


def draw_next_sizes(records: Sequence[Record], say: Say) -> Markup | None:
    """Charts the next sizes; None where the runs allow no forecast."""
    try:
        return draw_chart(forecast_next_sizes(records), say)
    except UsageError:
        return None


def draw_chart(found: Forecast, say: Say, *, wide: bool = False) -> Markup | None:
    """Charts the rate per device, so that the ideal is level; None where nothing is forecast."""
    expected = sorted(
        ((rate, rate.interval) for rate, _ in found.sizes if rate.interval and rate.kind != rates.MEASURED),
        key=lambda pair: pair[0].topology.devices,
    )
    if not expected:
        return None
    known = found.known
    measured = [(float(size.topology.devices), size.rate / size.topology.devices) for size in known.sizes]
    spread = [around(rate, 2 * size.error) for (_, rate), size in zip(measured, known.sizes, strict=True)]
    area = [_start(measured, expected), *(_ends(rate, interval) for rate, interval in expected)]
    devices = [int(count) for count, _ in measured] + [rate.topology.devices for rate, _ in expected]
    ideal = [(float(count), measured[0][1]) for count in (min(devices), max(devices))]
    last, interval = expected[-1]
    said = say("{topology}: {rate} {unit} forecast, nine of ten outcomes between {low} and {high}.").format(
        topology=last.topology,
        rate=NOTHING if last.rate is None else number(last.rate),
        unit=known.unit,
        low=number(interval[0]),
        high=number(interval[1]),
    )
    notes: list[Child] = [said, " ", el("span", found.basis)]
    return chart.draw_chart(
        say("Forecast: {subject}").format(subject=workload_title(known.subject[0])),
        said,
        say,
        x=replace(chart.doubling_axis(devices), high=max(devices) * 1.7),  # the last point's label stands behind it
        y=chart.linear_axis([value for _, *ends in area for value in ends] + [end for pair in spread for end in pair]),
        x_name=say("devices"),
        y_name=say("{metric} of one device, {unit}").format(metric=known.metric, unit=known.unit),
        y_unit=known.unit,
        areas=[chart.Area(name=say("90 % range"), ends=area, color=1)],
        lines=[
            chart.Line(name=say("ideal"), points=ideal, color=5),
            *_middle(measured, expected, say),
            chart.Line(name=say("measured"), points=measured, dots=True, spread=spread),
        ],
        heads=[
            say("topology"),
            say("devices"),
            known.metric,
            say("90 % range"),
            say("efficiency"),
            say("kind"),
        ],
        rows=[_chart_row(rate, say) for rate, _ in found.sizes],
        note=notes,
        counts_x=True,
        size=_WIDE if wide else chart.SIZE,
    )


def _ends(rate: RateForecast, interval: Bounds) -> tuple[float, float, float]:
    devices = rate.topology.devices
    return float(devices), interval[0] / devices, interval[1] / devices


def _start(
    measured: Sequence[tuple[float, float]], expected: Sequence[tuple[RateForecast, Bounds]]
) -> tuple[float, float, float]:
    """The range opens at the largest size that was measured below it."""
    first = expected[0][0].topology.devices
    count, value = max((point for point in measured if point[0] <= first), default=measured[0])
    return count, value, value


def _middle(
    measured: Sequence[tuple[float, float]], expected: Sequence[tuple[RateForecast, Bounds]], say: Say
) -> list[chart.Line]:
    """The line of forecasts, with their efficiency; none where only a range is known."""
    known = [
        (float(rate.topology.devices), rate.rate / rate.topology.devices, rate.efficiency)
        for rate, _ in expected
        if rate.rate is not None
    ]
    if not known:
        return []
    count, value, _ = _start(measured, expected)
    shares = ["" if kept is None else f"{100 * kept:.0f} %" for *_, kept in known]
    points = [(count, value), *((devices, middle) for devices, middle, _ in known)]
    return [chart.Line(name=say("forecast"), points=points, color=1, labels=["", *shares])]


def kind_word(kind: str, say: Say) -> str:
    words = {
        rates.MEASURED: say("measured"),
        rates.FORECAST: say("forecast"),
        rates.ROUGH: say("order of magnitude"),
        rates.RANGE: say("usual range"),
        rates.REFUSED: say("refused"),
    }
    return words.get(kind, kind)


def format_range(interval: Bounds | None) -> str:
    return NOTHING if interval is None else f"{number(interval[0])} – {number(interval[1])}"


def _chart_row(rate: RateForecast, say: Say) -> list[str]:
    return [
        str(rate.topology),
        str(rate.topology.devices),
        NOTHING if rate.rate is None else number(rate.rate),
        format_range(rate.interval),
        NOTHING if rate.efficiency is None else f"{100 * rate.efficiency:.1f} %",
        kind_word(rate.kind, say),
    ]
