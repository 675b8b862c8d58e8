"""Remembers in SQLite what lists show of each record file, and how the file looked when it was read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainmark.store.rows import Row, instant

Stamp = tuple[int, int]
"""Size and time of change in nanoseconds: tells a changed file from the one that was read."""


class Entry(NamedTuple):
    stamp: Stamp
    row: Row | None
    problem: str | None = None
    """Why the file is not a record."""


_FIELDS = ", ".join(f'"{name}"' for name in Row._fields)
_SCHEMA = (
    "CREATE TABLE records (file TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, problem TEXT, "
    f"instant REAL, {_FIELDS}) WITHOUT ROWID",
    "CREATE INDEX newest ON records (instant, run_id)",
)
_MARK = zlib.crc32("".join(_SCHEMA).encode()) & 0x7FFFFFFF
_COLUMNS = 5 + len(Row._fields)
_INSERT = "INSERT OR REPLACE INTO records VALUES (" + ", ".join("?" * _COLUMNS) + ")"  # noqa: S608 - only question marks


class Index:
    """One table: a line a file. It may lag behind the files, and is brought up to date by whoever asks it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        if connection.execute("PRAGMA user_version").fetchone()[0] != _MARK:
            with self._transaction():
                connection.execute("DROP TABLE IF EXISTS records")
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_MARK}")

    def stamps(self) -> dict[str, Stamp]:
        found = self._connection.execute("SELECT file, size, mtime_ns FROM records")
        return {file: (size, mtime_ns) for file, size, mtime_ns in found}

    def update(self, entries: Mapping[str, Entry], gone: Iterable[str] = ()) -> None:
        nothing = [None] * len(Row._fields)
        lines = [
            (
                file,
                *entry.stamp,
                entry.problem,
                instant(entry.row.created) if entry.row else None,
                *(entry.row or nothing),
            )
            for file, entry in entries.items()
        ]
        with self._transaction():
            self._connection.executemany("DELETE FROM records WHERE file = ?", [(file,) for file in gone])
            self._connection.executemany(_INSERT, lines)

    def copy_from(self, other: Index) -> None:
        lines = other._connection.execute("SELECT * FROM records").fetchall()
        with self._transaction():
            self._connection.executemany(_INSERT, lines)

    def rows(self, asked: Mapping[str, str], limit: int | None = None) -> list[Row]:
        """Records whose fields are as asked for, newest first."""
        order = "ORDER BY instant DESC, run_id DESC LIMIT ?"
        found = self._select(_FIELDS, asked, order, -1 if limit is None else limit)
        return [Row._make((*values[:-1], bool(values[-1]))) for values in found]  # SQLite has no truth values

    def count(self, asked: Mapping[str, str]) -> int:
        [(count,)] = self._select("count(*)", asked)
        return int(count)

    def problems(self) -> list[tuple[str, str]]:
        """Files that are no records, and why."""
        asked = "SELECT file, problem FROM records WHERE problem IS NOT NULL ORDER BY file"
        return self._connection.execute(asked).fetchall()

    def _select(self, what: str, asked: Mapping[str, str], order: str = "", *more: int) -> sqlite3.Cursor:
        wanted = "".join(f' AND "{name}" = ?' for name in asked)
        statement = f"SELECT {what} FROM records WHERE problem IS NULL{wanted} {order}"  # noqa: S608 - our own names
        return self._connection.execute(statement, (*asked.values(), *more))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. The write lock is taken at once: two that both read first would each wait for the other."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


@contextlib.contextmanager
def on_disk(folder: Path, timeout_s: float) -> Iterator[Index]:
    """The index of a store. Its user holds a shared lock, so that nobody deletes it under another's hands."""
    with contextlib.ExitStack() as closing:
        mode = "rwc"
        try:
            lock = closing.enter_context((folder / "index.lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            mode = "ro"  # a store that is not ours: its index may be read, and cannot be deleted by us
        address = f"{(folder / 'index.sqlite').absolute().as_uri()}?mode={mode}"
        yield Index(closing.enter_context(_connected(address, timeout=timeout_s, uri=True)))


@contextlib.contextmanager
def in_memory() -> Iterator[Index]:
    """An empty index that nobody else sees."""
    with _connected(":memory:") as connection:
        yield Index(connection)


def _connected(address: str, **options: Any) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(address, isolation_level=None, **options))


def discard(folder: Path) -> None:
    """Deletes the index, unless somebody uses it or it is not ours."""
    with contextlib.suppress(OSError), (folder / "index.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("index.sqlite", "index.sqlite-journal", "index.sqlite-wal", "index.sqlite-shm"):
            (folder / name).unlink(missing_ok=True)
