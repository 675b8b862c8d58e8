"""Leads from the end-to-end time to the time p_core divides by, phase by phase, as bars beside their numbers."""

from __future__ import annotations

from trainmark.report.breakdown import TimeStep, rate_word, time_steps, time_word
from trainmark.report.html.bars import Bar, bars
from trainmark.report.html.element import Markup, el
from trainmark.spec.format import number
from trainmark.spec.language import Say
from trainmark.spec.record import Record


def draw(record: Record, say: Say) -> Markup | None:
    found = time_steps(record)
    if not found:
        return None
    table = el(
        "table",
        el("caption", say("As the slowest rank saw it; every step is exact to the nanosecond"), class_="note"),
        el(
            "thead",
            el(
                "tr",
                el("th", say("Phase"), scope="col"),
                el("td", class_="room"),
                el("th", say("Time"), scope="col", class_="number"),
                el("th", say("Share"), scope="col", class_="number"),
            ),
        ),
        el("tbody", [_row(step, found[0].ns or 1, record, say) for step in found]),
        class_="strips waterfall",
    )
    return el("figure", el("figcaption", el("b", say("Where the time went"))), table)


def _row(step: TimeStep, whole: int, record: Record, say: Say) -> Markup:
    bar = Bar(start=step.start_ns / whole, length=step.ns / whole, color=_color(step))
    rate = rate_word(step, record)
    return el(
        "tr",
        el("th", time_word(step, say), el("small", rate) if rate else None, scope="row"),
        el("td", bars([bar]), class_="room"),
        el("td", f"{number(step.ns / 1e9)} s", class_="number"),
        el("td", f"{100 * step.ns / whole:.1f} %", class_="number"),
        class_=None if step.kind == "phase" else step.kind,
        data_ns=step.ns,
        data_kind=step.kind,
        data_name=step.name,
    )


def _color(step: TimeStep) -> int:
    """What is taken off stands out, and so does what is left in the end."""
    if step.kind == "phase":
        return 1
    return {"p_core": 0, "computing": 0, "exchange": 2}.get(step.name, 5)
