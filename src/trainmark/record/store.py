"""Keeps one JSON file a run, never overwritten, and an index of them that can be thrown away at any time."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.atomic_files import UNFINISHED, write_atomic, write_once
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError
from trainmark.record.index import (
    IndexEntry,
    RunFilter,
    StoreIndex,
    StoreRow,
    delete_index,
    make_folder_row,
    make_row,
    query_index,
    sort_newest_first,
)

if TYPE_CHECKING:  # a listing comes from the index alone, and numpy would be most of its time
    from trainmark.record.record import Record
    from trainmark.record.series import SeriesFile, StepSeries

SWEEP_AFTER_S = 24 * 3600
LAST = "last"
"""The word for the newest run; `last-WORKLOAD` is the newest of a workload."""
SHORTEST_GROUP = 4
"""Fewer letters of a group's id would rather be a slip in a run's."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "choose another folder with --store or TRAINMARK_STORE"


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A file among the records that cannot be read as one."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"record file {self.path} is left out: it {self.reason}"


@dataclass(frozen=True, kw_only=True)
class StoreContents:
    """What a store's folder holds, or the part of it that was asked for."""

    rows: list[StoreRow]
    """Its records, newest first."""
    damaged: list[Damaged]
    unrecorded: list[StoreRow]
    """Run folders without a record, newest first: still running, or ended before a record could be written."""
    count: int
    """Records that fit what was asked for, with those a limit left out."""
    names: Mapping[str, str]
    """By which a run of these can be told from all others in the store: the last part of its id, or all of it."""


