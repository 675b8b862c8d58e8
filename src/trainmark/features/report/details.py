"""Puts the facts of a run into the page: what it was asked, what it found out about itself, where it ran."""

from __future__ import annotations

from trainmark.record.language import Say
from trainmark.record.record import Record
from trainmark.view import chart, facts, profile_facts
from trainmark.view.element import Child, Markup, el
from trainmark.view.sections import FactSection


def draw_precision(record: Record, say: Say) -> Markup | None:
    """What the watched step was really computed in, as a card of its own."""
    section = facts.precision(record, say)
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card") if section else None


def draw_card(section: FactSection) -> Markup:
    """What a feature knows of a run, as a card of its own."""
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card")


def draw_profile(record: Record, say: Say) -> Markup | None:
    """Where a step's time goes, as a card of its own."""
    section = profile_facts.profile(record, say)
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card") if section else None


def draw_folds(record: Record, say: Say) -> list[Markup]:
    """All else, to be opened by who wants to know."""
    found = [
        facts.metrics,
        facts.plan,
        facts.bands,
        facts.data,
        facts.restarts,
        facts.checkpoints,
        facts.network,
        facts.environment,
        facts.unknown,
    ]
    sections = [section for section in (one(record, say) for one in found) if section]
    return [
        el("details", el("summary", _draw_title(section)), _draw_body(section), class_="fold") for section in sections
    ]


def draw_fill(record: Record, say: Say) -> Markup | None:
    """The batches that were tried, as a curve."""
    section, found = facts.fill(record, say), record.environment.fill
    fitting = [entry for entry in found.curve if entry.items_per_s and not entry.unfit] if found else []
    if section is None or not fitting:
        return None
    unit = f"{record.item}/s"
    points = [(entry.batch, entry.items_per_s) for entry in fitting]
    return chart.draw(
        section.title,
        section.sentence,
        say,
        x=chart.doubling([entry.batch for entry in fitting]),
        y=chart.linear([entry.items_per_s for entry in fitting], zero=True),
        x_name=say("batch per device"),
        y_name=unit,
        y_unit=unit,
        lines=[chart.Line(name=unit, points=points, color=4, dots=True)],
        heads=list(section.heads),
        rows=[list(row) for row in section.rows],
        counts_x=True,
    )


def _draw_title(section: FactSection) -> list[Child]:
    return [section.title, el("small", f" {section.remark}") if section.remark else None]


def _draw_body(section: FactSection) -> list[Child]:
    pairs = [(fact.name, fact.value) for fact in section.facts if not fact.local]
    return [
        el("p", section.sentence, class_="note") if section.sentence else None,
        el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="pairs")
        if pairs
        else None,
        _draw_table(section) if section.rows else None,
    ]


def _draw_table(section: FactSection) -> Markup:
    first, *rest = range(len(section.heads))
    rows = [
        el(
            "tr",
            el("th", row[first], scope="row"),
            [el("td", row[place], class_=None if place in section.left else "number") for place in rest],
        )
        for row in section.rows
    ]
    head = el("thead", el("tr", [el("th", head, scope="col") for head in section.heads]))
    return el("div", el("table", head, el("tbody", rows)), class_="scroll")
