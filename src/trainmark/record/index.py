"""What lists show of each record file, in a file that may be deleted at any time."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trainmark.record import endings
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import UsageError
from trainmark.record.foreign_files import read_plain

if TYPE_CHECKING:  # a listing needs only the index; importing numpy would take most of its time
    from trainmark.record.record import Record


NO_RECORD = "no record"


class StoreRow(NamedTuple):
    """What lists show of a run."""

    run_id: str
    created: str
    status: str
    """The record's word, or `NO_RECORD` for a run folder whose run left none."""
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
    reached: bool = False
    """Whether any evaluation reached the target."""
    began: bool = False
    """Every rank finished a step."""
    interrupted: bool = False
    host: str = ""
    """Where it ran; several are joined by commas."""


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Selects runs; a field that is None selects all."""

    workload: str | None = None
    group: str | None = None
    """Its id or the start of it."""
    tags: tuple[str, ...] = ()
    """All of them must match, each as `key=value`."""
    since: datetime | None = None
    """Created then or later."""
    measured: bool = False
    """Valid, or every rank finished a step."""

    def fits(self, row: StoreRow) -> bool:
        return (
            self.workload in (None, row.workload)
            and (self.group is None or (row.group or "").startswith(self.group))
            and (not self.tags or {*self.tags} <= {*row.tags})
            and (not self.measured or row.began or row.status == "valid")
            and (self.since is None or parse_instant(row.created) >= self.since.timestamp())
        )


def sort_newest_first(rows: Iterable[StoreRow]) -> list[StoreRow]:
    return sorted(rows, key=lambda row: (parse_instant(row.created), row.run_id), reverse=True)


def parse_instant(created: str) -> float:
    """A timestamp of any time zone in seconds, for sorting; 0 for an invalid one."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def make_row(record: Record) -> StoreRow:
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
        tags=format_tags(record.tags),
        reached=record.quality.reached,
        began=record.timeline.steps > 0,
        interrupted=record.status == "incomplete" and endings.is_signal_ending(record.ended),
        host=", ".join(record.hosts),
    )


def make_folder_row(folder: Path) -> StoreRow:
    """The row of a run without a record, from its folder's mtime and its plan."""
    try:
        touched = datetime.fromtimestamp(folder.stat().st_mtime, timezone.utc).isoformat(timespec="seconds")
    except OSError:
        touched = ""
    planned, head = _document(folder / "plan.json"), _document(folder / "run.json")
    tags = head.get("tags")
    return StoreRow(
        run_id=folder.name,
        created=touched,
        status=NO_RECORD,
        workload=str(planned.get("workload", "")),
        recipe=str(planned.get("recipe_name", "")),
        topology=str(planned.get("topology", "")),
        precision=str(planned.get("precision", "")),
        platform=str(planned.get("platform", "")),
        fingerprint=str(planned.get("fingerprint", "")),
        group=str(head.get("group") or "") or None,
        tags=format_tags({str(key): str(value) for key, value in tags.items()}) if isinstance(tags, dict) else (),
    )


def _document(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_plain(path))
    return found if isinstance(found, dict) else {}


MAX_INDEX_BYTES = 1 << 30
_VERSION = zlib.crc32(repr(StoreRow._fields).encode())
"""An index with other fields is made anew."""
_ROWS = msgspec.msgpack.Decoder(tuple[int, dict[str, tuple[float, msgspec.Raw]]])
_ROW = msgspec.msgpack.Decoder(StoreRow)


class StoreIndex:
    """The row of each record file by the file's name, newest first; decoded only where it is needed."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """Empty where the file is missing, damaged or of another version, or is to be made `anew`."""
        self._path = path
        self._rows: dict[str, tuple[float, msgspec.Raw]] = {}
        if anew:
            return
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            version, rows = _ROWS.decode(read_plain(path, MAX_INDEX_BYTES))
            self._rows = rows if version == _VERSION else {}

    def names(self) -> Set[str]:
        return self._rows.keys()

    def rows(self) -> Iterator[StoreRow]:
        """MsgspecError where one is damaged."""
        return (_ROW.decode(row) for _, row in self._rows.values())

    def update(self, new: Iterable[StoreRow], gone: Set[str]) -> None:
        """Adds and forgets rows, and saves the index where that is possible."""
        found = [(parse_instant(row.created), f"{row.run_id}.json", msgspec.msgpack.encode(row)) for row in new]
        found += [(instant, name, row) for name, (instant, row) in self._rows.items() if name not in gone]
        found.sort(reverse=True)
        self._rows = {name: (instant, msgspec.Raw(row)) for instant, name, row in found}
        with contextlib.suppress(OSError):
            write_atomic(self._path, msgspec.msgpack.encode((_VERSION, self._rows)))


_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,39})=(\S(?:[^\x00-\x1f\x7f]{0,98}\S)?)")


def parse_tags(words: Iterable[str]) -> dict[str, str]:
    """Tags from `key=value` words; UsageError for an invalid one or a key with two values."""
    tags: dict[str, str] = {}
    for word in words:
        if not (found := _TAG.fullmatch(word)):
            raise UsageError(
                f"--tag {word[:60]!r} is not key=value; a key is letters, digits, '.', '_' and '-', a value is "
                "up to 100 characters; try 'driver=550.54'"
            )
        key, value = found.groups()
        if tags.setdefault(key, value) != value:
            raise UsageError(f"--tag {key} has two values, {tags[key]!r} and {value!r}; leave one of them out")
    return tags


def format_tags(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Tags as `key=value`, sorted by key."""
    return tuple(f"{key}={tags[key]}" for key in sorted(tags))
