"""Published rows and pages as sources of `trainmark audit`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainmark.analysis.published_lookup import load_published_rows
from trainmark.features.published.audit import audit, group_by_source
from trainmark.features.published.read import ENDINGS, STANDARD_INPUT, list_pages, read_pages
from trainmark.record.audit import Audit
from trainmark.record.errors import UsageError, nearest
from trainmark.record.published_row import PREFIX
from trainmark.record.store import Store

ORDER = 2
"""After MLPerf's folders, which may contain pages, too."""


def recognises(word: str) -> bool:
    """Whether a word means published rows, a page, or a folder of pages that is not a run's."""
    path = Path(word)
    if word == "published" or word.startswith(PREFIX) or word == STANDARD_INPUT or path.suffix.lower() in ENDINGS:
        return True
    return path.is_dir() and bool(list_pages(path)) and not any(path.glob("rank*.jsonl"))


def audits(word: str, store: Store) -> Iterator[Audit]:
    if word == "published" or word.startswith(PREFIX):
        yield from _audit_rows(word.removeprefix("published").removeprefix(":"), store)
    else:
        for found in read_pages(word):
            yield audit(found.page)


def _audit_rows(word: str, store: Store) -> Iterator[Audit]:
    rows = load_published_rows(store)
    plain = word.casefold()
    chosen = [row for row in rows if plain in ("", row.workload.casefold(), row.name.removeprefix(PREFIX).casefold())]
    if not chosen:
        known = [*dict.fromkeys(row.workload for row in rows), *(row.name for row in rows)]
        close = nearest(word, known, otherwise="'trainmark published' lists them")
        raise UsageError(f"no published row or workload is called {word!r}; {close}")
    for page in group_by_source(chosen):
        yield audit(page)
