"""The page of forecasts: a table of all sizes, one chart per training, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainmark.analysis.forecast.cost import TrainingCost
from trainmark.analysis.forecast.forecast import Forecast
from trainmark.analysis.forecast.rates import RateForecast
from trainmark.report.forecast_table import ForecastFigure, figures
from trainmark.report.html import forecast_chart
from trainmark.report.html.element import Child, Markup, el
from trainmark.report.html.frame import number_cell, page_footer, page_header, sortable_table, whole_page
from trainmark.spec.format import NOTHING, number
from trainmark.spec.language import Say, speaker
from trainmark.spec.retold import retold


def render(found: Sequence[Forecast], *, language: str, made: str, trainmark: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = speaker(language)
    sizes = ", ".join(dict.fromkeys(str(rate.topology) for one in found for rate, _ in one.sizes))
    title = say("Forecast of {sizes}").format(sizes=sizes)
    subjects = [" · ".join(one.known.subject) for one in found[:4]]
    charts = [chart for one in found if (chart := forecast_chart.draw(one, say, wide=len(found) == 1))]
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
    return whole_page(f"{title} · trainmark", body, language=language, trainmark=trainmark)


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
    return sortable_table(say("Every size, with its 90 % range"), heads, rows, class_="sizes")


def _head(figure: ForecastFigure, say: Say) -> str:
    words = {"time": say("time"), "energy": say("energy, kWh"), "cost": say("cost")}
    unit = f", {figure.title_unit}" if figure.title == "cost" and figure.title_unit else ""
    return words[figure.title] + unit


def _row(
    one: Forecast, rate: RateForecast, cost: TrainingCost | None, found: Sequence[Forecast], say: Say
) -> Iterator[Markup]:
    kind = el("small", forecast_chart.kind_word(rate.kind, say))
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
    ends = f"{forecast_chart.shown_range((span.low, span.high))} {unit}".rstrip()
    return number_cell([middle, el("small", ends)], figure.sort_key, main=main)


def _basis(one: Forecast, say: Say) -> list[Child]:
    held = say("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
    return [
        el("p", f"{retold(one.basis, say)} {held}", class_="note"),
        el("ul", [el("li", retold(note, say)) for note in one.notes], class_="doubts") if one.notes else None,
    ]