@dataclass(frozen=True, kw_only=True)
class _Listing:
    rows: list[StoreRow]
    count: int
    """Of all that fit."""
    damaged: list[tuple[str, str]]
    """Names and reasons."""
    files: set[str]
    """The names of all record files."""


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
    """A folder of records. The files are the truth; the index only remembers what lists show of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.runs = folder / "runs"
        self.samples = folder / "samples"
        """What trained networks were asked to show later, in a folder a run."""
        self.index = folder / "index.sqlite"

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
            self._add_series(record)
            write_once(path, text.encode())
        except FileExistsError:
            raise UsageError(
                f"run {record.run_id} is already in the store as {path}; records are never replaced"
            ) from None
        except OSError as error:
            kind = WorkloadError if error.errno in _FULL else NotReadyError
            raise kind(f"record {path} could not be written: {error.strerror}") from error
        # the record is safe whatever happens here; the next listing finds what the index lacks
        with contextlib.suppress(Exception):
            entry = IndexEntry(*self._stat(path.name), make_row(record))
            query_index(self.index, lambda index: index.put([(path.name, entry)]))
        return path

    def _add_series(self, record: Record) -> None:
        """The file of a long run's series, before the record that names it; one without a record is nobody's."""
        from trainmark.record import series

        if record.series_file is None or record.means_only:
            return
        if self.path(record.run_id).exists():
            raise FileExistsError
        write_atomic(self.records / record.series_file.name, series.pack_series(record.steps), synced=True)

    def check_writable(self) -> None:
        """Ends in a sentence now, rather than after an hour of training, if a record could not be saved here."""
        self._make_folder()
        self._sweep()
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

    def _sweep(self) -> None:
        """Takes away what processes that were killed a day ago or more had not finished writing."""
        for folder in (self.folder, self.records):
            for path in (*folder.glob(".*.tmp"), *folder.glob(f".*{UNFINISHED}")):
                with contextlib.suppress(OSError):
                    if path.is_file() and time.time() - path.stat().st_mtime > SWEEP_AFTER_S:
                        path.unlink()

    def rows(self, wanted: RunFilter | None = None, *, limit: int | None = None) -> list[StoreRow]:
        """What lists show of each record, newest first; a damaged file is left out here and named in `contents`."""
        return query_index(
            self.index, lambda index: self._list(index, wanted or RunFilter(), limit, count_all=False)
        ).rows

    def contents(self, wanted: RunFilter | None = None, *, limit: int | None = None) -> StoreContents:
        """All that the folder holds, or at most so many of the runs that are wanted."""
        folders = self._folder_names()
        found = query_index(self.index, lambda index: self._list(index, wanted or RunFilter(), limit))
        left = [name for name in folders if f"{name}.json" not in found.files]
        unrecorded = sort_newest_first(make_folder_row(self.runs / name) for name in left)
        shown = [*(row.run_id for row in found.rows), *left]
        return StoreContents(
            rows=found.rows,
            count=found.count,
            damaged=[Damaged(path=self.records / name, reason=reason) for name, reason in found.damaged],
            unrecorded=[row for row in unrecorded if wanted is None or wanted.fits(row)],
            names=_shorten_names(shown, {*left, *(name.removesuffix(".json") for name in found.files)}),
        )

    def rebuild(self) -> int:
        """Deletes the index and reads every record again; says how many there are."""
        delete_index(self.index)
        return len(self.rows())

    def run_ids(self) -> list[str]:
        """Of every record file, in no order; the file may prove to be damaged."""
        return [name.removesuffix(".json") for name in self._file_names()]

    def _file_names(self) -> set[str]:
        names: list[str] = []
        with self._explain_folder_errors():
            names = os.listdir(self.records)  # noqa: PTH208 - a Path for each of many thousand names takes its time
        return {name for name in names if _is_record_name(name)}

    def find(self, word: str | None = None) -> Path:
        """The record file meant by a run id, the unique beginning or end of one, a path, `last-WORKLOAD` for the newest
        of a workload, or nothing for the newest of all."""
        if not word or _is_newest(word):
            workload = _newest_of(word)
            # a run that failed before its first step is named where it is asked for, and hides no result
            for wanted in (RunFilter(workload=workload, measured=True), RunFilter(workload=workload)):
                if newest := self.rows(wanted, limit=1):
                    return self.path(newest[0].run_id)
            kind = f" of {workload}" if workload else ""
            raise UsageError(f"the store {self.folder} holds no records{kind} yet; 'trainmark run' makes one")
        if os.sep not in word and not word.startswith(".") and _is_file(self.path(word)):
            return self.path(word)
        if _is_file(Path(word)):
            return Path(word)
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"there is no record file {word}")
        if match := _find_only_match(word, self.run_ids()):
            return self.path(match)
        if folder := _find_only_match(word, self._folder_names()):
            raise UsageError(
                f"run {folder} has no record: it still runs, or ended too early; its folder is {self.runs / folder}"
            )
        newest = self.rows(limit=500)
        hint = _suggest(word, [row.run_id for row in newest]) if newest else "it holds no records yet"
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def run_folder(self, word: str | None = None, *, of_group: bool = False) -> Path:
        """The folder a run worked in, by the same words as its record, whether or not it left one; with `of_group` also
        that of the newest run of a group."""
        if word and not _is_newest(word) and (match := _find_only_match(word, self._folder_names())):
            return self.runs / match
        workload = _newest_of(word)
        newest = [folder for folder in self.newest_folders() if workload in (None, make_folder_row(folder).workload)]
        if not newest:
            kind = f" of {workload}" if workload else ""
            raise UsageError(f"the store {self.folder} holds no runs{kind} yet; 'trainmark run' makes one")
        if not word or _is_newest(word):
            return newest[0]
        if of_group and len(word) >= SHORTEST_GROUP:
            wanted = RunFilter(group=word)
            if repeats := [folder for folder in newest if wanted.fits(make_folder_row(folder))]:
                return repeats[0]
        hint = _suggest(word, [folder.name for folder in newest])
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def find_run_ids(self, word: str) -> list[str]:
        """The ids of the runs in this store that a word means, with a record or without: one, or those of a group."""
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"{word} is a path; name runs of the store {self.folder} by their ids")
        if _is_newest(word):
            return [self.find(word).stem]
        if match := _find_only_match(word, {*self.run_ids(), *self._folder_names()}):
            return [match]
        contents = self.contents(RunFilter(group=word)) if len(word) >= SHORTEST_GROUP else None
        rows = [*contents.rows, *contents.unrecorded] if contents else []
        if not rows:
            raise UsageError(f"no run {word!r} in the store {self.folder}; 'trainmark runs' lists them")
        if len(groups := {row.group for row in rows}) > 1:
            raise UsageError(
                f"{word!r} could be any of {len(groups)} groups: {', '.join(sorted(map(str, groups))[:5])}"
            )
        return [row.run_id for row in rows]

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

    @contextlib.contextmanager
    def _explain_folder_errors(self) -> Iterator[None]:
        """A folder that is not there holds nothing; one that cannot be read is a sentence."""
        try:
            yield
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be read: {error.strerror}; {_ELSEWHERE}") from error

    def _folder_names(self) -> list[str]:
        try:
            with os.scandir(self.runs) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except OSError:
            return []

    def _list(self, index: StoreIndex, wanted: RunFilter, limit: int | None, *, count_all: bool = True) -> _Listing:
        """Reads the files that are new or were damaged, and checks each file whose row it gives.

        Records are never rewritten, so nobody looks at 50,000 files for the sake of twenty rows."""
        files = self._file_names()
        known = index.names()
        index.forget(known - files)
        index.put([(name, self._read_entry(name)) for name in files - known])
        changed = {
            name: self._read_entry(name) for name, entry in index.list_damaged() if self._stat(name) != entry[:2]
        }
        index.put(changed.items())
        rows: list[StoreRow] = []
        changed, count = {}, 0
        for name, entry in index.newest():
            if limit is not None and len(rows) >= limit:
                if wanted == RunFilter() or not count_all:
                    break
                count += entry.row is not None and wanted.fits(entry.row)
                continue
            if entry.row is None or not wanted.fits(entry.row):
                continue
            if self._stat(name) != entry[:2]:
                entry = changed[name] = self._read_entry(name)
            if entry.row is not None and wanted.fits(entry.row):
                rows.append(entry.row)
        index.put(changed.items())
        return _Listing(
            rows=sort_newest_first(rows),
            count=index.count() if wanted == RunFilter() else len(rows) + count,
            damaged=[(name, str(entry.problem)) for name, entry in index.list_damaged()],
            files=files,
        )

    def _stat(self, name: str) -> tuple[int, int]:
        """The size of a record file, and when it was changed in nanoseconds; of one that is gone, nothing like it."""
        try:
            status = (self.records / name).stat()
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def _read_entry(self, name: str) -> IndexEntry:
        path, status = self.records / name, self._stat(name)
        try:
            row = make_row(read_record(path))
        except UsageError as error:
            return IndexEntry(*status, None, str(error).removeprefix(f"record file {path} "))
        except Exception as error:  # whatever one file does to us, the others are listed
            return IndexEntry(*status, None, f"cannot be read here: {type(error).__name__}: {error}")
        if f"{row.run_id}.json" != name:
            return IndexEntry(*status, None, f"holds run {row.run_id}, so it must be named {row.run_id}.json")
        return IndexEntry(*status, row)


def read_record(path: Path) -> Record:
    """The record in a file, or a sentence that names the file and what is wrong with it."""
    from trainmark.record.record import Record, parse

    try:
        return Record.from_json(parse(path.read_bytes()), series_reader(path))
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    except TrainmarkError as error:
        reason = str(error).removeprefix("this record is damaged: ")
        raise UsageError(f"record file {path} is damaged: {reason}") from error


def series_reader(path: Path) -> Callable[[SeriesFile], StepSeries]:
    """Reads the series that a record in this file leaves to another file."""
    from trainmark.record import series

    def read(expected: SeriesFile) -> StepSeries:
        if not (expected.name.endswith(series.ENDING) and _RUN_ID.fullmatch(expected.name)):
            raise ValueError("it has no name of such a file")
        return series.read(path.parent / expected.name, expected)

    return read


def _shorten_names(shown: list[str], run_ids: set[str]) -> dict[str, str]:
    """Of each run shown the last part of its id, or all of it where another of the runs has that part too."""
    ends = Counter(run_id.rpartition("-")[2] for run_id in run_ids)
    return {run_id: run_id if ends[end := run_id.rpartition("-")[2]] > 1 else end for run_id in shown}


def _is_newest(word: str) -> bool:
    """`last`, or `last-WORKLOAD`; run ids begin with a workload's name, which cannot be `last`."""
    return word == LAST or word.startswith(f"{LAST}-")


def _newest_of(word: str | None) -> str | None:
    """The workload whose newest run is meant; None for any."""
    return (word or "").partition("-")[2] or None if word and _is_newest(word) else None


def _is_record_name(name: str) -> bool:
    """Names that begin with a dot are not finished; those that are no text of any encoding cannot be told of."""
    return (
        name.endswith(".json")
        and name[0] != "."
        and (name.isascii() or os.fsencode(name) == name.encode("utf-8", "replace"))
    )


def _find_only_match(word: str, names: Iterable[str]) -> str | None:
    """The one name that is the word, or begins or ends with it, or whose last part, by which lists call it, begins with
    it; None if there is none."""
    matches = sorted(
        name
        for name in names
        if name.startswith(word) or name.endswith(word) or name.rpartition("-")[2].startswith(word)
    )
    if word in matches:
        return word
    if len(matches) > 1:
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} runs: {shown}")
    return matches[0] if matches else None


def _suggest(word: str, newest: list[str]) -> str:
    close = difflib.get_close_matches(word, newest[:500], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the newest is {newest[0]!r}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word too long or too odd to be a path is no path
        return False
