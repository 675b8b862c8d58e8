"""Stores one JSON file per run, never overwritten, and a disposable index of them."""

from __future__ import annotations

import contextlib
import difflib
import errno
import itertools
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trainmark.record import escape
from trainmark.record.atomic_files import UNFINISHED, write_atomic, write_once
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError
from trainmark.record.foreign_files import MAX_RECORD_BYTES, read_plain
from trainmark.record.index import (
    NO_RECORD,
    RunFilter,
    StoreIndex,
    StoreRow,
    make_folder_row,
    make_row,
    sort_newest_first,
)
from trainmark.record.published_row import PREFIX

if TYPE_CHECKING:  # a listing comes from the index alone, and numpy would be most of its time
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.record import Record
    from trainmark.record.timeline import SeriesFile, StepSeries


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be compared, audited or reported on: a run, repeats of one plan, or a published row."""

    word: str
    label: str
    """Its name in a sentence; untrusted, so escape it where it is shown."""
    records: tuple[Record, ...] = ()
    """One, or the repeats of one plan; none for a published row."""
    row: PublishedRow | None = None


def find_runs(word: str, store: Store) -> Subject:
    """The runs an argument names; UsageError suggests what it could have meant.

    It is a run's id or its start or end, `last`, a record file, the id of a group of repeats or its start, or several,
    joined by commas.
    """
    if word.startswith(PREFIX):
        raise UsageError(f"{word!r} is a published row, and only runs can stand here; name a run or a group")
    if "," in word and not Path(word).is_file():
        parts = [find_runs(part.strip(), store) for part in word.split(",") if part.strip()]
        return make_subject(word, [record for part in parts for record in part.records])
    if word.lower().endswith((".md", ".markdown")):
        raise UsageError(f"{word} is a page, not a record; 'trainmark import {word}' imports its rows, then name one")
    if word.endswith(".json") or os.sep in word:
        return make_subject(word, _read_records(Path(word).expanduser()))
    try:
        path = store.find(word)
    except UsageError:
        if repeats := find_group(word, store):
            return make_subject(word, repeats, label=f"group {repeats[0].group} ({len(repeats)} runs)")
        raise
    return make_subject(word, _read_records(path))


def find_records(words: Iterable[str], store: Store) -> list[Record]:
    """All runs the arguments name, each once."""
    found = {record.run_id: record for word in words for record in find_runs(word, store).records}
    return list(found.values())


def make_subject(word: str, records: Sequence[Record], *, label: str | None = None) -> Subject:
    """Records as one subject: one run, or repeats of one plan; duplicates count once."""
    unique = tuple({record.run_id: record for record in records}.values())
    if not unique:
        raise UsageError(f"{word!r} names no run; give a run id, a record file or a group")
    if len(unique) == 1:
        return Subject(word=word, label=f"run {unique[0].run_id}", records=unique)
    first = unique[0]
    for other in unique[1:]:
        if other.plan.fingerprint != first.plan.fingerprint:
            raise UsageError(
                f"runs {first.run_id} and {other.run_id} of {word!r} are not repeats of one plan; "
                "name runs of the same plan, or one run"
            )
    named = _list_some([record.run_id.rpartition("-")[2] for record in unique], 4)
    return Subject(word=word, label=label or f"runs {named}", records=unique)


def _list_some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read_records(path: Path) -> list[Record]:
    """The records of a file: one, or those that `run --json` prints of several."""
    from trainmark.record.record import Record, list_repeats, parse

    with _explain_damage(path):
        document = list_repeats(parse(read_plain(path, MAX_RECORD_BYTES)))
        if isinstance(document, list):
            return [Record.from_json(each) for each in document]
        return [Record.from_json(document, series_reader(path))]


def find_group(word: str, store: Store) -> list[Record]:
    """The records of a group, by its id or the start of it; empty where there is none."""
    rows = [row for row in reversed(store.group_rows(word)) if row.status != NO_RECORD]
    return [read_record(store.path(row.run_id)) for row in rows]


LAST = "last"
"""Names the newest run; `last-WORKLOAD` the newest of a workload."""
SHORTEST_GROUP = 4
"""Fewer letters are more likely a typo of a run id."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "choose another folder with --store or TRAINMARK_STORE"


