"""Keeps one JSON file a run, never overwritten, and an index of them that can be thrown away at any time."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainmark.spec.errors import NotReadyError, UsageError, WorkloadError
from trainmark.store import index as store_index
from trainmark.store.files import read_record, read_row, write_once
from trainmark.store.index import Entry, Index, Stamp
from trainmark.store.rows import Contents, Damaged, Row, folder_row, newest_first, row_of

if TYPE_CHECKING:
    from trainmark.spec.record import Record

__all__ = ["Contents", "Damaged", "Row", "Store", "default_folder", "newest_first", "read_record"]

Answer = TypeVar("Answer")

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "choose another folder with --store or TRAINMARK_STORE"


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
            write_once(path, text.encode())
        except FileExistsError:
            raise UsageError(
                f"run {record.run_id} is already in the store as {path}; records are never replaced"
            ) from None
        except OSError as error:
            kind = WorkloadError if error.errno in _FULL else NotReadyError
            raise kind(f"record {path} could not be written: {error.strerror}") from error
        # the record is safe whatever happens here; the next listing finds what the index lacks
        with (
            contextlib.suppress(sqlite3.Error, OSError, ValueError),
            store_index.on_disk(self.folder, self._index_timeout_s) as index,
        ):
            index.update({path.name: Entry(_stamp(path.stat()), row_of(record))})
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
        return self._ask(lambda index: index.rows(asked, limit))

    def contents(self, *, limit: int | None = None, workload: str | None = None) -> Contents:
        """All that the folder holds, or at most so many runs of a workload."""
        asked = {} if workload is None else {"workload": workload}
        rows, count, problems = self._ask(
            lambda index: (index.rows(asked, limit), index.count(asked), index.problems()),
        )
        left = self._folder_names() - set(self.run_ids())
        unrecorded = newest_first(folder_row(self.runs / name) for name in left)
        return Contents(
            rows=rows,
            count=count,
            damaged=[Damaged(path=self.records / name, reason=problem) for name, problem in problems],
            unrecorded=[row for row in unrecorded if workload in (None, row.workload)],
        )

    def rebuild(self) -> int:
        """Forgets the index and reads every record again; says how many there are."""
        store_index.discard(self.folder)
        return self._ask(lambda index: index.count({}), anew=True)

    def run_ids(self) -> list[str]:
        """Of every record file, in no order; the file may prove to be damaged."""
        names: list[str] = []
        with self._explaining_folder():
            names = os.listdir(self.records)  # noqa: PTH208 - a Path for each of many thousand names takes its time
        return [name.removesuffix(".json") for name in names if _names_record(name)]

    def find(self, word: str | None = None) -> Path:
        """The record file meant by a run id, the unique beginning or end of one, a path, or nothing for the newest."""
        if not word or word == "last":
            newest = self.rows(limit=1)
            if not newest:
                raise UsageError(f"the store {self.folder} holds no records yet; 'trainmark run' makes one")
            return self.path(newest[0].run_id)
        if os.sep not in word and not word.startswith(".") and _is_file(self.path(word)):
            return self.path(word)
        if _is_file(Path(word)):
            return Path(word)
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"there is no record file {word}")
        if match := _only_match(word, self.run_ids()):
            return self.path(match)
        if folder := _only_match(word, self._folder_names()):
            raise UsageError(
                f"run {folder} has no record: it still runs, or ended too early; its folder is {self.runs / folder}"
            )
        newest = self.rows(limit=500)
        hint = _nearest(word, [row.run_id for row in newest]) if newest else "it holds no records yet"
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def run_folder(self, word: str | None = None) -> Path:
        """The folder a run worked in, by the same words as its record, whether or not it left one."""
        if word and word != "last" and (match := _only_match(word, self._folder_names())):
            return self.runs / match
        newest = self.newest_folders()
        if not newest:
            raise UsageError(f"the store {self.folder} holds no runs yet; 'trainmark run' makes one")
        if not word or word == "last":
            return newest[0]
        hint = _nearest(word, [folder.name for folder in newest])
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def newest_folders(self) -> list[Path]:
        """The folders runs work in, the one touched last first."""
        touched: list[tuple[float, str]] = []
        for name in self._folder_names():
            with contextlib.suppress(OSError):
                touched.append(((self.runs / name).stat().st_mtime, name))
        return [self.runs / name for _, name in sorted(touched, reverse=True)]

    def record(self, word: str | None = None) -> Record:
        """The record `find` finds."""
        return read_record(self.find(word))

    def _make_folder(self) -> None:
        try:
            self.records.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be made: {error.strerror}; {_ELSEWHERE}") from error

    def _stamps(self) -> dict[str, Stamp]:
        """Every record file, with how it looks now."""
        found: dict[str, Stamp] = {}
        with self._explaining_folder(), os.scandir(self.records) as entries:
            for entry in entries:
                if _names_record(entry.name):
                    try:
                        found[entry.name] = _stamp(entry.stat())
                    except FileNotFoundError:
                        continue  # taken away while we look
        return found

    @contextlib.contextmanager
    def _explaining_folder(self) -> Iterator[None]:
        """A folder that is not there holds nothing; one that cannot be read is a sentence."""
        try:
            yield
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be read: {error.strerror}; {_ELSEWHERE}") from error

    def _folder_names(self) -> set[str]:
        try:
            with os.scandir(self.runs) as entries:
                return {entry.name for entry in entries if entry.is_dir()}
        except OSError:
            return set()

    def _ask(self, question: Callable[[Index], Answer], *, anew: bool = False) -> Answer:
        """Asks an index that holds what the files hold: the one on disk, else one in memory that nobody keeps."""
        read: dict[str, Entry] = {}
        for _ in range(2):
            try:
                with store_index.on_disk(self.folder, self._index_timeout_s) as index:
                    self._bring_up_to_date(index, read, anew=anew)
                    return question(index)
            except (sqlite3.OperationalError, OSError):
                break  # locked, full, or not ours
            except sqlite3.DatabaseError:
                store_index.discard(self.folder)
        with store_index.in_memory() as index:
            if not anew:
                with (
                    contextlib.suppress(sqlite3.Error, OSError),
                    store_index.on_disk(self.folder, self._index_timeout_s) as kept,
                ):
                    index.copy_from(kept)
            self._bring_up_to_date(index, read)
            return question(index)

    def _bring_up_to_date(self, index: Index, read: dict[str, Entry], *, anew: bool = False) -> None:
        """Reads the files that the index does not know as they are now; what was read is also put into `read`."""
        # the index first: a record's file is there before its row is, so a row without a file is truly gone
        known = index.stamps()
        listing = self._stamps()
        if known == listing and not anew:
            return
        unread = [name for name, stamp in listing.items() if anew or known.get(name) != stamp]
        for name in unread:
            if name not in read or read[name].stamp != listing[name]:
                read[name] = self._read_entry(name, listing[name])
        index.update({name: read[name] for name in unread}, known.keys() - listing.keys())

    def _read_entry(self, name: str, stamp: Stamp) -> Entry:
        path = self.records / name
        try:
            row = read_row(path)
        except UsageError as error:
            return Entry(stamp, None, str(error).removeprefix(f"record file {path} "))
        if f"{row.run_id}.json" != name:
            return Entry(stamp, None, f"holds run {row.run_id}, so it must be named {row.run_id}.json")
        return Entry(stamp, row)


def _names_record(name: str) -> bool:
    """Names that begin with a dot are not finished; those that are no text of any encoding cannot be told of."""
    return (
        name.endswith(".json")
        and name[0] != "."
        and (name.isascii() or os.fsencode(name) == name.encode("utf-8", "replace"))
    )


def _only_match(word: str, names: Iterable[str]) -> str | None:
    """The one name that is the word, or begins or ends with it; None if there is none."""
    matches = sorted(name for name in names if name.startswith(word) or name.endswith(word))
    if word in matches:
        return word
    if len(matches) > 1:
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} runs: {shown}")
    return matches[0] if matches else None


def _nearest(word: str, newest: list[str]) -> str:
    close = difflib.get_close_matches(word, newest[:500], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the newest is {newest[0]!r}"


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_size, status.st_mtime_ns)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word too long or too odd to be a path is no path
        return False
