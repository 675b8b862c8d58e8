"""What lists show of a run: one row, of a record or of a run folder that left none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.record import endings
from trainmark.record.labels import tag_words

if TYPE_CHECKING:  # a listing comes from the index alone, and numpy would be most of its time
    from trainmark.record.record import Record


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
class Wanted:
    """Which runs are asked for; what is None is not asked."""

    workload: str | None = None
    group: str | None = None
    """Its id, or how that begins."""
    tags: tuple[str, ...] = ()
    """A run has them all, each as `key=value`."""
    since: datetime | None = None
    """It was created then or later."""
    measured: bool = False
    """It is valid, or every rank finished a step."""

    def fits(self, row: StoreRow) -> bool:
        return (
            self.workload in (None, row.workload)
            and (self.group is None or (row.group or "").startswith(self.group))
            and (not self.tags or {*self.tags} <= {*row.tags})
            and (not self.measured or row.began or row.status == "valid")
            and (self.since is None or instant(row.created) >= self.since.timestamp())
        )


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
