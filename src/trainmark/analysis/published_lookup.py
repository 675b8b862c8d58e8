"""Finds the published row, or the runs, that a command-line argument names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.record.errors import UsageError, nearest
from trainmark.record.published_row import PREFIX
from trainmark.record.store import Subject, find_runs

if TYPE_CHECKING:
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.store import Store


def find_subject(word: str, store: Store) -> Subject:
    """The published row or the runs that an argument names."""
    return _find_published(word, store) if word.startswith(PREFIX) else find_runs(word, store)


def _find_published(word: str, store: Store) -> Subject:
    from trainmark.analysis import published_library as library

    rows = {row.name: row for row in (*load_published_rows(store), *library.load_other_rows())}
    matches = [name for name in rows if name.startswith(word)]
    if word not in rows and len(matches) > 1:
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} published rows: {shown}")
    if not matches:
        close = nearest(word, rows, otherwise="'trainmark published' lists them")
        raise UsageError(f"no published row {word!r}; {close}")
    row = rows[word] if word in rows else rows[matches[0]]
    return Subject(word=word, label=row.name, row=row)


def load_published_rows(store: Store) -> tuple[PublishedRow, ...]:
    """The rows that come with trainmark, and those a user imported into the store."""
    from trainmark.analysis import imported_rows as imported, published_library as library

    return (*library.load_rows(), *imported.load_rows(store.folder))