@dataclass(frozen=True, kw_only=True)
class Damaged:
    path: Path
    reason: str

    def __str__(self) -> str:
        return escape.terminal(f"record file {self.path} is left out: it {self.reason}")


@dataclass(frozen=True, kw_only=True)
class StoreContents:
    rows: list[StoreRow]
    """Its records, newest first."""
    damaged: list[Damaged]
    unrecorded: list[StoreRow]
    """Run folders without a record, newest first: still running, or ended before a record could be written."""
    count: int
    """Matching records, including those beyond the limit."""
    names: Mapping[str, str]
    """Unique short names of these runs: the last part of the id, or all of it."""


def default_folder() -> Path:
    """$TRAINMARK_STORE, else trainmark's folder among the user's data."""
    if chosen := os.environ.get("TRAINMARK_STORE"):
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # the XDG specification ignores a relative one
        return Path(data) / "trainmark"
    try:
        return Path.home() / ".local" / "share" / "trainmark"
    except RuntimeError:
        raise NotReadyError(
            "this user has no home folder to keep records in; set TRAINMARK_STORE to a folder"
        ) from None


class Store:
    """A folder of records; the index only caches what lists show of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "records"
        self.runs = folder / "runs"
        self.samples = folder / "samples"
        """Samples made after a run, one folder per run."""
        self.index = folder / "index.msgpack"

    def path(self, run_id: str) -> Path:
        return self.records / f"{run_id}.json"

    def add(self, record: Record) -> Path:
        """Saves a record: synced to disk, never in place of another."""
        if not _RUN_ID.fullmatch(record.run_id):
            raise UsageError(f"run id {record.run_id!r} cannot name a file; use letters, digits, '.', '_' and '-'")
        path = self.path(record.run_id)
        text = record.dumps()
        with self._explain_folder("made"):
            self.records.mkdir(parents=True, exist_ok=True)
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
        return path

    def _add_series(self, record: Record) -> None:
        """Writes the series file of a long run, before the record that names it."""
        from trainmark.record import timeline

        if record.series_file is None or record.means_only:
            return
        if self.path(record.run_id).exists():
            raise FileExistsError
        write_atomic(self.records / record.series_file.name, timeline.pack_series(record.steps), synced=True)

    def check_writable(self) -> None:
        """Raises before training, rather than after it, if a record could not be saved."""
        with self._explain_folder("made"):
            self.records.mkdir(parents=True, exist_ok=True)
        probe = self.records / f".{secrets.token_hex(8)}{UNFINISHED}"
        with self._explain_folder("written"):
            write_atomic(probe, b"\0" * 4096, synced=True)
            probe.unlink()

    def rows(self, wanted: RunFilter | None = None, *, limit: int | None = None) -> list[StoreRow]:
        """Rows of the records, newest first; damaged files are only in `contents`."""
        return self._list(self._file_names(), wanted or RunFilter(), limit, count_all=False)[0]

    def contents(self, wanted: RunFilter | None = None, *, limit: int | None = None) -> StoreContents:
        """The contents of the folder, filtered and limited."""
        folders, files = self._folder_names(), self._file_names()
        rows, damaged, count = self._list(files, wanted or RunFilter(), limit)
        left = [name for name in folders if f"{name}.json" not in files]
        unrecorded = sort_newest_first(make_folder_row(self.runs / name) for name in left)
        shown = [*(row.run_id for row in rows), *left]
        return StoreContents(
            rows=rows,
            count=count,
            damaged=damaged,
            unrecorded=[row for row in unrecorded if wanted is None or wanted.fits(row)],
            names=_shorten_names(shown, {*left, *(name.removesuffix(".json") for name in files)}),
        )

    def run_ids(self) -> list[str]:
        """The ids of all record files, unordered; a file may be damaged."""
        return [name.removesuffix(".json") for name in self._file_names()]

    def _file_names(self) -> set[str]:
        names: list[str] = []
        with self._explain_folder("read"), contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.records)  # noqa: PTH208 - a Path for each of many thousand names is slow
        return {name for name in names if _is_record_name(name)}

    def find(self, word: str | None = None) -> Path:
        """The record file of a run id, a unique start or end of one, a path, `last-WORKLOAD`; by default the newest."""
        workload = _parse_newest(word)
        if not word or workload is not None:
            # prefer a run with results to one that failed before its first step
            for wanted in (RunFilter(workload=workload or None, measured=True), RunFilter(workload=workload or None)):
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

    def run_folder(self, word: str | None = None) -> Path:
        """The folder of a run, named like its record, whether or not it left one; or of a group's newest run."""
        workload = _parse_newest(word)
        if word and workload is None and (match := _find_only_match(word, self._folder_names())):
            return self.runs / match
        newest = self.newest_folders()
        if workload:
            newest = [folder for folder in newest if make_folder_row(folder).workload == workload]
        if not newest:
            kind = f" of {workload}" if workload else ""
            raise UsageError(f"the store {self.folder} holds no runs{kind} yet; 'trainmark run' makes one")
        if not word or workload is not None:
            return newest[0]
        for row in self.group_rows(word):
            if (self.runs / row.run_id).is_dir():
                return self.runs / row.run_id
        hint = _suggest(word, [folder.name for folder in newest])
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def find_run_ids(self, word: str) -> list[str]:
        """The ids of the runs that an argument names, with or without a record: one, or those of a group."""
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"{word} is a path; name runs of the store {self.folder} by their ids")
        if _parse_newest(word) is not None:
            return [self.find(word).stem]
        if match := _find_only_match(word, {*self.run_ids(), *self._folder_names()}):
            return [match]
        rows = self.group_rows(word)
        if not rows:
            raise UsageError(f"no run {word!r} in the store {self.folder}; 'trainmark runs' lists them")
        return [row.run_id for row in rows]

    def group_rows(self, word: str) -> list[StoreRow]:
        """The runs of a group, by its id or the start of it, newest first, with or without a record."""
        if len(word) < SHORTEST_GROUP:
            return []
        contents = self.contents(RunFilter(group=word))
        rows = sort_newest_first([*contents.rows, *contents.unrecorded])
        rows = [row for row in rows if row.group == word] or rows
        if len(groups := sorted({str(row.group) for row in rows})) > 1:
            raise UsageError(f"{word!r} could be any of {len(groups)} groups: {', '.join(groups[:5])}")
        return rows

    def newest_folders(self) -> list[Path]:
        """Run folders, last modified first."""
        touched: list[tuple[float, str]] = []
        for name in self._folder_names():
            with contextlib.suppress(OSError):
                touched.append(((self.runs / name).stat().st_mtime, name))
        return [self.runs / name for _, name in sorted(touched, reverse=True)]

    def record(self, word: str | None = None) -> Record:
        return read_record(self.find(word))

    @contextlib.contextmanager
    def _explain_folder(self, done: str) -> Iterator[None]:
        """Raises NotReadyError where the store's folder is none, or something cannot be done with it."""
        try:
            yield
        except (FileExistsError, NotADirectoryError):
            raise NotReadyError(f"the store {self.folder} is a file, not a folder; {_ELSEWHERE}") from None
        except OSError as error:
            raise NotReadyError(f"the store {self.folder} cannot be {done}: {error.strerror}; {_ELSEWHERE}") from error

    def _folder_names(self) -> list[str]:
        try:
            with os.scandir(self.runs) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except OSError:
            return []

    def _list(
        self, files: Set[str], wanted: RunFilter, limit: int | None, *, count_all: bool = True, anew: bool = False
    ) -> tuple[list[StoreRow], list[Damaged], int]:
        """The newest rows that fit, damaged files, and how many rows fit in all; reads only files that the index does
        not know, as records are never rewritten."""
        index = StoreIndex(self.index, anew=anew)
        found = {name: self._read_row(name) for name in sorted(files - index.names())}
        new, gone = [row for row in found.values() if isinstance(row, StoreRow)], index.names() - files
        if new or gone:
            index.update(new, gone)
        damaged = [Damaged(path=self.records / name, reason=why) for name, why in found.items() if isinstance(why, str)]
        fitting = filter(wanted.fits, index.rows())
        try:
            rows = list(itertools.islice(fitting, limit))
            if wanted == RunFilter():
                return rows, damaged, len(files) - len(damaged)
            return rows, damaged, len(rows) + (sum(1 for _ in fitting) if count_all else 0)
        except msgspec.MsgspecError:
            return self._list(files, wanted, limit, count_all=count_all, anew=True)

    def _read_row(self, name: str) -> StoreRow | str:
        """The row of a record file, or why it is no record."""
        path = self.records / name
        try:
            row = make_row(read_record(path))
        except UsageError as error:
            return str(error).removeprefix(f"record file {path} ")
        except Exception as error:  # one bad file must not hide the others
            return f"cannot be read here: {type(error).__name__}: {error}"
        return row if f"{row.run_id}.json" == name else f"holds run {row.run_id}, so it must be named {row.run_id}.json"


