"""Remembers in SQLite what lists show of each record file; it can be deleted at any time."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from trainmark.record.row import StoreRow, instant

LOCK_TIMEOUT_S = 5.0
_VERSION = zlib.crc32(repr(StoreRow._fields).encode()) >> 1
"""An index with other fields is made again."""
_TABLE = """BEGIN IMMEDIATE; DROP TABLE IF EXISTS files;
CREATE TABLE files (name TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, instant REAL, entry BLOB);
CREATE INDEX newest ON files (instant, name)"""
Answer = TypeVar("Answer")


class IndexEntry(NamedTuple):
    """A record file: how it looked when it was read, and its row, or why it is not a record."""

    size: int
    mtime_ns: int
    row: StoreRow | None
    problem: str | None = None


_DECODER = msgspec.json.Decoder(tuple[StoreRow | None, str | None])


class DamagedIndexError(Exception):
    """The file holds something else than what was written to it."""


class StoreIndex:
    """The table of one open database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            database.executescript(f"{_TABLE}; PRAGMA user_version = {_VERSION}; COMMIT")

    def names(self) -> set[str]:
        return {name for (name,) in self._database.execute("SELECT name FROM files")}

    def count(self) -> int:
        return int(self._database.execute("SELECT count(instant) FROM files").fetchone()[0])

    def newest(self) -> Iterator[tuple[str, IndexEntry]]:
        """Every file that held a record, the newest first."""
        yield from self._entries("instant IS NOT NULL ORDER BY instant DESC, name DESC")

    def damaged(self) -> list[tuple[str, IndexEntry]]:
        return list(self._entries("instant IS NULL ORDER BY name"))

    def _entries(self, where: str) -> Iterator[tuple[str, IndexEntry]]:
        query = f"SELECT name, size, mtime_ns, entry FROM files WHERE {where}"  # noqa: S608 - one of two texts above
        for name, size, mtime_ns, entry in self._database.execute(query):
            try:
                row, problem = _DECODER.decode(entry)
            except (ValueError, RecursionError) as error:
                raise DamagedIndexError from error
            if row and f"{row.run_id}.json" != name:
                raise DamagedIndexError
            yield name, IndexEntry(size, mtime_ns, row, problem)

    def put(self, entries: Iterable[tuple[str, IndexEntry]]) -> None:
        rows = [
            (name, size, mtime_ns, instant(row.created) if row else None, msgspec.json.encode((row, problem)))
            for name, (size, mtime_ns, row, problem) in entries
        ]
        if rows:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows)

    def forget(self, names: Iterable[str]) -> None:
        if rows := [(name,) for name in names]:
            with self._database:
                self._database.executemany("DELETE FROM files WHERE name = ?", rows)


def ask(path: Path, question: Callable[[StoreIndex], Answer]) -> Answer:
    """What the index in a file answers. A damaged one is made again; where none can be kept, one in memory answers."""
    if path.parent.is_dir():
        for _ in range(2):
            try:
                with contextlib.closing(_connect(path)) as database:
                    return question(StoreIndex(database))
            except sqlite3.OperationalError:  # read-only, full, or locked for long
                break
            except (sqlite3.DatabaseError, DamagedIndexError):
                delete(path)
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path, mode="ro")) as database:
            database.backup(memory)
        return question(StoreIndex(memory))


def delete(path: Path) -> None:
    for each in (path, path.with_name(f"{path.name}-journal")):
        with contextlib.suppress(OSError):
            each.unlink(missing_ok=True)


def _connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=LOCK_TIMEOUT_S)
