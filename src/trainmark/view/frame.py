"""The HTML page around a body, self-contained in one file; the parts all pages share, and where they are written."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from trainmark.record import escape
from trainmark.record.atomic_files import write_atomic, write_user_file
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.language import Say
from trainmark.record.store import Store
from trainmark.view.element import Child, Markup, el, mark_raw

STYLE = ("trainmark.view", "style.css")
SCRIPT = ("trainmark.view", "page.js")


def build_page(
    title: str,
    body: Child,
    *,
    language: str,
    trainmark: str,
    styles: tuple[tuple[str, str], ...] = (STYLE,),
    class_: str | None = None,
    scripted: bool = True,
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
        el("style", mark_raw(style)),
    )
    tip = el("div", id="tip", role="status", aria_live="polite", hidden=True)
    script = el("script", mark_raw(_asset(*SCRIPT))) if scripted else None
    whole = el("body", body, tip, script, class_=class_)
    return "<!doctype html>\n" + el("html", head, whole, lang="zh-CN" if language == "zh" else "en") + "\n"


def page_header(title: str, facts: Iterable[str], say: Say, *, brand: Child = "trainmark") -> Markup:
    """The head of a page, with the button for its colours."""
    shown = [el("span", fact) for fact in facts if fact]
    return el(
        "header",
        el(
            "div",
            el("p", brand, class_="brand"),
            el("h1", title),
            el("p", shown, class_="facts") if shown else None,
        ),
        el("button", say("Light or dark"), id="theme", type="button"),
    )


def page_footer(trainmark: str, say: Say, *more: str) -> Markup:
    made = say("Made by trainmark {version} from records; nothing here was typed.").format(version=trainmark)
    return el("footer", [el("p", line) for line in (made, *more)])


def skip_link(say: Say) -> Markup:
    """For those who come by keyboard."""
    return el("a", say("Skip to the summary"), href="#summary-title", class_="skip")


def sortable_table(
    heads: Sequence[tuple[str, bool]],
    rows: Child,
    *,
    caption: str = "",
    kind: str | None = None,
    sorted_by: int | None = None,
) -> Markup:
    """The page's one table to sort, below a heading of the id `summary-title`; `heads` say whether a column holds
    numbers."""
    drawn = [
        el(
            "th",
            el("button", name, type="button"),
            scope="col",
            class_="number" if numeric else None,
            aria_sort="descending" if place == sorted_by else "none",
        )
        for place, (name, numeric) in enumerate(heads)
    ]
    table = el(
        "table",
        el("caption", caption, class_="hidden-text") if caption else None,
        el("thead", el("tr", drawn)),
        el("tbody", rows),
        id="summary",
        class_=kind,
    )
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_labelledby="summary-title")


def number_cell(shown: Child, key: float | None, kind: str = "number") -> Markup:
    """A cell that is sorted by its number."""
    return el("td", shown, class_=kind, data_key=None if key is None else f"{key:.9g}")


def filter_bar(placeholder: str, chips: Iterable[tuple[str, str, str]], say: Say) -> Markup:
    """What filters the table: words that are typed, and chips of a field, its value and the word for it."""
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


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = ()) -> Markup:
    """A table as it stands, which may be wider than the page; `left` are the columns of words beside the first."""
    head = el("thead", el("tr", [el("th", head, scope="col") for head in heads]))
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            [el("td", cell, class_=None if n in left else "number") for n, cell in enumerate(row[1:], 1)],
        )
        for row in rows
    ]
    return el("div", el("table", head, el("tbody", body)), class_="scroll")


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


def save_page(name: str, page: str, store: Store) -> Path:
    """Writes a page into the store."""
    path = store.folder / "reports" / escape.file_name(name)
    try:
        write_atomic(path, page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise NotReadyError(f"{path} could not be written: {error.strerror}; name a file with --html") from error
    return path


def write_report(path: Path, text: str, store: Store) -> None:
    """To the file a user named."""
    if path.expanduser().resolve().parent == store.records.resolve():
        raise UsageError(f"{path} lies among the records, which are never replaced; choose another folder")
    write_user_file(path, text.encode("utf-8", "backslashreplace"))
