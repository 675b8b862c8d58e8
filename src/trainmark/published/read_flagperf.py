"""Reads result tables with a column for each of p_whole, p_train and p_core, as FlagPerf publishes them."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.published import names
from trainmark.published.cells import batch, figure, is_blank, memory_gib, place, precision, seconds, tidy
from trainmark.published.heads import Head
from trainmark.published.markdown import MarkdownRow, Table
from trainmark.published.section import Section, item_of, quoted
from trainmark.spec.metrics import THROUGHPUTS

MARKS = {*THROUGHPUTS, "e2e_time", "fix_hp"}
"""A table with a configuration and one of these is of this form."""


def take(section: Section, table: Table, columns: Sequence[Head]) -> None:
    """Adds the table's rows to the section."""
    for head in columns:
        section.note(table, head)
    for line in table.rows:
        cells: dict[str, tuple[Head, str]] = {}
        for head, text in zip(columns, line.cells, strict=False):
            if head.kind is not None:
                cells.setdefault(head.kind, (head, text))
        _take_row(section, line, cells)


def _take_row(section: Section, line: MarkdownRow, cells: dict[str, tuple[Head, str]]) -> None:
    def text(kind: str) -> str:
        return cells[kind][1] if kind in cells else ""

    where = place(text("configuration"))
    if where.topology is None:
        if any(not is_blank(cell) for _, cell in cells.values()):
            said = quoted(text("configuration"))
            section.complain(line.number, f"its configuration {said} does not tell nodes and devices, such as (1x8)")
        return
    throughputs = {}
    unit = None
    for alias in THROUGHPUTS:
        if alias in cells:
            head, cell = cells[alias]
            unit = unit or head.unit or section.units.get(alias)
            throughputs[alias] = _number(section, line, head, cell)
    fix_hp = tidy(text("fix_hp")) if "fix_hp" in cells else None
    if fix_hp is not None and is_blank(fix_hp):
        fix_hp = "/" if fix_hp else None
    named_batch = batch(fix_hp) if fix_hp else None
    own = names.own_batch(section.workload) if fix_hp is not None else None
    section.row(
        device=section.device(where.device),
        topology=where.topology,
        precision="" if is_blank(text("precision")) else precision(text("precision")),
        fix_hp=fix_hp,
        batch_per_device=named_batch.size if named_batch else own,
        item=item_of(unit),
        throughputs=throughputs,
        e2e_time_s=_time(section, line, cells),
        quality=_quality(section, line, cells),
        memory=_memory(section, line, cells),
    )


def _number(section: Section, line: MarkdownRow, head: Head, text: str) -> float | None:
    if is_blank(text):
        return None
    found = figure(text)
    if found is None:
        section.complain(line.number, f"{head.word} {quoted(text)} is not a number")
    return found.value if found else None


def _time(section: Section, line: MarkdownRow, cells: dict[str, tuple[Head, str]]) -> float | None:
    if "e2e_time" not in cells or is_blank(cells["e2e_time"][1]):
        return None
    head, text = cells["e2e_time"]
    found = seconds(text, head.unit or section.units.get("e2e_time", ""))
    if found is None:
        section.complain(line.number, f"{head.word} {quoted(text)} is not a time")
    return found


def _memory(
    section: Section, line: MarkdownRow, cells: dict[str, tuple[Head, str]]
) -> tuple[float | None, float | None]:
    if "mem" not in cells or is_blank(cells["mem"][1]):
        return None, None
    head, text = cells["mem"]
    found = memory_gib(text, head.unit or section.units.get("mem", ""))
    if found is None:
        section.complain(line.number, f"{head.word} {quoted(text)} is not memory as used/total")
    return found or (None, None)


def _quality(
    section: Section, line: MarkdownRow, cells: dict[str, tuple[Head, str]]
) -> tuple[str | None, str | None, float | None]:
    if "quality" not in cells:
        return None, None, None
    head, text = cells["quality"]
    name = head.name or section.quality_word or head.word
    return (name, *quality_value(section, line, head, name, text))


def quality_value(
    section: Section, line: MarkdownRow, head: Head, name: str, text: str
) -> tuple[str | None, float | None]:
    """Unit and value; an accuracy of 0.755 without a unit is a share, which others write as 75.5 %."""
    if is_blank(text):
        return head.unit, None
    found = figure(text)
    if found is None:
        section.complain(line.number, f"{head.word} {quoted(text)} is not a number")
        return head.unit, None
    unit = found.unit or head.unit
    if unit is None and name == "acc1" and 0 < found.value <= 1:
        return "%", round(100 * found.value, 10)
    return unit, found.value
