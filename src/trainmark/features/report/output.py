"""A report of runs as text in any format: HTML, Markdown, CSV, JSON, JUnit, OpenMetrics or a feature's own."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from trainmark import features
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.quantities import add_cost
from trainmark.features.report.openmetrics import to_openmetrics
from trainmark.features.report.run_page import collect_facts, draw_page
from trainmark.features.report.trend import compute_trends
from trainmark.record import escape
from trainmark.record.audit import SEVERITIES
from trainmark.record.checks import CheckResult
from trainmark.record.errors import UsageError, nearest
from trainmark.record.format import NOTHING, device_name, number
from trainmark.record.language import locale_language
from trainmark.record.metrics import METRICS
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store
from trainmark.view import FORMATS, table
from trainmark.view.junit import JunitCase, junit_document, junit_suite
from trainmark.view.published_table import NOT_PUBLISHED, format_figure
from trainmark.view.rows import flatten_record
from trainmark.workloads import quality_word

FACTS = (
    "kind", "run_id", "created", "trainmark", "status", "ended", "group", "tags", "note", "host", "workload", "recipe",
    "device", "platform", "vendor", "page", "topology", "precision", "precision_asked", "batch_per_device",
    "global_batch", "fix_hp", "data", "synthetic_data", "fingerprint", "item", "coverage",
    "quality_name", "quality", "quality_unit", "quality_goal", "quality_better", "quality_reached",
)  # fmt: skip
"""Columns before the metrics; each metric has four of its own."""


def to_csv(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    """One row per run, every metric with its unit and interval."""
    aliases = list(dict.fromkeys([*METRICS, *(alias for record in records for alias in record.metrics)]))
    ends = ("", "_unit", "_low", "_high")
    heads = [*FACTS, *(f"{alias}{end}" for alias in aliases for end in ends), "doubts"]
    stream = io.StringIO(newline="")
    # \n, not the format's own \r\n: on a terminal and in git the latter shows at every line end
    writer = csv.DictWriter(stream, heads, restval="", lineterminator="\n")
    writer.writerow({head: escape.csv_cell(head) for head in heads})
    for cells in [*map(flatten_record, records), *map(_list_published_cells, rows)]:
        writer.writerow({head: _format_cell(cells.get(head)) for head in heads})
    return stream.getvalue()


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else escape.csv_cell(str(value))


def _list_published_cells(row: PublishedRow) -> Mapping[str, object]:
    rate = f"{row.item}/s" if row.item else None
    values = {
        "e2e_time": (row.e2e_time_s, "s"),
        "p_whole": (row.p_whole, rate),
        "p_train": (row.p_train, rate),
        "p_core": (row.p_core, rate),
        "mfu": (estimate_mfu(row), "%"),
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
        "vendor": row.vendor,
        "page": row.source.address,
        "topology": row.topology,
        "precision": row.precision,
        "batch_per_device": row.batch_per_device,
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


def to_json(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    """One document: the list of records as they were written, published rows behind them."""
    documents = [*(record.to_json() for record in records), *map(_make_published_document, rows)]
    return json.dumps(documents, allow_nan=False) + "\n"


def _make_published_document(row: PublishedRow) -> dict[str, Any]:
    """Its kind distinguishes it from a record; null is what was not published."""
    source = {"source": row.source.title, "date": row.source.date}
    values = {name: value for name, value in asdict(row).items() if name != "source"}
    return {"kind": "published row", **values, **source, "mfu": estimate_mfu(row)}


Check = Callable[[Record], Sequence[CheckResult]]


def to_junit(records: Sequence[Record], check: Check) -> str:
    """For build servers: one suite per run, with the run itself, then every check on it.

    A suite is named by its plan, not its run, so that a server can follow a test from build to build.
    """
    suites, seen = [], Counter[str]()
    for record in records:
        plan = record.plan
        name = f"trainmark.{plan.workload}.{plan.recipe_name}.{plan.topology}.{record.precision}"
        seen[name] += 1
        suites.append(_make_suite(f"{name}.{seen[name]}" if seen[name] > 1 else name, record, check(record)))
    return junit_document(suites)


def _make_suite(name: str, record: Record, checks: Sequence[CheckResult]) -> Element:
    e2e = record.metrics.get("e2e_time")
    seconds = f"{e2e.value:.3f}" if e2e is not None and e2e.value is not None else "0"
    valid, doubts = record.status == "valid", "; ".join(doubt.text for doubt in record.doubts)
    run = JunitCase(
        "the run is valid",
        "passed" if valid else "failed",
        ([f"doubts: {doubts}"] if doubts else []) if valid else [record.ended],
        record.status,
        seconds,
    )
    cases = [run, *map(_make_case, checks)]
    return junit_suite(name, created=record.created, properties=_list_properties(record), cases=cases, seconds=seconds)


def _make_case(check: CheckResult) -> JunitCase:
    lines = [
        f"{SEVERITIES[found.verdict]}: {found.sentence} ({found.evidence}; look at: {found.remedy})"
        for found in check.findings
    ]
    if check.verdict == "unknown":
        return JunitCase(check.claim, "skipped", [check.sentence or "not checked"])
    if check.verdict in ("failed", "doubt"):
        return JunitCase(check.claim, "failed", lines, SEVERITIES[check.findings[0].verdict])
    return JunitCase(check.claim, "passed", lines)  # worth knowing, but no reason to fail a build


def _list_properties(record: Record) -> dict[str, str]:
    plan = record.plan
    p_core = record.metrics.get("p_core")
    facts = {
        "run": record.run_id,
        "device": device_name(record),
        "recipe": plan.recipe_name,
        "topology": plan.topology,
        "precision": record.precision,
        "fingerprint": plan.fingerprint,
    }
    if p_core is not None and p_core.value is not None:
        facts["p_core"] = f"{number(p_core.value, 6)} {p_core.unit}"
    return facts


MARKDOWN_HEADS = (
    "published row", "configuration", "precision", "fix_hp", "e2e_time (s)", "p_whole", "p_train", "p_core", "mfu (%)",
    "quality", "mem (GiB)",
)  # fmt: skip
NUMERIC = 4
"""The first column of numbers."""


def to_markdown(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    """The table of the runs, published rows below it, and doubts."""
    blocks = [table.markdown(records)] if records else []
    if rows:
        sides = ["---" if index < NUMERIC else "---:" for index in range(len(MARKDOWN_HEADS))]
        lines = [
            _format_line(MARKDOWN_HEADS),
            "| " + " | ".join(sides) + " |",
            *(_format_line(_list_markdown_cells(row)) for row in rows),
        ]
        units = ", ".join(dict.fromkeys(f"{row.item}/s" for row in rows if row.item))
        blocks.append("\n".join(lines) + f"\n\n{NOT_PUBLISHED} Throughputs in {escape.markdown_cell(units)}.\n")
    return "\n".join(blocks)


def _format_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape.markdown_cell(cell) for cell in cells) + " |"


def _list_markdown_cells(row: PublishedRow) -> list[str]:
    quality = NOTHING if row.quality is None else f"{quality_word(row.quality_name or '')} {row.quality:g}".strip()
    return [
        row.name.removeprefix(PREFIX),
        f"{row.device} {row.topology}",
        row.precision,
        row.fix_hp or NOTHING,
        *(format_figure(value) for value in (row.e2e_time_s, row.p_whole, row.p_train, row.p_core, estimate_mfu(row))),
        quality,
        f"{format_figure(row.mem_used_gib)}/{format_figure(row.mem_total_gib)}",
    ]


def render(
    form: str,
    records: Sequence[Record],
    rows: Sequence[PublishedRow] = (),
    *,
    store: Store,
    language: str | None = None,
    folders: Mapping[str, Path] | None = None,
    published: bool = False,
    price: Price | None = None,
    trend: bool = False,
) -> str:
    """The report as text; `folders` are the runs' own by their ids, where their artifacts and events lie. Forms for
    people and spreadsheets include the cost at a `price`; a page with a `trend` charts plans from run to run.

    The records of a `published` copy name other hosts than their events do, and are audited alone.
    """
    language, folders = language or locale_language(), folders or {}

    def audit(record: Record) -> tuple[CheckResult, ...]:
        folder = None if published else folders.get(record.run_id)
        return audit_record(record, folder if folder and folder.is_dir() else None)

    if form == "html":
        checks = {record.run_id: audit(record) for record in records}
        return draw_page(
            records,
            store,
            rows,
            checks=checks,
            folders=folders,
            price=price,
            language=language,
            published=published,
            trends=compute_trends(records) if trend else (),
            facts=collect_facts(records, store, language),
        )
    with_rows = {"markdown": to_markdown, "csv": to_csv, "json": to_json}
    if form in ("markdown", "csv"):
        records = [add_cost(record, price or Price()) for record in records]
    if form in with_rows:
        return with_rows[form](records, rows)
    if form == "junit":
        return to_junit(records, audit)
    if form == "openmetrics":
        return to_openmetrics(records)
    for feature in features.offers("report_format"):
        if form in feature.FORMATS:
            return str(feature.FORMATS[form](records, language=language, folders=folders))
    raise UsageError(f"report format {form!r} is not known; {nearest(form, list_formats())}")


def list_formats() -> tuple[str, ...]:
    """Ours, and what other features write."""
    return (*FORMATS, *(name for feature in features.offers("report_format") for name in feature.FORMATS))
