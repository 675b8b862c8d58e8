"""One spelling for words of tables that look the same."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from trainmark.record import escape


@lru_cache(maxsize=5000)
def tidy(text: str) -> str:
    """One spelling for what looks the same: no full-width letters, no doubled blanks, nothing a terminal obeys."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFKC", escape.terminal(" ".join(text.split()))).split())


@lru_cache(maxsize=5000)
def key(text: str) -> str:
    """By which words of tables are looked up: `e2e time`, `E2E_time` and `ｅ２ｅ－ｔｉｍｅ` are one."""
    return re.sub(r"[\s_\-'\"`]", "", unicodedata.normalize("NFKC", text).casefold())
