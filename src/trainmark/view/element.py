"""Builds HTML so that escaping cannot be forgotten: all text and every attribute pass through here."""

from __future__ import annotations

import html
from collections.abc import Iterable

from trainmark.record import escape

VOID = frozenset({"img", "input", "meta", "br"})
MAX_LETTERS = 400
"""Of one name or sentence from outside: a longer one says nothing more."""


class Markup(str):
    """HTML that was built here. Joined with plain text it becomes plain text again, and is escaped."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def el(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element. `class_` is written class, `data_ns` data-ns; None and False leave an attribute out."""
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join_markup(children)}</{name}>")


def join_markup(children: Child) -> Markup:
    """Elements and text one after the other; text is escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(html.escape(make_visible(children), quote=True))
    return Markup("".join(join_markup(child) for child in children))


def make_visible(text: str) -> str:
    """Text from anywhere with what browsers would obey or hide spelled out, and cut where it has no end."""
    shown = _escape_controls(text)
    return shown if len(shown) <= MAX_LETTERS else shown[: MAX_LETTERS - 1] + "…"


def mark_raw(source: str) -> Markup:
    """Our own style sheet and script, whose text a browser takes as it is."""
    return Markup(source)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    written = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {written}"
    # as many digits as a screen can show
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    # a value is never cut: data: addresses are long, and what is shown was cut before
    return f' {written}="{html.escape(_escape_controls(text), quote=True)}"'


def _escape_controls(text: str) -> str:
    # nearly all text is printable, and long addresses and paths are not worth a look at every letter
    return text if text.isprintable() else escape.terminal(text)
