"""English or Chinese: which one a reader wants, and how a sentence of ours is said in it."""

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
"""A gettext catalogue for each language but English; translators edit them as they are, nothing is compiled."""

Say = Callable[[str], str]
"""Gives an English sentence of ours in the reader's language; placeholders such as `{count}` stay in it."""

_LINE = re.compile(r'(?:(msgctxt|msgid|msgstr) )?(".*")')
_BETWEEN = "\x04"
"""Stands between a context and a sentence, as in gettext's own files."""


def by_locale(environment: Mapping[str, str] | None = None) -> str:
    """The language the user's locale asks for; English where it is another."""
    asked = os.environ if environment is None else environment
    chosen = next((asked[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if asked.get(name)), "")
    return "zh" if chosen.lower().startswith("zh") else "en"


_chosen: ContextVar[str] = ContextVar("language", default=LANGUAGES[0])


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Chooses the language of what this process shows on a terminal meanwhile; records and documents stay English."""
    before = _chosen.set(language)
    try:
        yield
    finally:
        _chosen.reset(before)


def chosen() -> str:
    return _chosen.get()


@cache
def speaker(language: str, context: str = "") -> Say:
    """English is its own key, so that code reads as the page does; what has no translation yet stays English.

    A word that a `context` has another translation for is taken from there.
    """
    if language == "en":
        return _as_it_is
    words = catalogue(language)

    def say(sentence: str) -> str:
        plain = unwrapped(sentence)
        return words.get(f"{context}{_BETWEEN}{plain}") or words.get(plain) or sentence

    return say


def unwrapped(text: str) -> str:
    """Paragraphs without the line breaks of the code they stand in: by these a definition is looked up."""
    return "\n\n".join(" ".join(part.split()) if "\n" in part else part for part in text.split("\n\n"))


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Every sentence of a language by its English, behind its context where it has one."""
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
            context = f"{parts['msgctxt']}{_BETWEEN}" if "msgctxt" in parts else ""
            found[context + parts["msgid"]] = parts["msgstr"]
    return found


def _as_it_is(sentence: str) -> str:
    return sentence
