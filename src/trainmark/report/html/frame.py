"""What every page shares: one file with its own style and script, head and foot, a table to sort, a filter."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
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


def page_header(heading: str, facts: Iterable[str], say: Say, *, brand: Child = "trainmark") -> Markup:
    return el(
        "header",
        el(
            "div",
            el("p", brand, class_="brand"),
            el("h1", heading),
            el("p", [el("span", fact) for fact in facts if fact], class_="facts"),
        ),
        el("button", say("Light or dark"), id="theme", type="button"),
    )


def page_footer(trainmark: str, say: Say) -> Markup:
    made = say("Made by trainmark {version} from records; nothing here was typed.").format(version=trainmark)
    return el("footer", el("p", made), el("p", say("What a word means: trainmark explain p_core")))


def sortable_table(
    heads: Sequence[tuple[str, bool]],
    rows: Child,
    *,
    caption: str,
    sorted_by: int | None = None,
    class_: str | None = None,
) -> Markup:
    """The table that the page's script sorts and filters; of each head its name and whether it holds numbers."""
    cells = [
        el(
            "th",
            el("button", name, type="button"),
            scope="col",
            class_="number" if numeric else None,
            aria_sort="descending" if index == sorted_by else "none",
        )
        for index, (name, numeric) in enumerate(heads)
    ]
    title = el("caption", caption, class_="hidden-text")
    table = el("table", title, el("thead", el("tr", cells)), el("tbody", rows), id="summary", class_=class_)
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_labelledby="summary-title")


def filter_bar(chips: Iterable[tuple[str, str, str]], placeholder: str, say: Say) -> Markup:
    """A search field, and a chip for each field, word and what is shown for it."""
    return el(
        "div",
        el("label", say("Filter"), for_="filter", class_="hidden-text"),
        el("input", id="filter", type="search", placeholder=placeholder, autocomplete="off"),
        [
            el("button", shown, type="button", class_="chip", aria_pressed="false", data_field=field, data_word=word)
            for field, word, shown in chips
        ],
        el("span", id="count", aria_live="polite", data_said=say("{shown} of {all} shown")),
        class_="filter",
    )


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
