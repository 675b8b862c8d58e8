"""The report as CSV: one row a run, every metric with its unit and interval, for spreadsheets and programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from trainmark.report.rows import flat
from trainmark.spec import escape
from trainmark.spec.metrics import METRICS
from trainmark.spec.published_row import PublishedRow, mfu
from trainmark.spec.record import Record

FACTS = (
    "kind", "run_id", "created", "trainmark", "status", "ended", "group", "workload", "recipe", "device", "platform",
    "topology", "precision", "precision_asked", "fix_hp", "data", "generated_data", "fingerprint", "item", "coverage",
    "quality_name", "quality", "quality_unit", "quality_goal", "quality_better", "quality_reached",
)  # fmt: skip
"""Columns before the metrics; each metric has four of its own."""


def render(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    aliases = list(dict.fromkeys([*METRICS, *(alias for record in records for alias in record.metrics)]))
    ends = ("", "_unit", "_low", "_high")
    heads = [*FACTS, *(f"{alias}{end}" for alias in aliases for end in ends), "doubts"]
    stream = io.StringIO(newline="")
    # \n, not the format's own \r\n: on a terminal and in git the latter is a stray sign at every end
    writer = csv.DictWriter(stream, heads, restval="", lineterminator="\n")
    writer.writerow({head: escape.csv_cell(head) for head in heads})
    for cells in [*map(flat, records), *map(_of_published, rows)]:
        writer.writerow({head: _cell(cells.get(head)) for head in heads})
    return stream.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else escape.csv_cell(str(value))


def _of_published(row: PublishedRow) -> Mapping[str, object]:
    rate = f"{row.item}/s" if row.item else None
    values = {
        "e2e_time": (row.e2e_time_s, "s"),
        "p_whole": (row.p_whole, rate),
        "p_train": (row.p_train, rate),
        "p_core": (row.p_core, rate),
        "mfu": (mfu(row), "%"),
        "mem": (row.mem_used_gib, "GiB"),
        "mem_total": (row.mem_total_gib, "GiB"),
    }
    known = {alias: (value, unit) for alias, (value, unit) in values.items() if value is not None}
    return {
        "kind": "published",
        "run_id": row.name,
        "created": row.source.date,
        "workload": row.workload,
        "device": row.device,
        "topology": row.topology,
        "precision": row.precision,
        "fix_hp": row.fix_hp,
        "item": row.item,
        "quality_name": row.quality_name,
        "quality": row.quality,
        "quality_unit": row.quality_unit,
        "quality_goal": row.target,
        "quality_better": row.better,
        "doubts": row.remark,
        **{alias: value for alias, (value, _) in known.items()},
        **{f"{alias}_unit": unit for alias, (_, unit) in known.items()},
    }
