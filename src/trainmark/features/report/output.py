"""A report of runs as text in any format: HTML, Markdown, CSV, JSON, JUnit, OpenMetrics or a feature's own."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree.ElementTree import Element

from trainmark import features
from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.peaks import estimate_mfu
from trainmark.analysis.quantities import add_cost
from trainmark.features.report.run_page import collect_facts, collect_inputs, render as render_page
from trainmark.features.report.trend import compute_trends
from trainmark.record import escape
from trainmark.record.audit import SEVERITIES
from trainmark.record.checks import CheckResult
from trainmark.record.errors import UsageError, nearest
from trainmark.record.format import device_name
from trainmark.record.index import parse_instant
from trainmark.record.language import locale_language
from trainmark.record.metrics import METRICS
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store
from trainmark.view import FORMATS, published_table, table
from trainmark.view.junit import JunitCase, junit_document, junit_suite
from trainmark.view.table import flatten_record, make_rows


def to_csv(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    """One row per run, every metric with its unit and interval."""
    table = [*make_rows(records), *map(_list_published_cells, rows)]
    heads = list(dict.fromkeys(key for cells in table for key in cells))
    stream = io.StringIO(newline="")
    # \n, not the format's own \r\n: on a terminal and in git the latter shows at every line end
    writer = csv.DictWriter(stream, heads, restval="", lineterminator="\n")
    writer.writerow({head: escape.csv_cell(head) for head in heads})
    writer.writerows({head: _format_cell(value) for head, value in cells.items()} for cells in table)
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
    return junit_suite(
        name,
        created=record.created,
        properties={"run": record.run_id, "device": device_name(record)},
        cases=cases,
        seconds=seconds,
    )


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


# OpenMetrics, for Prometheus by way of node_exporter's textfile folder, and for merge-request widgets

BASE_UNITS = {
    "s": ("seconds", 1.0),
    "%": ("ratio", 0.01),
    "GiB": ("bytes", 2.0**30),
    "W": ("watts", 1.0),
    "J": ("joules", 1.0),
    "J/item": ("joules_per_item", 1.0),
    "°C": ("celsius", 1.0),
    "{item}/s": ("items_per_second", 1.0),
    "{item}/J": ("items_per_joule", 1.0),
}
"""Prometheus' names of our units, and the factor of a value; the item is a label."""


def to_openmetrics(records: Sequence[Record]) -> str:
    """Every metric as a gauge. Of runs with the same labels the newest counts; without timestamps, which node_exporter
    refuses."""
    by_age = sorted(records, key=lambda record: (parse_instant(record.created), record.run_id))
    newest = {tuple(_make_labels(record).values()): record for record in by_age}
    runs = [(record, _make_labels(record), flatten_record(record)) for record in newest.values()]
    lines: list[str] = []

    def write(
        name: str, unit: str, text: str, samples: Iterable[tuple[dict[str, str], Any]], times: float = 1.0
    ) -> None:
        name = "_".join(filter(None, ("trainmark", name, unit)))
        known = ((labels, float(value * times)) for labels, value in samples if value is not None)
        if found := [f"{name}{{{_format_labels(labels)}}} {value!r}" for labels, value in known]:
            units = [f"# UNIT {name} {unit}"] if unit else []
            lines.extend([f"# HELP {name} {text}", f"# TYPE {name} gauge", *units, *found])

    for alias, metric in METRICS.items():
        unit, times = BASE_UNITS[metric.unit]
        text = " ".join(metric.definition.partition(".")[0].split()) + "."
        for end in ("", "_low", "_high"):
            said = f"The {end[1:]} end of the 95 % interval: {text}" if end else text
            samples = [
                (labels | ({"item": record.item} if "item" in unit else {}), cells.get(alias + end))
                for record, labels, cells in runs
            ]
            write((alias.removesuffix(unit) + end).lstrip("_"), unit, said, samples, times)
    judged = [
        (labels | {"quality": record.quality.name, "unit": record.quality.unit}, record.quality.value)
        for record, labels, _ in runs
    ]
    write("quality", "", "How good the trained model was at its last evaluation.", judged)
    values: tuple[tuple[str, str, str, Callable[[Record], float]], ...] = (
        ("target_reached", "", "1 where the target was reached.", lambda record: record.quality.reached),
        ("valid", "", "1 where the result is valid.", lambda record: record.status == "valid"),
        ("doubts", "", "Reasons to trust the result less.", lambda record: len(record.doubts)),
        ("created_timestamp", "seconds", "When the run began.", lambda record: parse_instant(record.created)),
    )
    for name, unit, text, value in values:
        write(name, unit, text, [(labels, value(record)) for record, labels, _ in runs])
    return "\n".join([*lines, "# EOF", ""])


def _make_labels(record: Record) -> dict[str, str]:
    plan = record.plan
    return {
        "workload": plan.workload,
        "recipe": plan.recipe_name,
        "topology": plan.topology,
        "precision": record.precision,
        "device": device_name(record),
        "host": ", ".join(record.hosts),
    }


def _format_labels(labels: Mapping[str, str]) -> str:
    """Within quotes; control characters are spelled out, as in every other form."""
    shown = {name: escape.terminal(value).replace("\\", "\\\\").replace('"', '\\"') for name, value in labels.items()}
    return ",".join(f'{name}="{value}"' for name, value in shown.items())


# All of them


def to_markdown(records: Sequence[Record], rows: Sequence[PublishedRow] = ()) -> str:
    """The table of the runs, published rows below it, and doubts."""
    blocks = [table.markdown(records)] if records else []
    for workload in dict.fromkeys(row.workload for row in rows):
        found = published_table.build_table([row for row in rows if row.workload == workload])
        blocks.append(f"{table.markdown_table(found)}\n\n{published_table.NOT_PUBLISHED}\n")
    return "\n".join(blocks)


def render(
    form: str,
    records: Sequence[Record],
    rows: Sequence[PublishedRow] = (),
    *,
    store: Store,
    language: str | None = None,
    published: bool = False,
    price: Price | None = None,
    trend: bool = False,
) -> str:
    """The report as text. Forms for people and spreadsheets include the cost at a `price`; a page with a `trend` charts
    plans from run to run.

    The records of a `published` copy name other hosts than their events do, and are audited alone.
    """
    language, folders = language or locale_language(), {record.run_id: store.runs / record.run_id for record in records}

    def audit(record: Record) -> tuple[CheckResult, ...]:
        folder = folders[record.run_id]
        return audit_record(record, folder if folder.is_dir() and not published else None)

    if form in ("markdown", "csv"):
        records = [add_cost(record, price or Price()) for record in records]
    match form:
        case "html":
            inputs = collect_inputs(
                records,
                store,
                rows,
                checks={record.run_id: audit(record) for record in records},
                price=price,
                language=language,
                published=published,
                trends=tuple(compute_trends(records)) if trend else (),
                facts=collect_facts(records, store, language),
            )
            return render_page(inputs)
        case "markdown":
            return to_markdown(records, rows)
        case "csv":
            return to_csv(records, rows)
        case "json":
            return to_json(records, rows)
        case "junit":
            return to_junit(records, audit)
        case "openmetrics":
            return to_openmetrics(records)
    for feature in features.offers("report_format"):
        if form in feature.FORMATS:
            return str(feature.FORMATS[form](records, language=language, folders=folders))
    raise UsageError(f"report format {form!r} is not known; {nearest(form, list_formats())}")


def list_formats() -> tuple[str, ...]:
    """Ours, and what other features write."""
    return (*FORMATS, *(name for feature in features.offers("report_format") for name in feature.FORMATS))