def read_record(path: Path) -> Record:
    """The record in a file; UsageError names the file and the problem."""
    from trainmark.record.record import Record, parse

    with _explain_damage(path):
        return Record.from_json(parse(read_plain(path, MAX_RECORD_BYTES)), series_reader(path))


@contextlib.contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    except TrainmarkError as error:
        reason = str(error).removeprefix("this record is damaged: ")
        raise UsageError(f"record file {path} is damaged: {reason}") from error


def series_reader(path: Path) -> Callable[[SeriesFile], StepSeries]:
    """Reads the series files of the record in this file."""
    from trainmark.record import timeline

    def read(expected: SeriesFile) -> StepSeries:
        if not (expected.name.endswith(timeline.ENDING) and _RUN_ID.fullmatch(expected.name)):
            raise ValueError("its name is not that of a series file")
        return timeline.read_series(path.parent / expected.name, expected)

    return read


def _shorten_names(shown: list[str], run_ids: set[str]) -> dict[str, str]:
    """For each run shown, the last part of its id, or all of it where that is ambiguous."""
    ends = Counter(run_id.rpartition("-")[2] for run_id in run_ids)
    return {run_id: run_id if ends[end := run_id.rpartition("-")[2]] > 1 else end for run_id in shown}


def _parse_newest(word: str | None) -> str | None:
    """Of `last` and of no word an empty text, of `last-WORKLOAD` the workload; None of another word. Run ids begin with
    a workload's name, which cannot be `last`."""
    first, _, workload = (word or LAST).partition("-")
    return workload if first == LAST else None


def _is_record_name(name: str) -> bool:
    """Excludes unfinished files, which begin with a dot, and names that are not valid UTF-8."""
    return (
        name.endswith(".json")
        and name[0] != "."
        and (name.isascii() or os.fsencode(name) == name.encode("utf-8", "replace"))
    )


def _find_only_match(word: str, names: Iterable[str]) -> str | None:
    """The only name that equals the word, or starts or ends with it, or whose last part starts with it; else None."""
    matches = sorted(
        name
        for name in names
        if name.startswith(word) or name.endswith(word) or name.rpartition("-")[2].startswith(word)
    )
    if word in matches:
        return word
    if len(matches) > 1:
        raise UsageError(f"{word!r} could be any of {len(matches)} runs: {_list_some(matches, 5)}")
    return matches[0] if matches else None


def _suggest(word: str, newest: list[str]) -> str:
    close = difflib.get_close_matches(word, newest[:500], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the newest is {newest[0]!r}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long or too odd to be a path
        return False
