"""Reads tables of FPS and score, and of power, scalability and stability, in the form DeepSpark publishes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainmark.published.cells import batch, each, figure, is_blank, key, memory_gib, place, precision, tidy
from trainmark.published.heads import Head, quality_name
from trainmark.published.markdown import MarkdownRow, Table
from trainmark.published.read_flagperf import quality_value
from trainmark.published.section import Section, item_of, quoted
from trainmark.spec.precision import PRECISIONS
from trainmark.spec.topology import Topology

SPEED_MARKS = {"fps", "quality"}
"""A table with a device and one of these is the first of this form."""
WHOLE_MARKS = {"convergence", "performance", "scalability", "stability", "power"}
"""A table with a configuration and one of these is the second."""

_CRITERION = re.compile(r"(.+?)\s*(:|=|>=|≥|>|<=|≤|<)\s*([^:=<>≥≤]+)")
_HALF = ("amp", "fp16", "amp-fp16", "half")


@dataclass(kw_only=True)
class TableRow:
    """One row of either table, until it is known which rows of both are one."""

    line: int
    device: str = ""
    topology: Topology | None = None
    precision: str = ""
    half: bool | None = None
    batch: int | None = None
    fix_hp: str | None = None
    throughputs: dict[str, float | None] = field(default_factory=dict)
    item: str | None = None
    quality: tuple[str | None, str | None, float | None] = (None, None, None)
    target: tuple[float | None, str | None] = (None, None)
    memory: tuple[float | None, float | None] = (None, None)
    remarks: list[str] = field(default_factory=list)


def take(section: Section, table: Table, columns: Sequence[Head]) -> list[TableRow]:
    """The table's rows, with what they say of each quantity remembered on the section."""
    found = []
    for line in table.rows:
        row = TableRow(line=line.number)
        criterion = None
        for head, text in zip(columns, line.cells, strict=False):
            if head.kind == "device":
                where = place(text)
                row.device, row.topology = where.device, where.topology or row.topology
            elif head.kind in ("fps", "performance"):
                row.item = row.item or item_of(head.unit)
            elif head.kind == "configuration":
                _configure(row, text)
            elif head.kind == "fp16" and not is_blank(text):
                row.half = key(text) in ("true", "yes", "是", "1", "on")
            elif head.kind == "precision" and not is_blank(text):
                row.precision = precision(text)
            elif head.kind == "convergence" and not is_blank(text):
                section.note(table, head, line=line.number)
                criterion = _criterion(text)
                if criterion is None:
                    section.complain(line.number, f"{head.word} {quoted(text)} does not name a value to reach")
        for head, text in zip(columns, line.cells, strict=False):
            if not is_blank(text):
                _measure(section, table, line, row, head, text, criterion[0] if criterion else None)
        if criterion:
            row.target = criterion[1], criterion[2]
            if row.quality[0] is None:
                row.quality = criterion[0], None, None
        found.append(row)
    return found


def combine(section: Section, speeds: Sequence[TableRow], wholes: Sequence[TableRow]) -> None:
    """Adds a row for each run: rows of the two tables are one where they tell of as many devices and like numbers."""
    left = list(speeds)
    for row in wholes:
        speed = next((speed for speed in left if _fits(speed, row)), None)
        if speed:
            left.remove(speed)
        _add(section, row, speed)
    for speed in left:
        _add(section, speed, None)


def _fits(speed: TableRow, row: TableRow) -> bool:
    if speed.topology is not None and row.topology is not None and speed.topology != row.topology:
        return False
    return speed.half is None or not row.precision or speed.half == (row.precision in _HALF)


def _add(section: Section, row: TableRow, speed: TableRow | None) -> None:
    other = speed or TableRow(line=row.line)
    topology = row.topology or other.topology
    if topology is None:
        section.complain(row.line, "it does not tell the number of devices, such as 8x")
        return
    half = other.half if other.half is not None else row.half
    quality = (
        row.quality if row.quality[2] is not None else other.quality if other.quality[2] is not None else row.quality
    )
    name = quality[0] if quality[0] not in (None, "") else other.quality[0]
    section.row(
        device=section.device(row.device or other.device),
        topology=topology,
        precision=row.precision or other.precision or ("" if half is None else "fp16" if half else "fp32"),
        fix_hp=row.fix_hp,
        batch_per_device=row.batch,
        item=row.item or other.item,
        throughputs={**other.throughputs, **row.throughputs},
        quality=(name, quality[1], quality[2]),
        target=row.target,
        memory=row.memory,
        remark=", ".join((*other.remarks, *row.remarks)) or None,
    )


def _configure(row: TableRow, text: str) -> None:
    """`SDK V2.2,bs:128,8x,AMP`: what follows the number of devices is the precision, wherever the batch stands."""
    words = [word.strip() for word in re.split("[,;]", tidy(text))]
    rest: list[str] = []
    for word in words:
        found = batch(word)
        where = place(word)
        if found and row.fix_hp is None:
            row.fix_hp, row.batch = f"bs={found.size}", found.size if found.per_device else None
        elif row.topology is None and where.topology is not None and not where.device:
            row.topology, rest = where.topology, []
        else:
            rest.append(word)
    known = (*PRECISIONS, "amp")
    if row.topology is not None and rest and words[-1] == rest[-1]:
        row.precision = precision(", ".join(rest))
    if row.precision not in known:
        row.precision = next((word.lower() for word in words if word.lower() in known), row.precision)


def _measure(
    section: Section, table: Table, line: MarkdownRow, row: TableRow, head: Head, text: str, quality_word: str | None
) -> None:
    if head.kind in ("fps", "performance"):
        found = figure(text)
        if found is None:
            section.complain(line.number, f"{head.word} {quoted(text)} is not a number")
            return
        section.note(table, head, line=line.number, figure=found)
        unit = found.unit or head.unit
        if (item := item_of(unit)) is not None:
            row.throughputs[head.alias or "p_train"], row.item = found.value, item
        else:
            row.remarks.append(f"{head.word} {text} without a unit" if not unit else f"{head.word} {text} {unit}")
    elif head.kind == "quality":
        name = head.name or quality_word or section.quality_word or head.word
        unit, value = quality_value(section, line, head, name, text)
        if value is not None:
            section.note(table, head, line=line.number, figure=figure(text))
        row.quality = name, unit, value
    elif head.kind == "mem":
        memory = memory_gib(text, head.unit or "")
        if memory is None:
            section.complain(line.number, f"{head.word} {quoted(text)} is not memory")
            return
        row.memory = memory
        section.note(table, head, line=line.number, figure=each(text.split("/")[0])[0])
    elif head.kind in ("power", "scalability", "stability"):
        value_each, count = each(text)
        if value_each is None:
            section.complain(line.number, f"{head.word} {quoted(text)} is not a number")
            return
        section.note(table, head, line=line.number, figure=value_each)
        unit = value_each.unit or head.unit
        shown = f"{head.word} {value_each.value:g}{f' {unit}' if unit else ''}"
        row.remarks.append(f"{shown} on each of {count}" if count else shown)


def _criterion(text: str) -> tuple[str, float, str | None] | None:
    """Name, value and direction of `score(MOS):4.460`, `acc ≥ 75.5%`."""
    match = _CRITERION.fullmatch(tidy(text))
    found = figure(match[3]) if match else None
    if match is None or found is None:
        return None
    better = None if match[2] in ":=" else "higher" if match[2] in (">=", "≥", ">") else "lower"
    return quality_name(match[1]) or match[1], found.value, better
