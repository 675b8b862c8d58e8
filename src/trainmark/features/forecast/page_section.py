"""Draws forecasts: a page with table, chart and basis of each, and charts of the next sizes on the page of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainmark.analysis.scaling import find_scalings
from trainmark.features.forecast import rates
from trainmark.features.forecast.after_sweep import columns, format_range
from trainmark.features.forecast.forecast import Forecast, forecast_next_sizes
from trainmark.record.errors import UsageError
from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say, translator
from trainmark.record.numbers import around
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.view import chart
from trainmark.view.element import Markup, el
from trainmark.view.frame import build_page, page_footer, page_header, plain_table
from trainmark.workloads import title as workload_title

ORDER = 3


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """One chart per group of runs that differ in topology alone, if they allow a forecast."""
    by_id = {record.run_id: record for record in records}
    charts = []
    for group in find_scalings(records):
        try:
            found = forecast_next_sizes([by_id[run_id] for point in group.points for run_id in point.runs])
        except UsageError:
            continue
        charts.append(_draw_chart(found, say))
    return el("section", el("div", charts, class_="charts"), class_="growth") if any(charts) else None


def render(found: Sequence[Forecast], *, language: str, made: str, trainmark: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    sizes = ", ".join(dict.fromkeys(str(rate.topology) for one in found for rate, _ in one.sizes))
    title = say("Forecast of {sizes}").format(sizes=sizes)
    held = say("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
    parts = [
        el(
            "section",
            el("h2", " · ".join(one.known.subject)),
            plain_table(*_table(one, say)),
            _draw_chart(one, say),
            el("p", f"{one.basis} {held}", class_="note"),
            el("ul", [el("li", note) for note in one.notes], class_="doubts") if one.notes else None,
            class_="run",
        )
        for one in found
    ]
    body = [
        page_header(title, [say("made {date}").format(date=made)], say),
        el("main", parts),
        page_footer(trainmark, say),
    ]
    return build_page(f"{title} · trainmark", body, language=language, trainmark=trainmark)


def _table(one: Forecast, say: Say) -> tuple[list[str], list[list[str]]]:
    """Heads and rows, one for each size with its 90 % ranges."""
    words = {"time": say("time"), "energy": say("energy"), "cost": say("cost"), "days": say("days")}
    kinds = {
        rates.MEASURED: say("measured"),
        rates.FORECAST: say("forecast"),
        rates.ROUGH: say("order of magnitude"),
        rates.RANGE: say("usual range"),
        rates.REFUSED: say("refused"),
    }
    shown = columns(one)
    names = [", ".join(words.get(word, word) for word in (column.title, column.unit) if word) for column in shown]
    rows = [
        [
            str(rate.topology),
            str(rate.topology.devices),
            kinds[rate.kind],
            NOTHING if rate.efficiency is None else f"{100 * rate.efficiency:.1f} %",
            *(" ".join(format_range(column.value(rate, cost))) for column in shown),
        ]
        for rate, cost in one.sizes
    ]
    return [say("topology"), say("devices"), say("kind"), say("efficiency"), *names], rows


def _draw_chart(found: Forecast, say: Say) -> Markup | None:
    """Charts the rate per device, so that the ideal is level; None where nothing is forecast."""
    known = found.known
    expected = sorted(
        ((rate, rate.interval) for rate, _ in found.sizes if rate.interval and rate.kind != rates.MEASURED),
        key=lambda pair: pair[0].topology.devices,
    )
    if not expected:
        return None
    measured = [(float(size.topology.devices), size.rate / size.topology.devices) for size in known.sizes]
    spread = [around(rate, 2 * size.error) for (_, rate), size in zip(measured, known.sizes, strict=True)]
    counts = [rate.topology.devices for rate, _ in expected]
    # range and line open at the largest size that was measured below them
    first, value = max((point for point in measured if point[0] <= counts[0]), default=measured[0])
    area = [(first, value, value)]
    area += [(count, low / count, high / count) for count, (_, (low, high)) in zip(counts, expected, strict=True)]
    middle = [(rate.topology.devices, rate.rate / rate.topology.devices) for rate, _ in expected if rate.rate]
    kept = [f"{100 * rate.efficiency:.0f} %" for rate, _ in expected if rate.efficiency]
    forecasts = chart.Line(name=say("forecast"), points=[(first, value), *middle], color=1, labels=["", *kept])
    devices = [*(size.topology.devices for size in known.sizes), *counts]
    ideal = [(float(count), measured[0][1]) for count in (min(devices), max(devices))]
    last, (low, high) = expected[-1]
    said = say("{topology}: {rate} {unit} forecast, nine of ten outcomes between {low} and {high}.").format(
        topology=last.topology,
        rate=NOTHING if last.rate is None else number(last.rate),
        unit=known.unit,
        low=number(low),
        high=number(high),
    )
    heads, rows = _table(found, say)
    return chart.draw_chart(
        say("Forecast: {subject}").format(subject=workload_title(known.subject[0])),
        said,
        say,
        x=replace(chart.doubling_axis(devices), high=max(devices) * 1.7),  # the last point's label stands behind it
        y=chart.linear_axis([end for _, *ends in area for end in ends] + [end for pair in spread for end in pair]),
        x_name=say("devices"),
        y_name=say("{metric} of one device, {unit}").format(metric=known.metric, unit=known.unit),
        y_unit=known.unit,
        areas={say("90 % range"): area},
        lines=[
            chart.Line(name=say("ideal"), points=ideal, color=5),
            *([forecasts] if middle else []),
            chart.Line(name=say("measured"), points=measured, dots=True, spread=spread),
        ],
        heads=heads,
        rows=rows,
        note=[said, " ", el("span", found.basis)],
        counts_x=True,
    )
