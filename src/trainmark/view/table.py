"""Records as the table that published benchmarks use, for terminals and as Markdown, and as flat rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from trainmark.record import escape
from trainmark.record.doubts import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.format import (
    NOTHING,
    TOO_NOISY_WORDS,
    VERDICT_STYLES,
    device_name,
    format_goal,
    format_quality,
    number,
    verdict,
)
from trainmark.record.language import _
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.recipe import fix_hp
from trainmark.record.record import translate_coverage
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table, interval_pieces
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.record.record import Record

from trainmark.record.index import format_tags
from trainmark.record.metrics import METRICS
from trainmark.record.plan import Topology
from trainmark.record.record import Record

MAX_NOTES = 5
"""Below a table in a terminal; `trainmark show --all` has them all."""
LAST_NOTES = (
    "resumed",
    "restarted",
    "init-from",
    "skip-bad",
    "not-evaluated",
    "generated-data",
    "small-batch",
    "coverage",
)
"""Kinds of notes that a reader can do nothing about, or meant to be so; the others come first."""

OPTIONAL_COLUMNS = (("power", "power"), ("energy", "energy_kwh"), ("cost", "cost"))
"""Columns that are there where any run has the number, by title and metric."""


def order_notes(records: Sequence[Record], *, every: bool = False) -> list[str]:
    """The notes of all rows as sentences that stand alone, what can be acted on first; of one kind only the first
    unless `every` is set."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for record, name in zip(records, _row_names(records), strict=True):
        for kind, text in _collect_notes(record, records):
            kinds.setdefault(kind, {}).setdefault(text, []).append(name)
    found = []
    for kind in sorted(kinds, key=lambda kind: LAST_NOTES.index(kind) + 1 if kind in LAST_NOTES else 0):
        notes = [
            text if len(rows) == len(records) else _("{rows}: {text}").format(rows=_join_names(rows), text=text)
            for text, rows in kinds[kind].items()
        ]
        _first, *others = kinds[kind].values()
        if others and not every:
            alike = _join_names([name for rows in others for name in rows])
            notes = [_("{told}; similar: {rows}").format(told=notes[0], rows=alike)]
        found += notes
    return found


def _row_names(records: Sequence[Record]) -> list[str]:
    """By which a note says of which row it speaks."""
    names = [record.plan.workload for record in records]
    return (
        names
        if len(set(names)) == len(names)
        else [_("row {index}").format(index=index) for index in range(1, len(names) + 1)]
    )


def _join_names(names: Sequence[str]) -> str:
    return _(" and ").join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _build_table(records: Sequence[Record]) -> TableModel:
    """Decides what is shown: what is the same for every row stands once, above or below."""
    several = len({record.plan.workload for record in records}) > 1
    labels: list[tuple[Column, Callable[[Record], Cell]]] = [
        (Column(title=_("workload"), right=False, label=True), lambda record: Cell(pieces=(record.plan.workload,))),
        (Column(title=_("recipe"), right=False, label=True), lambda record: Cell(pieces=(record.plan.recipe_name,))),
        (Column(title=_("configuration"), right=False, label=True), _configuration),
        (Column(title=_("precision"), right=False, label=True), _precision),
    ]
    # workloads in one table leave no room for what they have in common; of one, the configuration leads its row
    shared = [
        label
        for index, label in enumerate(labels)
        if len({str(label[1](record)) for record in records}) == 1 and (several or index < 2)
    ]
    title = " · ".join(str(cell(records[0])) for _column, cell in shared)
    labels = [label for label in labels if label not in shared]
    one_item = len({record.item for record in records}) == 1
    counted = Column(title=_("counts"), right=False)
    parts: list[tuple[Column, Callable[[Record], Cell]]] = [
        *labels,
        (
            Column(title="fix_hp", right=False, label=True, least=12),
            lambda record: Cell(pieces=tuple(fix_hp(record.plan.deviations).replace(",", ", ").split())),
        ),
        _metric("e2e_time", "e2e_time", records),
        *([] if one_item else [(counted, lambda record: Cell(pieces=tuple(f"{record.item}/s".split())))]),
        *(_throughput(alias, f"{records[0].item}/s" if one_item else "") for alias in THROUGHPUTS),
        *([_metric("mfu", "mfu", records, spare=True)] if _has_any(records, "mfu") else []),
        _quality(records),
        (Column(title="mem", unit=("GiB",)), _memory),
        *(
            _metric(_(title), alias, records, spare=True)
            for title, alias in OPTIONAL_COLUMNS
            if _has_any(records, alias)
        ),
    ]
    return TableModel(
        title=title,
        columns=[column for column, _cell in parts],
        rows=[[cell(record) for _column, cell in parts] for record in records],
    )


