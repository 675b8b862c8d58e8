"""The newest rows of a large store, kept with how its folders and their own files looked: while these do, they hold."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from trainmark.spec.whole_files import write_whole
from trainmark.store.store import StoreRow

FEWEST_RECORDS = 1000
"""A smaller store is listed as fast without."""
KEPT_ROWS = 100
SETTLED_S = 2.0
"""A folder changed later than this before it was listed is not believed: its clock may be too coarse to show that it
was changed again meanwhile."""

Look = tuple[int, int]
"""The size of a file or folder, and when it was changed in nanoseconds."""


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    fields: tuple[str, ...]
    """Of a row, as the version that wrote this knew them."""
    folders: tuple[Look | None, Look | None]
    """Of records and of runs, before they were listed."""
    files: dict[str, Look]
    """Of the record files below, damaged ones too, by name."""
    rows: list[StoreRow]
    count: int
    """Of all records."""
    damaged: list[tuple[str, str]]
    """Files among the records that are none, with the reason."""
    unrecorded: list[str]
    """Run folders without a record."""
    names: dict[str, str]
    """By which these runs can be told from all others."""


def look(path: Path) -> Look | None:
    """None where there is nothing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def settled(folders: Iterable[Look | None]) -> bool:
    """True where none of them was changed in the last moments, nor in what another clock calls the future."""
    latest = time.time_ns() - int(SETTLED_S * 1e9)
    return all(folder is None or folder[1] <= latest for folder in folders)


def read(path: Path, records: Path, runs: Path) -> Newest | None:
    """What was kept of a store; None where it looks otherwise now, or nothing can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = msgspec.json.decode(path.read_bytes(), type=Newest)
        if (
            found.fields == StoreRow._fields
            and found.folders == (look(records), look(runs))
            and all(look(records / name) == seen for name, seen in found.files.items())
        ):
            return found
    return None


def write(path: Path, newest: Newest) -> None:
    """Where there is no room for it, or a name is no text of any encoding, the next listing takes longer."""
    with contextlib.suppress(OSError, ValueError):
        write_whole(path, msgspec.json.encode(newest))
