"""The summary table: one row per run, sortable and filterable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainmark.analysis.peaks import estimate_mfu
from trainmark.features.report.header import has_value, translate_status, translate_verdict
from trainmark.features.report.inputs import ReportInputs
from trainmark.record.format import NOTHING, device_name, format_interval, format_quality, number, verdict
from trainmark.record.language import Say
from trainmark.record.metrics import Quantity
from trainmark.record.published_row import PREFIX, PublishedRow
from trainmark.record.recipe import fix_hp
from trainmark.record.record import Record
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import filter_bar, sortable_table
from trainmark.view.published_table import format_figure
from trainmark.workloads import quality_word, title, title_of

_LONGEST_WHOLE = 28
"""Letters of a setting that is kept on one line; a longer one would widen the table for all."""


@dataclass(frozen=True, kw_only=True)
class _Cell:
    shown: Child
    key: float | str | None = None
    """What the column is sorted by; text is sorted as it is shown."""
    class_: str | None = None


def draw_summary(contents: ReportInputs, say: Say, anchors: Sequence[str]) -> Markup:
    """The table with its filter; `anchors` name the parts of the page the runs' rows lead to."""
    priced = [
        alias for alias in ("cost", "energy_kwh") if any(has_value(record, alias) for record in contents.records)
    ][:1]
    heads = _list_heads(say, priced)
    rows = [
        _draw_row(
            _list_record_cells(record, anchor, contents, priced, say), record.plan.workload, record.status, anchor
        )
        for record, anchor in zip(contents.records, anchors, strict=True)
    ]
    rows += [
        _draw_row(_list_published_cells(row, priced, say), row.workload, "published", None) for row in contents.rows
    ]
    return el(
        "section",
        el("h2", say("Summary"), id="summary-title"),
        _draw_filter(contents, say) if len(rows) > 1 else None,
        sortable_table(heads, rows, caption=say("All runs; click a column header to sort")),
        class_="summary",
    )


def _list_heads(say: Say, priced: Sequence[str]) -> list[tuple[str, bool]]:
    """Each column's name, and whether it holds numbers."""
    return [
        (say("Run"), False),
        (say("Workload"), False),
        (say("Machine"), False),
        (say("Precision"), False),
        ("fix_hp", False),
        ("p_core", True),
        ("mfu", True),
        (say("Quality"), True),
        ("e2e_time", True),
        ("mem", True),
        *((alias, True) for alias in priced),
        (say("Doubts"), True),
        (say("Status"), False),
    ]


def _draw_filter(contents: ReportInputs, say: Say) -> Markup:
    workloads = {row.workload: title(row.workload) for row in contents.rows}
    workloads = {record.plan.workload: title_of(record) for record in contents.records} | workloads
    statuses = dict.fromkeys([record.status for record in contents.records])
    chips = [("workload", name, shown) for name, shown in workloads.items()] if len(workloads) > 1 else []
    if len(statuses) > 1 or contents.rows:
        chips += [("status", name, translate_status(name, say)) for name in statuses]
    if contents.rows:
        chips.append(("status", "published", say("published")))
    return filter_bar(say("Filter runs"), chips, say)


def _draw_row(cells: Sequence[_Cell], workload: str, status: str, anchor: str | None) -> Markup:
    first, *rest = cells
    return el(
        "tr",
        el("th", first.shown, scope="row", data_key=first.key),
        [el("td", cell.shown, class_=cell.class_, data_key=_format_key(cell.key)) for cell in rest],
        data_workload=workload,
        data_status=status,
        data_run=anchor,
    )


def _format_key(key: float | str | None) -> str | None:
    return f"{key:.9g}" if isinstance(key, float) else key


