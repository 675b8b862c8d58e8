"""The newest rows of a large store, kept with a digest of how all its files looked: while they look so, they hold."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainmark.spec.whole_files import write_whole
from trainmark.store.store import StoreRow

FEWEST_RECORDS = 1000
"""A smaller store is listed as fast without."""
KEPT_ROWS = 100


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    rows: list[StoreRow]
    count: int
    """Of all records."""
    damaged: list[tuple[str, str]]
    """Files among the records that are none, with the reason."""
    unrecorded: list[str]
    """Run folders without a record."""
    names: dict[str, str]
    """By which these runs can be told from all others."""


def digest(listing: Sequence[tuple[str, int, int]], folders: Sequence[str]) -> str:
    """Of the name, size and time of every record file, the name of every run folder, and what a row holds here."""
    return hashlib.sha256(repr((StoreRow._fields, listing, folders)).encode("utf-8", "surrogateescape")).hexdigest()


def read(path: Path, wanted: str) -> Newest | None:
    """What was kept of a store that looked so; None where it looked otherwise, or nothing can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = msgspec.json.decode(path.read_bytes(), type=Newest)
        return found if found.digest == wanted else None
    return None


def write(path: Path, newest: Newest) -> None:
    """Where there is no room for it, or a name is no text of any encoding, the next listing takes longer."""
    with contextlib.suppress(OSError, ValueError):
        write_whole(path, msgspec.json.encode(newest))
