"""Writes what views made: pages into the store, text to a file that a user named."""

from __future__ import annotations

from pathlib import Path

from trainmark.record import escape
from trainmark.record.atomic_files import write_atomic, write_user_file
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.store import Store


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
