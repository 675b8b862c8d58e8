"""Keeps one JSON file a run, never overwritten, and an index of them that can be thrown away at any time."""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import os
import re
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.spec.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError

if TYPE_CHECKING:  # a listing comes from the index alone, and numpy would be most of its time
    from trainmark.spec.record import Record


class Row(NamedTuple):
    """What lists show of a run."""

    run_id: str
    created: str
    status: str
    """The record's word, or `no record` for a run folder whose run left none."""
    workload: str = ""
    recipe: str = ""
    topology: str = ""
    precision: str = ""
    platform: str = ""
    device: str = ""
    p_core: float | None = None
    unit: str = ""
    quality_name: str = ""
    quality: float | None = None
    quality_unit: str = ""
    doubts: int = 0
    fingerprint: str = ""
    group: str | None = None
    reached: bool = False
    """The target, by any evaluation."""


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A file among the records that cannot be read as one."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"record file {self.path} is left out: it {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All that a store's folder holds."""

    rows: list[Row]
    """Its records, newest first."""
    damaged: list[Damaged]
    unrecorded: list[Row]
    """Run folders without a record, newest first: still running, or ended before a record could be written."""


class _Stamp(NamedTuple):
    """Tells a changed file from the one that was indexed."""

    size: int
    mtime_ns: int


class _Entry(NamedTuple):
    stamp: _Stamp
    row: Row | None
    problem: str | None = None


_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS records (
    file TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, problem TEXT,
    {", ".join(f'"{name}"' for name in Row._fields)}
) WITHOUT ROWID
"""
_SCHEMA_MARK = zlib.crc32(_SCHEMA.encode()) & 0x7FFFFFFF
_COLUMNS = 4 + len(Row._fields)
_INSERT = "INSERT OR REPLACE INTO records VALUES (" + ", ".join("?" * _COLUMNS) + ")"  # noqa: S608 - only question marks

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _only_match(word: str, names: Iterable[str]) -> str | None:
    """The one name that is the word, or begins or ends with it; None if there is none."""
    names = sorted(names)
    if word in names:
        return word
    matches = [name for name in names if name.startswith(word) or name.endswith(word)]
    if len(matches) > 1:
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} runs: {shown}")
    return matches[0] if matches else None


def default_folder() -> Path:
    """$TRAINMARK_STORE, else trainmark's folder among the user's data."""
    if chosen := os.environ.get("TRAINMARK_STORE"):
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # the XDG rules say that a relative one is to be ignored
        return Path(data) / "trainmark"
    try:
        return Path.home() / ".local" / "share" / "trainmark"
    except RuntimeError:
        raise NotReadyError(
            "this user has no home folder to keep records in; set TRAINMARK_STORE to a folder"
        ) from None


def read_record(path: Path) -> Record:
    """The record in a file, or a sentence that names the file and what is wrong with it."""
    from trainmark.spec.record import Record

    try:
        return Record.from_json(json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse))
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    except (TrainmarkError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"record file {path} is damaged: {_reason(error)}") from error


class Store:
    """A folder of records. The files are the truth; `index.sqlite` only remembers what stands in them."""

    def __init__(self, folder: Path, *, index_timeout_s: float = 5.0) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.runs = folder / "runs"
        self._index_timeout_s = index_timeout_s

    def path(self, run_id: str) -> Path:
        return self.records / f"{run_id}.json"

    def add(self, record: Record) -> Path:
        """Saves a record for good: on disk before this returns, never in place of another."""
        if not _RUN_ID.fullmatch(record.run_id):
            raise UsageError(f"run id {record.run_id!r} cannot name a file; use letters, digits, '.', '_' and '-'")
        path = self.path(record.run_id)
        text = record.dumps()
        self._make_folder()
        try:
            _write_once(path, text.encode())
        except FileExistsError:
            raise UsageError(
                f"run {record.run_id} is already in the store as {path}; records are never replaced"
            ) from None
        except OSError as error:
            kind = WorkloadError if error.errno in _FULL else NotReadyError
            raise kind(f"record {path} could not be written: {error.strerror}") from error
        self._remember({path.name: _Entry(_stamp(path.stat()), _row(record))}, gone=())
        return path

    def check_writable(self) -> None:
        """Ends in a sentence now, rather than after an hour of training, if a record could not be saved here."""
        self._make_folder()
        probe = self.records / f".{secrets.token_hex(8)}.tmp"
        try:
            with probe.open("xb") as stream:
                stream.write(b"\0" * 4096)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be written: {error.strerror}; {_ELSEWHERE}") from error
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)

    def rows(
        self,
        *,
        limit: int | None = None,
        workload: str | None = None,
        platform: str | None = None,
        status: str | None = None,
        fingerprint: str | None = None,
        group: str | None = None,
    ) -> list[Row]:
        """What lists show of each record, newest first; a damaged file is left out here and named in `contents`."""
        wanted = {
            "workload": workload,
            "platform": platform,
            "status": status,
            "fingerprint": fingerprint,
            "group": group,
        }
        asked = {name: value for name, value in wanted.items() if value is not None}
        return [
            row for row in self.contents().rows if all(getattr(row, name) == value for name, value in asked.items())
        ][:limit]

    def contents(self) -> Contents:
        entries = self._entries()
        return Contents(
            rows=newest_first(entry.row for entry in entries.values() if entry.row is not None),
            damaged=[
                Damaged(path=self.records / name, reason=entry.problem)
                for name, entry in sorted(entries.items())
                if entry.problem is not None
            ],
            unrecorded=newest_first(
                _folder_row(folder) for folder in self._folders() if f"{folder.name}.json" not in entries
            ),
        )

    def rebuild(self) -> int:
        """Forgets the index and reads every record again; says how many there are."""
        self._discard_index()
        return sum(entry.row is not None for entry in self._entries(trust_index=False).values())

    def find(self, word: str | None = None) -> Path:
        """The record file meant by a run id, the unique beginning or end of one, a path, or nothing for the newest."""
        if not word or word == "last":
            newest = self.rows(limit=1)
            if not newest:
                raise UsageError(f"the store {self.folder} holds no records yet; 'trainmark run' makes one")
            return self.path(newest[0].run_id)
        run_ids = [name.removesuffix(".json") for name in self._listing()]
        if word in run_ids:
            return self.path(word)
        if _is_file(Path(word)):
            return Path(word)
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"there is no record file {word}")
        if match := _only_match(word, run_ids):
            return self.path(match)
        if folder := _only_match(word, [path.name for path in self._folders()]):
            raise UsageError(
                f"run {folder} has no record: it still runs, or ended too early; its folder is {self.runs / folder}"
            )
        raise UsageError(f"no run {word!r} in the store {self.folder}; {self._nearest(word)}")

    def run_folder(self, word: str | None = None) -> Path:
        """The folder a run worked in, by the same words as its record, whether or not it left one."""
        names = [row.run_id for row in newest_first(_folder_row(folder) for folder in self._folders())]
        if not names:
            raise UsageError(f"the store {self.folder} holds no runs yet; 'trainmark run' makes one")
        match = names[0] if not word or word == "last" else _only_match(word, names)
        if not match:
            close = difflib.get_close_matches(word or "", names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"the newest is {names[0]!r}"
            raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")
        return self.runs / match

    def record(self, word: str | None = None) -> Record:
        """The record `find` finds."""
        return read_record(self.find(word))

    def _nearest(self, word: str) -> str:
        newest = [row.run_id for row in self.rows(limit=500)]
        if not newest:
            return "it holds no records yet"
        close = difflib.get_close_matches(word, newest, n=1, cutoff=0.5)
        return f"did you mean {close[0]!r}?" if close else f"the newest is {newest[0]!r}"

    def _make_folder(self) -> None:
        try:
            self.records.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be made: {error.strerror}; {_ELSEWHERE}") from error

    def _listing(self) -> dict[str, _Stamp]:
        """The record files there are; names that begin with a dot are not finished."""
        found: dict[str, _Stamp] = {}
        try:
            with os.scandir(self.records) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not entry.name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):
                            found[entry.name] = _stamp(entry.stat())
        except FileNotFoundError:
            return {}
        except NotADirectoryError:
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be read: {error.strerror}; {_ELSEWHERE}") from error
        return found

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self.runs) as entries:
                return [Path(entry.path) for entry in entries if entry.is_dir()]
        except OSError:
            return []

    def _entries(self, *, trust_index: bool = True) -> dict[str, _Entry]:
        """Every record file with what lists show of it: from the index where the file is unchanged, else read now."""
        # the index first: a record's file is there before its row is, so a row without a file is truly gone
        indexed = self._recall()
        listing = self._listing()
        unread = {
            name: self._read_entry(name, stamp)
            for name, stamp in listing.items()
            if not trust_index or name not in indexed or indexed[name].stamp != stamp
        }
        gone = indexed.keys() - listing.keys()
        if unread or gone:
            self._remember(unread, gone)
        return {name: unread.get(name) or indexed[name] for name in listing}

    def _read_entry(self, name: str, stamp: _Stamp) -> _Entry:
        path = self.records / name
        try:
            record = read_record(path)
            if f"{record.run_id}.json" != name:
                return _Entry(stamp, None, f"holds run {record.run_id}, so it must be named {record.run_id}.json")
            return _Entry(stamp, _row(record))
        except UsageError as error:
            return _Entry(stamp, None, str(error).removeprefix(f"record file {path} "))

    @contextlib.contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        """The index on disk. Its user holds a shared lock, so that nobody deletes it under another's hands."""
        with contextlib.ExitStack() as closing:
            mode = "rwc"
            try:
                lock = closing.enter_context((self.folder / "index.lock").open("ab"))
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                mode = "ro"  # a store that is not ours: its index may be read, and cannot be deleted by us
            address = f"{(self.folder / 'index.sqlite').absolute().as_uri()}?mode={mode}"
            index = closing.enter_context(
                contextlib.closing(
                    sqlite3.connect(address, uri=True, timeout=self._index_timeout_s, isolation_level=None)
                )
            )
            if index.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_MARK:
                with _transaction(index):
                    index.execute("DROP TABLE IF EXISTS records")
                    index.execute(_SCHEMA)
                    index.execute(f"PRAGMA user_version = {_SCHEMA_MARK}")
            yield index

    def _recall(self) -> dict[str, _Entry]:
        if not (self.folder / "index.sqlite").exists():
            return {}
        try:
            with self._index() as index:
                return {
                    file: _Entry(_Stamp(size, mtime_ns), None if problem else _revived(values), problem)
                    for file, size, mtime_ns, problem, *values in index.execute("SELECT * FROM records")
                }
        except (sqlite3.OperationalError, OSError):
            return {}  # locked or not ours: the files themselves are read instead
        except (sqlite3.DatabaseError, ValueError, TypeError):
            self._discard_index()
            return {}

    def _remember(self, entries: Mapping[str, _Entry], gone: Iterable[str]) -> None:
        rows = [
            (name, *entry.stamp, entry.problem, *(entry.row or [None] * len(Row._fields)))
            for name, entry in entries.items()
        ]
        # the records are safe whatever happens here; the next listing finds what the index lacks
        with contextlib.suppress(sqlite3.Error, OSError), self._index() as index, _transaction(index):
            index.executemany("DELETE FROM records WHERE file = ?", [(name,) for name in gone])
            index.executemany(_INSERT, rows)

    def _discard_index(self) -> None:
        with contextlib.suppress(OSError), (self.folder / "index.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in ("index.sqlite", "index.sqlite-journal", "index.sqlite-wal", "index.sqlite-shm"):
                (self.folder / name).unlink(missing_ok=True)


_ELSEWHERE = "choose another folder with --store or TRAINMARK_STORE"


def newest_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (_instant(row.created), row.run_id), reverse=True)


def _instant(created: str) -> float:
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _row(record: Record) -> Row:
    device = record.environment.get("device")
    p_core = record.metrics.get("p_core")
    return Row(
        run_id=record.run_id,
        created=record.created,
        status=record.status,
        workload=record.plan.workload,
        recipe=record.plan.recipe_name,
        topology=record.plan.topology,
        precision=record.precision,
        platform=record.plan.platform,
        device=str(device.get("name", "")) if isinstance(device, Mapping) else "",
        p_core=p_core.value if p_core else None,
        unit=p_core.unit if p_core else "",
        quality_name=record.quality.name,
        quality=record.quality.value,
        quality_unit=record.quality.unit,
        doubts=len(record.doubts),
        fingerprint=record.plan.fingerprint,
        group=record.group,
        reached=record.quality.reached,
    )


def _revived(values: list[Any]) -> Row:
    return Row._make([*values[:-1], bool(values[-1])])  # SQLite has no truth values


def _folder_row(folder: Path) -> Row:
    """What can be said of a run that left no record: when its folder was last touched, and what its plan asked for."""
    try:
        touched = datetime.fromtimestamp(folder.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError:
        touched = ""
    plan: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    asked = plan if isinstance(plan, dict) else {}
    return Row(
        run_id=folder.name,
        created=touched,
        status="no record",
        workload=str(asked.get("workload", "")),
        recipe=str(asked.get("recipe_name", "")),
        topology=str(asked.get("topology", "")),
        precision=str(asked.get("precision", "")),
        platform=str(asked.get("platform", "")),
        fingerprint=str(asked.get("fingerprint", "")),
    )


def _write_once(path: Path, content: bytes) -> None:
    """Whole or not at all, and FileExistsError if the name is taken, even by someone who writes it at this moment."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(unfinished, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb"):  # a disk without hard links: take the name first, then fill it in one move
                pass
            unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    for folder in (path.parent, path.parent.parent):
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """The name must survive a power cut too, not only the content."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot sync a folder
            raise
    finally:
        os.close(opened)


@contextlib.contextmanager
def _transaction(index: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken at once: two that both read first would each wait for the other."""
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if index.in_transaction:
            index.execute("ROLLBACK")
        raise
    index.execute("COMMIT")


def _stamp(status: os.stat_result) -> _Stamp:
    return _Stamp(status.st_size, status.st_mtime_ns)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word too long or too odd to be a path is no path
        return False


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number JSON knows")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return str(error) if isinstance(error, (TrainmarkError, ValueError)) else f"{type(error).__name__} {error}"