def _list_record_cells(
    record: Record, anchor: str, contents: ReportInputs, priced: Sequence[str], say: Say
) -> list[_Cell]:
    quality = record.quality
    shown: Child = (
        NOTHING
        if quality.value is None
        else [
            f"{quality_word(quality.name)} {format_quality(quality)} ",
            el("br"),
            el("span", translate_verdict(record, say), class_=f"verdict {verdict(record).replace(' ', '-')}"),
        ]
    )
    failed = sum(bool(check.findings) for check in contents.checks.get(record.run_id, ()))
    noisy = say("too noisy to say")
    return [
        _Cell(
            shown=[
                el("a", record.run_id.rpartition("-")[2] or record.run_id, href=f"#{anchor}"),
                el("small", record.created[:16].replace("T", " ")),
            ],
            key=record.created,
        ),
        _Cell(shown=[title_of(record), el("small", record.plan.recipe_name)]),
        _Cell(shown=[device_name(record), el("small", record.plan.topology), _draw_hosts(record)]),
        _Cell(shown=record.precision),
        _Cell(shown=_draw_settings(fix_hp(record.plan.deviations))),
        _metric_cell(
            record, "p_core", lambda quantity: f"{quantity.unit} {format_interval(quantity.interval, noisy)}".rstrip()
        ),
        _metric_cell(record, "mfu"),
        _Cell(shown=shown, key=quality.value, class_="number"),
        _metric_cell(record, "e2e_time"),
        _metric_cell(record, "mem"),
        *(_metric_cell(record, alias, _energy_beside_cost(record) if alias == "cost" else None) for alias in priced),
        _Cell(shown=str(len(record.doubts)), key=float(len(record.doubts)), class_="number"),
        _Cell(
            shown=[
                el("span", translate_status(record.status, say), class_=f"status {record.status}"),
                el("span", _count_failed(failed, say), class_="severity doubtful") if failed else None,
            ]
        ),
    ]


def _draw_settings(fix_hp: str) -> Child:
    """Settings one by one, none broken across lines."""
    parts = fix_hp.replace(",", ", ").split()
    return [[el("span", part, class_="whole" if len(part) <= _LONGEST_WHOLE else None), " "] for part in parts]


def _count_failed(count: int, say: Say) -> str:
    return say("1 check failed") if count == 1 else say("{count} checks failed").format(count=count)


def _draw_hosts(record: Record) -> Markup | None:
    first, *others = record.hosts
    return el("small", f"{first} +{len(others)}" if others else first) if first else None


def _metric_cell(record: Record, alias: str, beside: Callable[[Quantity], str] | None = None) -> _Cell:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        return _Cell(shown=NOTHING, class_="number")
    aside = beside(quantity) if beside else ""
    shown = [number(quantity.value), el("small", aside)] if aside else f"{number(quantity.value)} {quantity.unit}"
    return _Cell(shown=shown, key=float(quantity.value), class_="number")


def _energy_beside_cost(record: Record) -> Callable[[Quantity], str] | None:
    """Formats the cost with the energy beside it, where measured."""
    energy = record.metrics.get("energy_kwh")
    if energy is None or energy.value is None:
        return None
    shown = f"{number(energy.value)} {energy.unit}"
    return lambda cost: f"{cost.unit}, {shown}" if cost.unit else shown


def _list_published_cells(row: PublishedRow, priced: Sequence[str], say: Say) -> list[_Cell]:
    used = estimate_mfu(row)
    quality: Child = NOTHING
    if row.quality is not None and row.quality_name is not None:
        unit = " %" if row.quality_unit == "%" else ""
        quality = f"{quality_word(row.quality_name)} {row.quality:g}{unit}"
    rate = row.p_core if row.p_core is not None else row.p_train
    unit = f"{row.item}/s" if row.item else ""
    word = "" if row.p_core is not None or rate is None else " p_train"
    return [
        _Cell(shown=[row.name.removeprefix(PREFIX), el("small", row.source.title)]),
        _Cell(shown=title(row.workload)),
        _Cell(shown=[row.device, el("small", row.topology)]),
        _Cell(shown=[row.precision, el("small", say("as labelled"))]),
        _Cell(shown=_draw_settings(row.fix_hp or NOTHING)),
        _Cell(
            shown=[format_figure(rate), el("small", unit + word) if rate is not None else None],
            key=rate,
            class_="number",
        ),
        _unit_cell(used, "%", "number bad" if (used or 0) > 100 else "number"),
        _Cell(shown=quality, key=row.quality, class_="number"),
        _unit_cell(row.e2e_time_s, "s"),
        _unit_cell(row.mem_used_gib, "GiB"),
        *(_Cell(shown=NOTHING, class_="number") for _ in priced),
        _Cell(shown=NOTHING, class_="number"),
        _Cell(shown=el("span", say("published"), class_="status published")),
    ]


def _unit_cell(value: float | None, unit: str, class_: str = "number") -> _Cell:
    return _Cell(shown=NOTHING if value is None else f"{number(value)} {unit}", key=value, class_=class_)
