"""Keeps one JSON file a run, never overwritten, and an index of them that can be thrown away at any time."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.spec import endings
from trainmark.spec.errors import NotReadyError, TrainmarkError, UsageError, WorkloadError
from trainmark.spec.labels import tag_words
from trainmark.spec.whole_files import UNFINISHED, write_once, write_whole

if TYPE_CHECKING:  # a listing comes from the index alone, and numpy would be most of its time
    from trainmark.spec.record import Record
    from trainmark.spec.series import SeriesFile, StepSeries
    from trainmark.store.newest import Newest

SWEEP_AFTER_S = 24 * 3600
LAST = "last"
"""The word for the newest run; `last-WORKLOAD` is the newest of a workload."""
SHORTEST_GROUP = 4
"""Fewer letters of a group's id would rather be a slip in a run's."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "choose another folder with --store or TRAINMARK_STORE"


class StoreRow(NamedTuple):
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
    tags: tuple[str, ...] = ()
    """What the user said to find it by, each as `key=value`."""
    reached: bool = False
    """The target, by any evaluation."""
    began: bool = False
    """Every rank finished a step."""
    interrupted: bool = False
    """Somebody ended an incomplete run by a signal."""
    host: str = ""
    """Where it ran; several are joined by commas."""


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A file among the records that cannot be read as one."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"record file {self.path} is left out: it {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which runs are asked for; what is None is not asked."""

    workload: str | None = None
    group: str | None = None
    """Its id, or how that begins."""
    tags: tuple[str, ...] = ()
    """A run has them all, each as `key=value`."""
    since: datetime | None = None
    """It was created then or later."""

    def fits(self, row: StoreRow) -> bool:
        return (
            self.workload in (None, row.workload)
            and (self.group is None or (row.group or "").startswith(self.group))
            and (not self.tags or {*self.tags} <= {*row.tags})
            and (self.since is None or instant(row.created) >= self.since.timestamp())
        )


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


class _Entry(NamedTuple):
    """What the index remembers of a file, and how the file looked when it was read."""

    size: int
    mtime_ns: int
    row: StoreRow | None
    problem: str | None = None
    """Why the file is not a record."""


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
        self.index = folder / "index.jsonl"
        self.newest = folder / "newest.json"

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
        with contextlib.suppress(OSError, ValueError):
            status = path.stat()
            self._remember({path.name: _Entry(status.st_size, status.st_mtime_ns, row_of(record))})
        return path

    def _add_series(self, record: Record) -> None:
        """The file of a long run's series, before the record that names it; one without a record is nobody's."""
        from trainmark.spec import series

        if record.series_file is None or record.means_only:
            return
        if self.path(record.run_id).exists():
            raise FileExistsError
        write_whole(self.records / record.series_file.name, series.packed(record.steps), synced=True)

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

    def rows(
        self,
        *,
        limit: int | None = None,
        workload: str | None = None,
        platform: str | None = None,
        status: str | None = None,
        fingerprint: str | None = None,
        group: str | None = None,
    ) -> list[StoreRow]:
        """What lists show of each record, newest first; a damaged file is left out here and named in `contents`."""
        wanted = {
            "workload": workload,
            "platform": platform,
            "status": status,
            "fingerprint": fingerprint,
            "group": group,
        }
        asked = {name: value for name, value in wanted.items() if value is not None}
        found = (entry.row for entry in self._entries().values() if entry.row)
        return newest_first(row for row in found if all(getattr(row, name) == asked[name] for name in asked))[:limit]

    def contents(self, wanted: Wanted | None = None, *, limit: int | None = None) -> StoreContents:
        """All that the folder holds, or at most so many of the runs that are wanted."""
        from trainmark.store import newest

        kept = None
        if may_be_kept := wanted in (None, Wanted()) and limit is not None and limit <= newest.KEPT_ROWS:
            kept = newest.read(self.newest, self.records, self.runs)
        if kept is None:
            kept = self._newest(wanted or Wanted(), limit, keep=may_be_kept)
        unrecorded = newest_first(folder_row(self.runs / name) for name in kept.unrecorded)
        return StoreContents(
            rows=kept.rows[:limit],
            count=kept.count,
            damaged=[Damaged(path=self.records / name, reason=reason) for name, reason in kept.damaged],
            unrecorded=[row for row in unrecorded if wanted is None or wanted.fits(row)],
            names=kept.names,
        )

    def _newest(self, wanted: Wanted, limit: int | None, *, keep: bool) -> Newest:
        """From the index and the records; of a large store it may be kept for the next time."""
        from trainmark.store import newest

        looks = newest.look(self.records), newest.look(self.runs)
        entries, folders = self._entries(), self._folder_names()
        rows = newest_first(entry.row for entry in entries.values() if entry.row and wanted.fits(entry.row))
        run_ids = {name.removesuffix(".json") for name in entries}
        left = [name for name in folders if name not in run_ids]
        shown = rows if limit is None else rows[: max(limit, newest.KEPT_ROWS)]
        damaged = sorted((name, entry.problem) for name, entry in entries.items() if entry.problem is not None)
        named = [*(f"{row.run_id}.json" for row in shown), *(name for name, _ in damaged)]
        found = newest.Newest(
            fields=StoreRow._fields,
            folders=looks,
            files={name: (entries[name].size, entries[name].mtime_ns) for name in named},
            rows=shown,
            count=len(rows),
            damaged=damaged,
            unrecorded=left,
            names=_short_names([*(row.run_id for row in shown), *left], run_ids.union(left)),
        )
        if keep and len(entries) >= newest.FEWEST_RECORDS and newest.settled(looks):
            newest.write(self.newest, found)
        return found

    def rebuild(self) -> int:
        """Forgets the index and reads every record again; says how many there are."""
        with contextlib.suppress(OSError):
            self.newest.unlink(missing_ok=True)
        return sum(entry.row is not None for entry in self._entries(anew=True).values())

    def run_ids(self) -> list[str]:
        """Of every record file, in no order; the file may prove to be damaged."""
        names: list[str] = []
        with self._explaining_folder():
            names = os.listdir(self.records)  # noqa: PTH208 - a Path for each of many thousand names takes its time
        return [name.removesuffix(".json") for name in names if _names_record(name)]

    def find(self, word: str | None = None) -> Path:
        """The record file meant by a run id, the unique beginning or end of one, a path, `last-WORKLOAD` for the newest
        of a workload, or nothing for the newest of all."""
        if not word or _is_newest(word):
            newest = self.rows(workload=_newest_of(word))
            if not newest:
                kind = f" of {_newest_of(word)}" if _newest_of(word) else ""
                raise UsageError(f"the store {self.folder} holds no records{kind} yet; 'trainmark run' makes one")
            # a run that failed before its first step is named where it is asked for, and hides no result
            measured = (row for row in newest if row.began or row.status == "valid")
            return self.path(next(measured, newest[0]).run_id)
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

    def run_folder(self, word: str | None = None, *, of_group: bool = False) -> Path:
        """The folder a run worked in, by the same words as its record, whether or not it left one; with `of_group` also
        that of the newest run of a group."""
        if word and not _is_newest(word) and (match := _only_match(word, self._folder_names())):
            return self.runs / match
        workload = _newest_of(word)
        newest = [folder for folder in self.newest_folders() if workload in (None, folder_row(folder).workload)]
        if not newest:
            kind = f" of {workload}" if workload else ""
            raise UsageError(f"the store {self.folder} holds no runs{kind} yet; 'trainmark run' makes one")
        if not word or _is_newest(word):
            return newest[0]
        if of_group and len(word) >= SHORTEST_GROUP:
            wanted = Wanted(group=word)
            if repeats := [folder for folder in newest if wanted.fits(folder_row(folder))]:
                return repeats[0]
        hint = _nearest(word, [folder.name for folder in newest])
        raise UsageError(f"no run {word!r} in the store {self.folder}; {hint}")

    def named(self, word: str) -> list[str]:
        """The ids of the runs in this store that a word means, with a record or without: one, or those of a group."""
        if os.sep in word or word.endswith(".json"):
            raise UsageError(f"{word} is a path; name runs of the store {self.folder} by their ids")
        if _is_newest(word):
            return [self.find(word).stem]
        if match := _only_match(word, {*self.run_ids(), *self._folder_names()}):
            return [match]
        contents = self.contents(Wanted(group=word)) if len(word) >= SHORTEST_GROUP else None
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

    def _folder_names(self) -> list[str]:
        try:
            with os.scandir(self.runs) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except OSError:
            return []

    def _entries(self, *, anew: bool = False) -> dict[str, _Entry]:
        """Every record file: as the index remembers it, or read now where it has changed since."""
        known = {} if anew else self._remembered()
        found: dict[str, _Entry] = {}
        fresh: dict[str, _Entry] = {}
        for name, size, mtime_ns in self._listing():
            entry = known.get(name)
            if entry is None or (entry.size, entry.mtime_ns) != (size, mtime_ns):
                entry = fresh[name] = self._read_entry(name, size, mtime_ns)
            found[name] = entry
        with contextlib.suppress(OSError):  # a store that is full or not ours is only slower to list
            if anew or not known:
                self._remember(found, anew=True)
            elif fresh:
                self._remember(fresh)
        return found

    def _listing(self) -> list[tuple[str, int, int]]:
        """Every record file with its size, and when it was changed in nanoseconds."""
        found: list[tuple[str, int, int]] = []
        with self._explaining_folder(), os.scandir(self.records) as entries:
            for entry in entries:
                if _names_record(entry.name):
                    try:
                        status = entry.stat()
                    except FileNotFoundError:  # taken away while we look
                        continue
                    found.append((entry.name, status.st_size, status.st_mtime_ns))
        return found

    def _remembered(self) -> dict[str, _Entry]:
        """The index, a line a file, of which the last counts; what cannot be read of it is read from the records."""
        import msgspec

        index_line = msgspec.json.Decoder(tuple[str, int, int, StoreRow | None, str | None])
        found: dict[str, _Entry] = {}
        with contextlib.suppress(OSError):
            lines = self.index.read_bytes().splitlines()
            for line in lines[1:] if lines[:1] == [_INDEX_HEAD] else []:
                try:
                    name, *entry = index_line.decode(line)
                except (ValueError, RecursionError):
                    continue
                found[name] = _Entry._make(entry)
        return found

    def _remember(self, entries: Mapping[str, _Entry], *, anew: bool = False) -> None:
        """Appends to the index in one write, so that several may do so at once; a line that is torn does no harm."""
        lines = b"".join(json.dumps((name, *entry)).encode() + b"\n" for name, entry in entries.items())
        if anew:
            if self.records.is_dir():
                write_whole(self.index, _INDEX_HEAD + b"\n" + lines)
            return
        with self.index.open("ab", buffering=0) as stream:
            stream.write((b"\n" if stream.tell() else _INDEX_HEAD + b"\n") + lines)

    def _read_entry(self, name: str, size: int, mtime_ns: int) -> _Entry:
        path = self.records / name
        try:
            row = read_row(path)
        except UsageError as error:
            return _Entry(size, mtime_ns, None, str(error).removeprefix(f"record file {path} "))
        except Exception as error:  # whatever one file does to us, the others are listed
            return _Entry(size, mtime_ns, None, f"cannot be read here: {type(error).__name__}: {error}")
        if f"{row.run_id}.json" != name:
            problem = f"holds run {row.run_id}, so it must be named {row.run_id}.json"
            return _Entry(size, mtime_ns, None, problem)
        return _Entry(size, mtime_ns, row)


_INDEX_HEAD = json.dumps(StoreRow._fields).encode()
"""The first line of an index of this version; another's is made anew."""


def read_record(path: Path) -> Record:
    """The record in a file, or a sentence that names the file and what is wrong with it."""
    from trainmark.spec.record import Record, parse

    try:
        return Record.from_json(parse(path.read_bytes()), series_beside(path))
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    except TrainmarkError as error:
        reason = str(error).removeprefix("this record is damaged: ")
        raise UsageError(f"record file {path} is damaged: {reason}") from error


def series_beside(path: Path) -> Callable[[SeriesFile], StepSeries]:
    """Reads the series that a record in this file leaves to another file."""
    from trainmark.spec import series

    def read(said: SeriesFile) -> StepSeries:
        if not (said.name.endswith(series.ENDING) and _RUN_ID.fullmatch(said.name)):
            raise ValueError("it has no name of such a file")
        return series.read(path.parent / said.name, said)

    return read


def read_row(path: Path) -> StoreRow:
    """What lists show of the record in a file, of which nothing else is looked at; UsageError where it is damaged."""
    from trainmark.store.skim import skim

    try:
        row = skim(path.read_bytes())
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    return row or row_of(read_record(path))


def newest_first(rows: Iterable[StoreRow]) -> list[StoreRow]:
    return sorted(rows, key=lambda row: (instant(row.created), row.run_id), reverse=True)


def instant(created: str) -> float:
    """Seconds by which moments are ordered, whatever zone they are written in; 0 for what is no moment."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def row_of(record: Record) -> StoreRow:
    p_core = record.metrics.get("p_core")
    return StoreRow(
        run_id=record.run_id,
        created=record.created,
        status=record.status,
        workload=record.plan.workload,
        recipe=record.plan.recipe_name,
        topology=record.plan.topology,
        precision=record.precision,
        platform=record.plan.platform_word,
        device=record.environment.device.name,
        p_core=p_core.value if p_core else None,
        unit=p_core.unit if p_core else "",
        quality_name=record.quality.name,
        quality=record.quality.value,
        quality_unit=record.quality.unit,
        doubts=len(record.doubts),
        fingerprint=record.plan.fingerprint,
        group=record.group,
        tags=tag_words(record.tags),
        reached=record.quality.reached,
        began=record.timeline.steps > 0,
        interrupted=record.status == "incomplete" and endings.by_signal(record.ended),
        host=", ".join(record.hosts),
    )


def folder_row(folder: Path) -> StoreRow:
    """What can be said of a run that left no record: when its folder was last touched, and what its plan asked for."""
    try:
        touched = datetime.fromtimestamp(folder.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError:
        touched = ""
    asked, head = _document(folder / "plan.json"), _document(folder / "run.json")
    tags = head.get("tags")
    return StoreRow(
        run_id=folder.name,
        created=touched,
        status="no record",
        workload=str(asked.get("workload", "")),
        recipe=str(asked.get("recipe_name", "")),
        topology=str(asked.get("topology", "")),
        precision=str(asked.get("precision", "")),
        platform=str(asked.get("platform", "")),
        fingerprint=str(asked.get("fingerprint", "")),
        group=str(head.get("group") or "") or None,
        tags=tag_words({str(key): str(value) for key, value in tags.items()}) if isinstance(tags, dict) else (),
    )


def _document(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def _short_names(shown: list[str], run_ids: set[str]) -> dict[str, str]:
    """Of each run shown the last part of its id, or all of it where another of the runs has that part too."""
    ends = Counter(run_id.rpartition("-")[2] for run_id in run_ids)
    return {run_id: run_id if ends[end := run_id.rpartition("-")[2]] > 1 else end for run_id in shown}


def _is_newest(word: str) -> bool:
    """`last`, or `last-WORKLOAD`; run ids begin with a workload's name, which cannot be `last`."""
    return word == LAST or word.startswith(f"{LAST}-")


def _newest_of(word: str | None) -> str | None:
    """The workload whose newest run is meant; None for any."""
    return (word or "").partition("-")[2] or None if word and _is_newest(word) else None


def _names_record(name: str) -> bool:
    """Names that begin with a dot are not finished; those that are no text of any encoding cannot be told of."""
    return (
        name.endswith(".json")
        and name[0] != "."
        and (name.isascii() or os.fsencode(name) == name.encode("utf-8", "replace"))
    )


def _only_match(word: str, names: Iterable[str]) -> str | None:
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


def _nearest(word: str, newest: list[str]) -> str:
    close = difflib.get_close_matches(word, newest[:500], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the newest is {newest[0]!r}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word too long or too odd to be a path is no path
        return False
