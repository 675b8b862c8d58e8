"""One run as a card for a notebook: the head of the page's section about it, with its style and without script."""

from __future__ import annotations

from importlib.resources import files

from trainmark.analysis.audit_record import audit_record
from trainmark.features.report import curves, header
from trainmark.record.language import locale_language, translator
from trainmark.record.record import Record
from trainmark.view.element import el, mark_raw


def card(record: Record) -> str:
    say = translator(locale_language())
    section = el(
        "section",
        el("h2", header.write_sentence(record, say)),
        header.draw_facts(record, say),
        header.draw_figures(record, say),
        el(
            "div",
            curves.draw_time_spent(record, say),
            header.draw_validity(record, audit_record(record), say),
            class_="pair",
        ),
        class_="run",
    )
    return el("div", el("style", mark_raw(_style())), el("main", section), class_="trainmark-card")


def _style() -> str:
    """The page's style, for the card alone: a notebook has a root and a body of its own."""
    page = files("trainmark.view").joinpath("style.css").read_text(encoding="utf-8")
    own = page.replace(":root", ":scope").replace("\nbody {", "\n:scope {")
    return f"@scope (.trainmark-card) {{\n{own}\n:scope {{ padding: 16px; }}\n}}"
