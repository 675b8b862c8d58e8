"""A whole page around its body: one file with its own style and script, which a browser may load nothing beside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from trainmark.report.html.element import Child, Markup, el, raw
from trainmark.spec.language import Say

STYLE = ("trainmark.report.html", "style.css")
SCRIPT = ("trainmark.report.html", "page.js")


def whole_page(
    title: str,
    body: Child,
    *,
    language: str,
    trainmark: str,
    styles: tuple[tuple[str, str], ...] = (STYLE,),
    class_: str | None = None,
) -> str:
    """The page as text, to be written as UTF-8; `styles` are style sheets by package and name, one after the other."""
    style = "".join(_asset(*one) for one in styles)
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=_policy(style)),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="generator", content=f"trainmark {trainmark}"),
        el("title", title),
        el("style", raw(style)),
    )
    tip = el("div", id="tip", role="status", aria_live="polite", hidden=True)
    whole = el("body", body, tip, el("script", raw(_asset(*SCRIPT))), class_=class_)
    return "<!doctype html>\n" + el("html", head, whole, lang="zh-CN" if language == "zh" else "en") + "\n"


def page_header(title: str, facts: Sequence[str], say: Say) -> Markup:
    return el(
        "header",
        el(
            "div",
            el("p", "trainmark", class_="brand"),
            el("h1", title),
            el("p", [el("span", fact) for fact in facts if fact], class_="facts"),
        ),
        el("button", say("Light or dark"), id="theme", type="button"),
    )


def page_footer(trainmark: str, say: Say, *further: str) -> Markup:
    made = say("Made by trainmark {version} from records; nothing here was typed.").format(version=trainmark)
    return el("footer", [el("p", line) for line in (made, *further)])


def sortable_table(title: str, heads: Sequence[tuple[str, bool]], rows: Sequence[Child], *, class_: str = "") -> Markup:
    """The page's summary, sorted by a press on a head; heads are names and whether the column holds numbers."""
    head = [
        el("th", el("button", name, type="button"), scope="col", class_="number" if numeric else None, aria_sort="none")
        for name, numeric in heads
    ]
    table = el("table", el("thead", el("tr", head)), el("tbody", rows), id="summary", class_=class_ or None)
    return el(
        "section",
        el("h2", title, id="summary-title"),
        el("div", table, class_="scroll", tabindex=0, role="region", aria_labelledby="summary-title"),
        class_="summary",
    )


def number_cell(shown: Child, key: float | None, *, main: bool = False) -> Markup:
    """A cell of a sortable table, with the number it is sorted by."""
    return el("td", shown, class_="number main" if main else "number", data_key=None if key is None else f"{key:.9g}")


@cache
def _policy(style: str) -> str:
    """Nothing from outside, and no style or script but our own, known by their hashes."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(_asset(*SCRIPT))}; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def _asset(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
