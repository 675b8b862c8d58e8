"""Records as flat rows of plain values, for spreadsheets and data frames."""

from __future__ import annotations

from collections.abc import Iterable

from trainmark.record.format import device_name
from trainmark.record.index import format_tags
from trainmark.record.metrics import METRICS
from trainmark.record.plan import Topology
from trainmark.record.recipe import fix_hp
from trainmark.record.record import Record

Value = str | float | int | bool | None


def make_rows(records: Iterable[Record]) -> list[dict[str, Value]]:
    """One row per record, all with the same keys in the same order; None where a record has no such value."""
    records = list(records)
    found = [flatten_record(record) for record in records]
    aliases = dict.fromkeys([*METRICS, *(alias for record in records for alias in record.metrics)])
    measured = [f"{alias}{end}" for alias in aliases for end in ("", "_unit", "_low", "_high")]
    facts = [key for key in next(iter(found), {}) if key not in measured]
    return [{key: row.get(key) for key in [*facts, *measured]} for row in found]


def flatten_record(record: Record) -> dict[str, Value]:
    """One record as a row: every metric with its unit and its 95 % interval beside it."""
    plan, quality = record.plan, record.quality
    batch = plan.recipe.get("batch_per_device")
    cells: dict[str, Value] = {
        "kind": "run",
        "run_id": record.run_id,
        "created": record.created,
        "trainmark": record.trainmark,
        "status": record.status,
        "ended": record.ended,
        "group": record.group,
        "tags": ", ".join(format_tags(record.tags)),
        "note": record.note,
        "host": ", ".join(record.hosts),
        "workload": plan.workload,
        "recipe": plan.recipe_name,
        "device": device_name(record),
        "platform": plan.platform_word,
        "vendor": plan.platform_word,
        "page": "",
        "topology": plan.topology,
        "precision": record.precision,
        "precision_asked": plan.precision,
        "batch_per_device": batch,
        "global_batch": batch * Topology.parse(plan.topology).devices if isinstance(batch, int) else None,
        "fix_hp": fix_hp(plan.deviations, most=len(plan.deviations)),
        "data": plan.data.name,
        "synthetic_data": plan.data.synthetic,
        "fingerprint": plan.fingerprint,
        "item": record.item,
        "coverage": record.coverage,
        "quality_name": quality.name,
        "quality": quality.value,
        "quality_unit": quality.unit,
        "quality_goal": quality.goal,
        "quality_better": quality.better,
        "quality_reached": quality.reached,
        "doubts": "; ".join(doubt.text for doubt in record.doubts),
    }
    for alias, quantity in record.metrics.items():
        low, high = quantity.interval or (None, None)
        cells |= {alias: quantity.value, f"{alias}_unit": quantity.unit, f"{alias}_low": low, f"{alias}_high": high}
    return cells
