"""What lists show of a run: taken from its record, or from its folder where it left none."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """What a store's folder holds, or the part of it that was asked for."""

    rows: list[Row]
    """Its records, newest first."""
    damaged: list[Damaged]
    unrecorded: list[Row]
    """Run folders without a record, newest first: still running, or ended before a record could be written."""
    count: int
    """Records that fit what was asked for, with those a limit left out."""


def newest_first(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (instant(row.created), row.run_id), reverse=True)


def instant(created: str) -> float:
    """Seconds by which moments are ordered, whatever zone they are written in; 0 for what is no moment."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def row_of(record: Record) -> Row:
    """ValueError where a value is not of the kind that lists and the index take."""
    device = record.environment.get("device")
    p_core = record.metrics.get("p_core")
    row = Row(
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
    for name, value in row._asdict().items():
        if not _fits(name, value):
            raise ValueError(f"{name} cannot be {value!r:.40}")
    return row


def _fits(name: str, value: object) -> bool:
    if name == "reached":
        return isinstance(value, bool)
    if name in ("p_core", "quality", "doubts"):
        if isinstance(value, int):
            return not isinstance(value, bool) and abs(value) < 2**63  # more than that SQLite does not hold
        return value is None or (isinstance(value, float) and math.isfinite(value))
    if not isinstance(value, str):
        return value is None and name == "group"
    return value.isascii() or value.isprintable() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def folder_row(folder: Path) -> Row:
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
