"""English or Chinese: the reader's language, and translation by gettext's catalogues."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh")
LOCALE = Path(__file__).parent.parent / "locale"
"""One gettext catalogue per language but English; `scripts/translations` lists what one lacks."""

Say = Callable[[str], str]
"""Translates an English message with its placeholders such as `{count}`; without an entry it stays English."""

_LINE = re.compile(r'(?:(msgctxt|msgid|msgstr) )?(".*")')


def locale_language(environment: Mapping[str, str] | None = None) -> str:
    """The language of the user's locale; English where we do not have it."""
    variables = os.environ if environment is None else environment
    chosen = next((variables[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if variables.get(name)), "")
    return "zh" if chosen.lower().startswith("zh") else "en"


_chosen: ContextVar[str] = ContextVar("language", default=LANGUAGES[0])


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Sets the language of terminal views meanwhile; records stay English."""
    before = _chosen.set(language)
    try:
        yield
    finally:
        _chosen.reset(before)


def current_language() -> str:
    return _chosen.get()


def _(sentence: str) -> str:
    return translator(current_language())(sentence)


@cache
def translator(language: str, context: str = "") -> Say:
    """A function that translates into a language; a `context`, such as a table's form, may have its own terms."""
    if language == LANGUAGES[0]:
        return str
    found = catalogue(language)

    def say(sentence: str) -> str:
        plain = unwrap(sentence)
        return found.get(f"{context}\x04{plain}") or found.get(plain) or sentence

    return say


def unwrap(text: str) -> str:
    """Paragraphs without line breaks, as the catalogue has them."""
    return "\n\n".join(" ".join(part.split()) if "\n" in part else part for part in text.split("\n\n"))


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Every message of a language by its English, after its context and \\x04 where it has one."""
    return read_po((LOCALE / language / "LC_MESSAGES" / "trainmark.po").read_text(encoding="utf-8"))


def read_po(text: str) -> dict[str, str]:
    """The entries of a catalogue: blocks of msgctxt, msgid and msgstr, each one or more quoted lines."""
    found: dict[str, str] = {}
    for block in text.split("\n\n"):
        parts: dict[str, str] = {}
        field = ""
        for line in block.splitlines():
            if match := _LINE.fullmatch(line):
                field = match.group(1) or field
                parts[field] = parts.get(field, "") + json.loads(match.group(2))
        if parts.get("msgid") and parts.get("msgstr"):
            context = f"{parts['msgctxt']}\x04" if "msgctxt" in parts else ""
            found[context + parts["msgid"]] = parts["msgstr"]
    return found


ENGLISH = translator(LANGUAGES[0])
