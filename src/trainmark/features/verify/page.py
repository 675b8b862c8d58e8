"""Draws the page of a verify held against another: the verdict, the losses of both, and where they part."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark import __version__
from trainmark.features.verify import screen as verify_screen
from trainmark.features.verify.parity import LEFT_OUT_STEPS, Parity
from trainmark.record.format import number
from trainmark.record.language import Say, translator
from trainmark.record.verify import VerifyDocument
from trainmark.view import chart
from trainmark.view.chart import Point
from trainmark.view.element import Markup, el
from trainmark.view.frame import build_page, page_footer, page_header


def render(document: VerifyDocument, parity: Parity, *, language: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    title = say("{workload}: two chips, the same steps").format(workload=str(document.plan.get("workload", "")))
    lines = [document.sentence, *verify_screen.notes(document)]
    body = [
        page_header(title, (), say),
        el(
            "main",
            el(
                "section",
                el("h2", parity.sentence),
                el("p", [el("span", name) for name in (parity.own, parity.other)], class_="facts"),
                el("div", _losses(parity, say), class_="charts"),
                el("ul", [el("li", line) for line in lines]),
                class_="run",
            ),
        ),
        page_footer(__version__, say),
    ]
    return build_page(f"{title} · trainmark", body, language=language, trainmark=__version__)


def _losses(parity: Parity, say: Say) -> Markup | None:
    own, other = _points(parity.own_loss), _points(parity.other_loss)
    if not own or not other:
        return None
    steps = max(len(parity.own_loss), len(parity.other_loss))
    bands = []
    if steps > LEFT_OUT_STEPS:
        bands.append(chart.Band(name=say("left out by the rule of 2 %"), start=0.5, end=LEFT_OUT_STEPS + 0.5))
    rules = []
    vertical = chart.linear_axis([value for _, value in (*own, *other)])
    if parity.first is not None:
        at = float(parity.first.step)
        rules.append(chart.Rule(name=say("where they part"), points=((at, vertical.low), (at, vertical.high))))
    said = say("From {first} to {last}.").format(first=number(own[0][1], 4), last=number(own[-1][1], 4))
    rows = [
        [f"{step}", *("-" if value is None else number(value, 6) for value in values)]
        for step, *values in zip(range(1, steps + 1), parity.own_loss, parity.other_loss, strict=True)
    ]
    return chart.draw_chart(
        say("Training loss"),
        said,
        say,
        x=chart.exact_axis(0, steps + 1),
        y=vertical,
        x_name=say("step"),
        y_name=say("mean over all ranks"),
        y_unit="",
        lines=[
            chart.Line(name=parity.other, points=other, color=0),
            chart.Line(name=parity.own, points=own, color=3),
        ],
        bands=bands,
        rules=rules,
        heads=[say("step"), parity.own, parity.other],
        rows=rows,
        counts_x=True,
        size=(980, 300),
    )


def _points(losses: Sequence[float | None]) -> list[Point]:
    return [(step, value) for step, value in enumerate(losses, 1) if value is not None]