def render(
    records: Sequence[Record],
    *,
    sentences: Sequence[str] = (),
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """The table for a terminal of the given width, in signs its encoding has, and below it the first of its notes;
    `sentences` stand above."""
    if not records:
        return _("no records") + "\n"
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    if sentences:
        writer.put(*(writer.text(sentence, "bold") for sentence in sentences), "")
    table = _build_table(records)
    writer.put(writer.text(table.title, "" if sentences else "bold"))
    draw_table(writer, table)
    notes, remarks = order_notes(records), _remarks(records)
    if notes:
        writer.put("", writer.numbered_list(notes[:MAX_NOTES]))
    if (more := len(notes) - MAX_NOTES) > 0:
        line = _("{more} more: trainmark show --all").format(more=more)
        writer.put(line + ("" if len(records) == 1 else " RUN"))
    if remarks:
        writer.put("", *remarks)
    return writer.getvalue()


def markdown(records: Sequence[Record]) -> str:
    """The same as GitHub-flavoured Markdown, its notes as a numbered list."""
    if not records:
        return _("no records") + "\n"
    table, notes = _build_table(records), order_notes(records, every=True)
    blocks = [f"**{escape.markdown_cell(table.title)}**"] if table.title else []
    blocks.append(markdown_table(table))
    if notes:
        blocks.append(_("Notes"))
        blocks.append("\n".join(f"{index}. {escape.markdown_cell(note)}" for index, note in enumerate(notes, 1)))
    return "\n\n".join([*blocks, *map(escape.markdown_cell, _remarks(records))]) + "\n"


def markdown_table(table: TableModel) -> str:
    heads = (f"{column.title} ({' '.join(column.unit)})" if column.unit else column.title for column in table.columns)
    sides = "| " + " | ".join("---:" if column.right else "---" for column in table.columns) + " |"
    return "\n".join([_line(heads), sides, *(_line(str(cell) for cell in row) for row in table.rows)])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape.markdown_cell(cell) for cell in cells) + " |"


def _configuration(record: Record) -> Cell:
    status = () if record.status == "valid" else (f"({_(record.status)})",)
    return Cell(
        pieces=(*device_name(record).split(), record.plan.topology, *status),
        style={"valid": "", "incomplete": "yellow"}.get(record.status, "red"),
    )


def _precision(record: Record) -> Cell:
    if record.precision == record.plan.precision:
        return Cell(pieces=(record.precision,))
    asked = _("({precision} asked)").format(precision=record.plan.precision)
    return Cell(pieces=(*record.precision.split(), *asked.split()), style="yellow")


def _throughput(alias: str, unit: str) -> tuple[Column, Callable[[Record], Cell]]:
    def cell(record: Record) -> Cell:
        quantity = record.metrics.get(alias)
        return Cell(
            pieces=(
                _format_metric(record, alias),
                *interval_pieces(quantity.interval if quantity and alias == "p_core" else None, _(TOO_NOISY_WORDS)),
            ),
            style="bold" if alias == "p_core" else "",
        )

    return Column(title=alias, unit=tuple(unit.split())), cell


def _quality(records: Sequence[Record]) -> tuple[Column, Callable[[Record], Cell]]:
    """One column by the quality's own name with the target in its head; where these differ, each cell says them."""
    words = sorted({quality_word(record.quality.name) for record in records})
    goals = sorted({format_goal(record.quality) for record in records})
    one_word, one_goal = len(words) == 1, len(words) == len(goals) == 1

    def cell(record: Record) -> Cell:
        quality = record.quality
        if quality.value is None:
            return Cell(pieces=(NOTHING,))
        return Cell(
            pieces=(
                format_quality(quality) if one_word else f"{quality_word(quality.name)} {format_quality(quality)}",
                _(verdict(record)),
                *(() if one_goal else (format_goal(quality),)),
            ),
            style=VERDICT_STYLES.get(verdict(record), ""),
        )

    return Column(title=words[0] if one_word else _("quality"), unit=(goals[0],) if one_goal else ()), cell


