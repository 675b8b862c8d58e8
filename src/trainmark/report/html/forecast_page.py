"""The page of forecasts: a table of all sizes, a chart a training, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.analysis.forecast.rates import RateForecast
from trainmark.analysis.forecast.until import ForecastRange, WholeTraining
from trainmark.analysis.forecast.whole import WholeForecast
from trainmark.report.forecast_table import in_one_unit
from trainmark.report.html import forecast_chart
from trainmark.report.html.element import Child, Markup, el
from trainmark.report.html.frame import whole_page
from trainmark.spec.format import NOTHING, number
from trainmark.spec.language import Say, speaker


def render(found: Sequence[WholeForecast], *, language: str, made: str, trainmark: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = speaker(language)
    sizes = ", ".join(dict.fromkeys(str(rate.topology) for one in found for rate, _ in one.sizes))
    title = say("Forecast of {sizes}").format(sizes=sizes)
    subjects = [" · ".join(one.known.subject) for one in found]
    header = el(
        "header",
        el(
            "div",
            el("p", "trainmark", class_="brand"),
            el("h1", title),
            el(
                "p",
                [el("span", fact) for fact in (*subjects[:4], say("made {date}").format(date=made))],
                class_="facts",
            ),
        ),
        el("button", say("Light or dark"), id="theme", type="button"),
    )
    charts = [chart for one in found if (chart := forecast_chart.draw(one, say, wide=len(found) == 1))]
    body = [
        header,
        el(
            "main",
            _table(found, say),
            el("section", el("h2", say("By size")), el("div", charts, class_="charts"), class_="growth")
            if charts
            else None,
            el("section", el("h2", say("What it rests on")), [_basis(one, say) for one in found], class_="run"),
        ),
        el(
            "footer",
            el("p", say("Made by trainmark {version} from records; nothing here was typed.").format(version=trainmark)),
        ),
    ]
    return whole_page(f"{title} · trainmark", body, language=language, trainmark=trainmark)


def _table(found: Sequence[WholeForecast], say: Say) -> Markup:
    trained = [after for one in found for _, after in one.sizes if after]
    currency = found[0].assumed.price.currency
    heads = [
        (say("topology"), False),
        *([(say("Workload"), False)] if len(found) > 1 else []),
        (f"{found[0].known.metric}, {found[0].known.unit}", True),
        (say("efficiency"), True),
        *([(say("time"), True)] if trained else []),
        *([(say("energy, kWh"), True)] if any(after.energy_kwh for after in trained) else []),
        *([(say("cost") + (f", {currency}" if currency else ""), True)] if any(a.cost for a in trained) else []),
    ]
    rows = [_row(one, rate, after, heads, len(found) > 1, say) for one in found for rate, after in one.sizes]
    head = [
        el("th", el("button", name, type="button"), scope="col", class_="number" if numeric else None, aria_sort="none")
        for name, numeric in heads
    ]
    return el(
        "section",
        el("h2", say("Every size, with its 90 % range"), id="summary-title"),
        el(
            "div",
            el("table", el("thead", el("tr", head)), el("tbody", rows), id="summary", class_="sizes"),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_labelledby="summary-title",
        ),
        class_="summary",
    )


def _row(
    one: WholeForecast,
    rate: RateForecast,
    after: WholeTraining | None,
    heads: Sequence[tuple[str, bool]],
    several: bool,
    say: Say,
) -> Markup:
    speed = ForecastRange(value=rate.rate, low=rate.interval[0], high=rate.interval[1]) if rate.interval else None
    kept = NOTHING if rate.efficiency is None else f"{100 * rate.efficiency:.1f} %"
    cells = [_span(speed, main=True), _cell(kept, key=rate.efficiency)]
    names = [name for name, _ in heads]
    if say("time") in names:
        cells.append(_time(after.time_s if after else None, say))
    if say("energy, kWh") in names:
        cells.append(_span(after.energy_kwh if after else None))
    if any(name.startswith(say("cost")) for name in names):
        cells.append(_span(after.cost if after else None))
    subject = el("td", one.known.subject[0], el("small", " · ".join(one.known.subject[1:]))) if several else None
    kind = el("small", forecast_chart.kind_word(rate.kind, say))
    topology = el("th", str(rate.topology), kind, scope="row", data_key=f"{rate.topology.devices:08}")
    return el("tr", topology, subject, cells)


def _cell(shown: Child, *, key: float | None, main: bool = False) -> Markup:
    return el("td", shown, class_="number main" if main else "number", data_key=None if key is None else f"{key:.9g}")


def _span(span: ForecastRange | None, *, main: bool = False) -> Markup:
    if span is None:
        return _cell(NOTHING, key=None)
    middle = NOTHING if span.value is None else number(span.value)
    ends = el("small", forecast_chart.shown_range((span.low, span.high)))
    return _cell([middle, ends], key=span.value or span.low, main=main)


def _time(span: ForecastRange | None, say: Say) -> Markup:
    if span is None:
        return _cell(NOTHING, key=None)
    shown, unit = in_one_unit(span)
    unit = say("days") if unit == "days" else unit
    middle = NOTHING if shown.value is None else f"{number(shown.value)} {unit}"
    ends = f"{forecast_chart.shown_range((shown.low, shown.high))} {unit}"
    return _cell([middle, el("small", ends)], key=span.value or span.low)


def _basis(one: WholeForecast, say: Say) -> list[Child]:
    held = say("Ranges are to hold nine of ten outcomes; 'trainmark forecast --backtest' shows whether they do.")
    return [
        el("p", f"{one.basis} {held}", class_="note"),
        el("ul", [el("li", note) for note in one.notes], class_="doubts") if one.notes else None,
    ]
