"""English or Chinese: which one a reader wants, and how a sentence of ours is said in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache

LANGUAGES = ("en", "zh")

Say = Callable[[str], str]
"""Gives an English sentence of ours in the reader's language; placeholders such as `{count}` stay in it."""


def by_locale(environment: Mapping[str, str] | None = None) -> str:
    """The language the user's locale asks for; English where it is another."""
    asked = os.environ if environment is None else environment
    chosen = next((asked[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if asked.get(name)), "")
    return "zh" if chosen.lower().startswith("zh") else "en"


def speaker(language: str) -> Say:
    """English is its own key, so that code reads as the page does; what has no Chinese yet stays English."""
    if language == "en":
        return _as_it_is
    words = _chinese()
    return lambda sentence: words.get(sentence, sentence)


@cache
def _chinese() -> dict[str, str]:
    """What pages say themselves, and what they pass on: titles of checks, formulas, reasons for missing numbers."""
    from trainmark.analysis import meanings_zh
    from trainmark.analysis.audit import records
    from trainmark.analysis.words_zh import WORDS
    from trainmark.spec.metrics import METRICS

    return {
        **{check.title: meanings_zh.CHECKS[check.code] for check in records.CHECKS},
        **{
            METRICS[alias].formula: meaning.formula
            for alias, meaning in meanings_zh.METRICS.items()
            if alias in METRICS
        },
        **meanings_zh.REASONS,
        **WORDS,
    }


def _as_it_is(sentence: str) -> str:
    return sentence