def _memory(record: Record) -> Cell:
    used, total = _format_metric(record, "mem"), _format_metric(record, "mem_total")
    return Cell(pieces=(NOTHING if used == total == NOTHING else f"{used}/{total}",))


def _metric(
    title: str, alias: str, records: Sequence[Record], *, spare: bool = False
) -> tuple[Column, Callable[[Record], Cell]]:
    known = (record.metrics[alias].unit for record in records if _format_metric(record, alias) != NOTHING)
    column = Column(title=title, unit=(next(known, METRICS[alias].unit if alias in METRICS else ""),), spare=spare)
    return column, lambda record: Cell(pieces=(_format_metric(record, alias),))


def _has_any(records: Sequence[Record], alias: str) -> bool:
    """Whether a column is worth its room: many devices do not say their power, and not every reader has a price."""
    return any(_format_metric(record, alias) != NOTHING for record in records)


def _format_metric(record: Record, alias: str) -> str:
    quantity = record.metrics.get(alias)
    return NOTHING if quantity is None or quantity.value is None else number(quantity.value)


def _collect_notes(record: Record, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """What to know before trusting a row: how the run ended, why a number is missing, its doubts, what it covers; each
    after its kind, a doubt's code or what else it is about: notes of one kind are told once for several rows."""
    if record.status != "valid":
        ended = translate_ending(record.ended, _)
        yield "status", _("{status}: {ended}").format(status=_(record.status), ended=ended)
    missing: dict[str, list[str]] = {}
    for alias in ("e2e_time", *THROUGHPUTS, *(["mfu"] if _has_any(records, "mfu") else []), "mem", "mem_total"):
        quantity = record.metrics.get(alias)
        if quantity is None or quantity.value is None:
            reason = (quantity.unavailable if quantity else None) or "not on the record"
            missing.setdefault(reason, []).append(alias)
    without = _("no {metrics}: {reason}")
    for reason, aliases in missing.items():
        yield reason, without.format(metrics=", ".join(aliases), reason=_(reason))
    for doubt in record.doubts:
        if doubt.code != "incomplete":  # how the run ended is said already
            yield doubt.code, translate_doubt(doubt, _)
    if record.quality.value is None:
        not_finite = _("its last evaluation gave no finite value")
        reason = not_finite if record.quality.history else _("the model was not evaluated")
        yield "not-evaluated", without.format(metrics=quality_word(record.quality.name), reason=reason)
    if len({other.coverage for other in records}) > 1:
        yield "coverage", _("throughputs cover {coverage}").format(coverage=translate_coverage(record, _))


def _remarks(records: Sequence[Record]) -> list[str]:
    coverages = {translate_coverage(record, _) for record in records}
    remarks = []
    if len(coverages) == 1:
        remarks.append(_("Throughputs cover {coverage}.").format(coverage=coverages.pop()))
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.group is not None:
            groups.setdefault(record.group, []).append(record)
    several = len({record.plan.workload for record in records}) > 1
    return remarks + [
        _repeats(f"{members[0].plan.workload}, {group}" if several else group, members)
        for group, members in groups.items()
        if len(members) > 1
    ]


def _repeats(name: str, members: Sequence[Record]) -> str:
    completed = [record for record in members if record.status != "incomplete"]
    found = [record.metrics["p_core"] for record in completed if "p_core" in record.metrics]
    values = [quantity.value for quantity in found if quantity.value is not None]
    spread = spread_percent(values)
    line = _("Repeats of {name}: {completed} of {members} completed").format(
        name=name, completed=len(completed), members=len(members)
    )
    if spread is None:
        return line + _("; ") + _("spread {nothing}: fewer than two have a p_core.").format(nothing=NOTHING)
    ends = _("p_core {low} to {high} {unit}, median {median}").format(
        low=number(min(values)), high=number(max(values)), unit=found[0].unit, median=number(median(values))
    )
    return line + _("; ") + _("spread {spread} % ({ends}).").format(spread=number(spread, 2), ends=ends)


def spread_percent(values: Sequence[float]) -> float | None:
    """Spread of repeats: (max - min) / median, in percent."""
    return 100 * (max(values) - min(values)) / median(values) if len(values) > 1 and median(values) else None


# Flat rows of plain values, for spreadsheets and data frames

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
