"""Draws records as the table that published benchmarks use, with its doubts: for terminals and as Markdown."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from trainmark.results import escape
from trainmark.spec.recipe import fix_hp

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from trainmark.spec.metrics import Quantity
    from trainmark.spec.record import Quality, Record

NOTHING = "—"
"""Stands where there is no number; a note says why."""

THROUGHPUTS = ("p_whole", "p_train", "p_core")

_LONGEST_WORD = 18
"""A longer word in a cell is broken rather than given a column of its own width."""


def number(value: float, digits: int = 3) -> str:
    """As many digits as mean something: 5.83, 797, 11 874."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) < 1e-4:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    if decimals <= 0 or abs(rounded) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{decimals}f}"


def with_unit(value: float, unit: str, digits: int = 3) -> str:
    return f"{number(value, digits)} {unit}" if unit not in ("", "-") else number(value, digits)


def half_width_percent(quantity: Quantity) -> float | None:
    """Half the 95 % interval as a share of the value."""
    if quantity.interval is None or not quantity.value:
        return None
    low, high = quantity.interval
    return 100 * (high - low) / 2 / abs(quantity.value)


def shown_quality(quality: Quality) -> str:
    """The value with enough digits that one just short of the target is not rounded onto it."""
    if quality.value is None:
        return NOTHING
    for digits in range(4, 9):
        shown = f"{quality.value:.{digits}g}"
        if (float(shown) >= quality.goal) == (quality.value >= quality.goal):
            break
    return with_unit(quality.value, quality.unit, digits)


def quality_word(quality: Quality) -> str:
    """The word the tables use."""
    return {"acc1": "acc"}.get(quality.name, quality.name)


def goal(quality: Quality) -> str:
    unit = f" {quality.unit}" if quality.unit not in ("", "-") else ""
    return f"{'≥' if quality.better == 'higher' else '≤'} {quality.goal:g}{unit}"


def verdict(record: Record) -> str:
    """Whether the target was reached; a run that was cut to so many steps or seconds is not held to it."""
    if record.quality.value is None:
        return "not evaluated"
    if record.quality.reached:
        return "reached"
    return "missed" if record.plan.limits.full else "short run"


VERDICT_STYLES = {"reached": "green", "missed": "yellow"}


def device_name(record: Record) -> str:
    device = record.environment.get("device")
    return short_device(str(device.get("name") or "") if isinstance(device, dict) else "") or record.plan.platform


def short_device(name: str) -> str:
    """A device's name without what vendors add to it: `Intel Xeon Platinum 8370C`, `AMD EPYC 7763`."""
    name = re.sub(r"\((?:R|TM|C)\)|®|™|\s@.*$|\bCPU\b|\b\d+-Core\b|\bProcessor\b", " ", name, flags=re.IGNORECASE)
    return " ".join(name.split())


class Paper:
    """A sheet of a given width that rich draws on; every text on it is safe to show and fits the reader's encoding."""

    def __init__(self, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> None:
        from rich.console import Console

        self.width = max(width, 40)
        self.encoding = encoding
        self.draws_lines = escape.carries(encoding, "─│╭╮╰╯━")
        self._drawn = io.StringIO()
        self._console = Console(
            file=self._drawn,
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )
        self._color = color

    def text(self, value: str, style: str = "") -> Text:
        """Text as it stands: nothing in it is read as markup or obeyed by the terminal."""
        from rich.text import Text

        lines = (escape.fitted(escape.terminal(line), self.encoding) for line in value.split("\n"))
        return Text("\n".join(lines), style=style)

    def length(self, value: str) -> int:
        """Columns the text takes on this paper."""
        return self.text(value).cell_len

    def table(self, *, framed: bool = False, heads: bool = True) -> Table:
        """An empty table: in a frame, or with no more than a line below its heads."""
        from rich import box
        from rich.table import Table

        if framed:
            lines = box.ROUNDED if self.draws_lines else box.ASCII
        else:
            lines = box.SIMPLE_HEAD if self.draws_lines else box.Box("    \n" * 2 + " -- \n" + "    \n" * 5, ascii=True)
        return Table(
            box=lines,
            show_header=heads,
            show_edge=framed,
            padding=(0, 1) if framed else (0, 1, 0, 0),
            pad_edge=framed,
            header_style="bold",
        )

    def numbered(self, sentences: Iterable[str]) -> Table:
        drawn = self.table(heads=False)
        drawn.add_column(justify="right")
        drawn.add_column(overflow="fold")
        for index, sentence in enumerate(sentences, 1):
            drawn.add_row(self.text(f"{index}"), self.text(sentence))
        return drawn

    def put(self, *parts: str | Text | Table, indent: int = 0) -> None:
        """Draws texts and tables one below the other."""
        from rich.padding import Padding

        for part in parts:
            self._console.print(Padding(self.text(part) if isinstance(part, str) else part, (0, 0, 0, indent)))

    def put_unbroken(self, line: str) -> None:
        """One line as long as it is, so that a path in it can be copied."""
        self._console.print(self.text(line), soft_wrap=True)

    def drawn(self) -> str:
        content = self._drawn.getvalue()
        return content if self._color else "".join(f"{line.rstrip()}\n" for line in content.splitlines())


@dataclass(frozen=True, kw_only=True)
class Column:
    title: str
    unit: tuple[str, ...] = ()
    """Below the title, in pieces that are not broken."""
    right: bool = True
    """Numbers stand at the right."""
    label: bool = False
    """Says which run this is: where the paper is narrow, labels stand in a line above their numbers."""
    least: int = 0
    """Narrower than this it is not worth reading."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    pieces: tuple[str, ...]
    """A line may end between two of them, never inside one: `11 874`, `±0.4 %`."""
    style: str = ""

    def __str__(self) -> str:
        return " ".join(self.pieces)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table before it is drawn: runs that count the same item, so that one unit holds for a whole column."""

    columns: list[Column]
    rows: list[list[Cell]]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    sheets: list[Sheet]
    notes: list[str]
    """Numbered below the tables; the last cell of a row says which of them hold for it."""
    remarks: list[str]
    """What holds for all: the steps that throughputs cover, how far repeats lie apart."""


def page(records: Sequence[Record]) -> Page:
    """Decides what is shown. What is the same for every row is said once, below."""
    notes: list[str] = []
    by_item: dict[str, list[Record]] = {}
    for record in records:
        by_item.setdefault(record.item, []).append(record)
        notes += [sentence for sentence in _sentences(record, records) if sentence not in notes]
    sheets = [
        _sheet(alike, [[notes.index(said) + 1 for said in _sentences(record, records)] for record in alike])
        for alike in by_item.values()
    ]
    return Page(sheets=sheets, notes=notes, remarks=_remarks(records))


def _sheet(records: Sequence[Record], marks: Sequence[Sequence[int]]) -> Sheet:
    parts: list[tuple[Column, Callable[[Record], Cell]]] = [
        (Column(title="configuration", right=False, label=True), _configuration),
        (Column(title="precision", right=False, label=True), lambda record: Cell(pieces=(record.plan.precision,))),
        (Column(title="fix_hp", right=False, label=True, least=12), _fix_hp),
        (Column(title="e2e_time", unit=("s",)), lambda record: Cell(pieces=(_shown(record, "e2e_time"),))),
        *(_throughput(alias, f"{records[0].item}/s") for alias in THROUGHPUTS),
        _quality(records),
        (Column(title="mem", unit=("GiB",)), _memory),
    ]
    workloads = list(dict.fromkeys(record.plan.workload for record in records))
    if len(workloads) > 1:
        workload = Column(title="workload", right=False, label=True)
        parts.insert(1, (workload, lambda record: Cell(pieces=(record.plan.workload,))))
    columns = [column for column, _ in parts]
    rows = [[cell(record) for _, cell in parts] for record in records]
    if any(marks):
        columns.append(Column(title="notes", right=False))
        for row, mark in zip(rows, marks, strict=True):
            row.append(Cell(pieces=tuple(", ".join(str(index) for index in sorted(mark)).split())))
    return Sheet(title=", ".join(workloads), columns=columns, rows=rows)


def render(records: Sequence[Record], *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    """The table for a terminal of the given width, in signs its encoding has; a table each where items differ."""
    if not records:
        return "no records\n"
    paper = Paper(width=width, color=color, encoding=encoding)
    shown = page(records)
    for index, sheet in enumerate(shown.sheets):
        if len(shown.sheets) > 1:
            paper.put(*([""] if index else []), paper.text(sheet.title, "bold"))
        widths = _column_widths(paper, sheet, paper.width - 3 * len(sheet.columns) - 1)
        if widths:
            _draw_framed(paper, sheet, widths)
        else:
            _draw_stacked(paper, sheet)
    if shown.notes:
        paper.put("", paper.numbered(shown.notes))
    if shown.remarks:
        paper.put("", *shown.remarks)
    return paper.drawn()


def plain_table(paper: Paper, sheet: Sheet) -> Table | None:
    """The sheet with no more than a line below its heads, or None where the paper is too narrow for it."""
    widths = _column_widths(paper, sheet, paper.width - 2 * (len(sheet.columns) - 1))
    if not widths:
        return None
    drawn = paper.table()
    for column, width in zip(sheet.columns, widths, strict=True):
        drawn.add_column(_head(paper, column, width), justify=_side(column), width=width, overflow="fold")
    for row in _drawn_rows(paper, sheet, widths):
        drawn.add_row(*row)
    return drawn


def _draw_framed(paper: Paper, shown: Sheet, widths: Sequence[int]) -> None:
    drawn = paper.table(framed=True)
    for column, width in zip(shown.columns, widths, strict=True):
        drawn.add_column(_head(paper, column, width), justify=_side(column), width=width, overflow="fold")
    rows = _drawn_rows(paper, shown, widths)
    several_lines = any("\n" in cell.plain for row in rows for cell in row)
    for row in rows:
        drawn.add_row(*row, end_section=several_lines)
    paper.put(drawn)


def _draw_stacked(paper: Paper, shown: Sheet) -> None:
    """For narrow paper: each run takes a line that says which it is, and below it a row of numbers."""
    kept = [index for index, column in enumerate(shown.columns) if not column.label]
    numbers = replace(
        shown,
        columns=[shown.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in shown.rows],
    )
    room = paper.width - 2 * len(kept)
    widths = _column_widths(paper, numbers, room) or [room // len(kept)] * len(kept)
    heads = paper.table()
    for column, width in zip(numbers.columns, widths, strict=True):
        heads.add_column(_head(paper, column, width), justify=_side(column), width=width, overflow="fold")
    paper.put(heads, indent=2)
    for labels, row in zip(shown.rows, _drawn_rows(paper, numbers, widths), strict=True):
        drawn = paper.table(heads=False)
        for column, width in zip(numbers.columns, widths, strict=True):
            drawn.add_column(justify=_side(column), width=width, overflow="fold")
        drawn.add_row(*row)
        said = [
            f"fix_hp {cell}" if column.title == "fix_hp" else str(cell)
            for column, cell in zip(shown.columns, labels, strict=True)
            if column.label
        ]
        paper.put(paper.text(" · ".join(said), labels[0].style or "bold"))
        paper.put(drawn, indent=2)


def _drawn_rows(paper: Paper, shown: Sheet, widths: Sequence[int]) -> list[tuple[Text, ...]]:
    columns = zip(shown.columns, zip(*shown.rows, strict=True), widths, strict=True)
    return list(zip(*(_column(paper, column, cells, width) for column, cells, width in columns), strict=True))


def _side(column: Column) -> Literal["left", "right"]:
    return "right" if column.right else "left"


def _head(paper: Paper, column: Column, width: int) -> Text:
    return paper.text("\n".join([column.title, *_broken(paper, column.unit, width)]))


def _column(paper: Paper, column: Column, cells: Sequence[Cell], width: int) -> list[Text]:
    """The cells of one column; if one number must stand above its remark, all do."""
    apart = column.right and any(paper.length(str(cell)) > width for cell in cells)
    drawn = []
    for cell in cells:
        lines = _broken(paper, cell.pieces[1:], width) if apart else _broken(paper, cell.pieces, width)
        drawn.append(paper.text("\n".join([*cell.pieces[:1], *lines] if apart else lines), cell.style))
    return drawn


def _broken(paper: Paper, pieces: Iterable[str], width: int) -> list[str]:
    lines: list[str] = []
    for piece in pieces:
        if lines and paper.length(f"{lines[-1]} {piece}") <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def _column_widths(paper: Paper, shown: Sheet, room: int) -> list[int] | None:
    """A width for each column so that no piece is broken, or None where there is not the room."""
    least, wished = [], []
    for index, column in enumerate(shown.columns):
        cells = [row[index] for row in shown.rows]
        pieces = [column.title, *column.unit, *(piece for cell in cells for piece in cell.pieces)]
        longest = max(paper.length(piece) for piece in pieces)
        line = max([paper.length(" ".join(column.unit)), *(paper.length(str(cell)) for cell in cells)])
        least.append(max(column.least, longest if column.right else min(longest, _LONGEST_WORD)))
        wished.append(max(line, least[-1]))
    return _shared_out(room, least, wished) if sum(least) <= room else None


def _shared_out(room: int, least: Sequence[int], wished: Sequence[int]) -> list[int]:
    """Gives the room that is left to those who lack little first, as they gain a whole line by it."""
    widths, left = list(least), room - sum(least)
    for index in sorted(range(len(least)), key=lambda index: wished[index] - least[index]):
        given = min(left, wished[index] - least[index])
        widths[index] += given
        left -= given
    return widths


def markdown(records: Sequence[Record]) -> str:
    """The same as GitHub-flavoured Markdown, its notes as a numbered list."""
    if not records:
        return "no records\n"
    shown = page(records)
    blocks: list[list[str]] = []
    for sheet in shown.sheets:
        if len(shown.sheets) > 1:
            blocks.append([f"**{escape.markdown_cell(sheet.title)}**"])
        heads = _line(
            f"{column.title} ({' '.join(column.unit)})" if column.unit else column.title for column in sheet.columns
        )
        sides = "| " + " | ".join("---:" if column.right else "---" for column in sheet.columns) + " |"
        blocks.append([heads, sides, *(_line(str(cell) for cell in row) for row in sheet.rows)])
    if shown.notes:
        blocks.append(["Notes"])
        blocks.append([f"{index}. {escape.markdown_cell(note)}" for index, note in enumerate(shown.notes, 1)])
    blocks += [[escape.markdown_cell(remark)] for remark in shown.remarks]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def stability_percent(values: Sequence[float]) -> float | None:
    """How far repeats of one run lie apart: (max - min) / median, in percent."""
    return 100 * (max(values) - min(values)) / median(values) if len(values) > 1 and median(values) else None


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape.markdown_cell(cell) for cell in cells) + " |"


def _configuration(record: Record) -> Cell:
    status = () if record.status == "valid" else (f"({record.status})",)
    return Cell(
        pieces=(*device_name(record).split(), record.plan.topology, *status),
        style={"valid": "", "incomplete": "yellow"}.get(record.status, "red"),
    )


def _fix_hp(record: Record) -> Cell:
    return Cell(pieces=tuple(fix_hp(record.plan.deviations).replace(",", ", ").split()))


def _throughput(alias: str, unit: str) -> tuple[Column, Callable[[Record], Cell]]:
    def cell(record: Record) -> Cell:
        quantity = record.metrics.get(alias)
        half = half_width_percent(quantity) if quantity and alias == "p_core" else None
        return Cell(
            pieces=(_shown(record, alias), *(() if half is None else (f"±{number(half, 2)} %",))),
            style="bold" if alias == "p_core" else "",
        )

    return Column(title=alias, unit=tuple(unit.split())), cell


def _quality(records: Sequence[Record]) -> tuple[Column, Callable[[Record], Cell]]:
    """One column by the quality's own name with the target in its head; where these differ, each cell says them."""
    words = sorted({quality_word(record.quality) for record in records})
    goals = sorted({goal(record.quality) for record in records})
    one_word, one_goal = len(words) == 1, len(words) == len(goals) == 1

    def cell(record: Record) -> Cell:
        quality = record.quality
        if quality.value is None:
            return Cell(pieces=(NOTHING,))
        return Cell(
            pieces=(
                shown_quality(quality) if one_word else f"{quality_word(quality)} {shown_quality(quality)}",
                verdict(record),
                *(() if one_goal else (goal(quality),)),
            ),
            style=VERDICT_STYLES.get(verdict(record), ""),
        )

    return Column(title=words[0] if one_word else "quality", unit=(goals[0],) if one_goal else ()), cell


def _memory(record: Record) -> Cell:
    used, total = _shown(record, "mem"), _shown(record, "mem_total")
    return Cell(pieces=(NOTHING if used == total == NOTHING else f"{used}/{total}",))


def _shown(record: Record, alias: str) -> str:
    quantity = record.metrics.get(alias)
    return NOTHING if quantity is None or quantity.value is None else number(quantity.value)


def _sentences(record: Record, records: Sequence[Record]) -> list[str]:
    """What to know before trusting a row: how the run ended, why a number is missing, what it covers, its doubts."""
    found: list[str] = []
    if record.status != "valid":
        found.append(f"{record.status}: {record.ended}")
    missing: dict[str, list[str]] = {}
    for alias in ("e2e_time", *THROUGHPUTS, "mem", "mem_total"):
        quantity = record.metrics.get(alias)
        if quantity is None or quantity.value is None:
            reason = (quantity.unavailable if quantity else None) or "not on the record"
            missing.setdefault(reason, []).append(alias)
    found += [f"no {', '.join(aliases)}: {reason}" for reason, aliases in missing.items()]
    if record.quality.value is None:
        found.append(f"no {quality_word(record.quality)}: the model was not evaluated")
    if len({other.coverage for other in records}) > 1:
        found.append(f"throughputs cover {record.coverage}")
    return found + [doubt.text for doubt in record.doubts]


def _remarks(records: Sequence[Record]) -> list[str]:
    coverages = {record.coverage for record in records}
    remarks = [f"Throughputs cover {coverages.pop()}."] if len(coverages) == 1 else []
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.group is not None:
            groups.setdefault(record.group, []).append(record)
    return remarks + [_repeats(group, members) for group, members in groups.items() if len(members) > 1]


def _repeats(group: str, members: Sequence[Record]) -> str:
    completed = [record for record in members if record.status != "incomplete"]
    found = [record.metrics["p_core"] for record in completed if "p_core" in record.metrics]
    values = [quantity.value for quantity in found if quantity.value is not None]
    spread = stability_percent(values)
    said = f"Repeats of {group}: {len(completed)} of {len(members)} completed"
    if spread is None:
        return f"{said}; stability {NOTHING}: fewer than two have a p_core."
    ends = f"p_core {number(min(values))} to {number(max(values))} {found[0].unit}, median {number(median(values))}"
    return f"{said}; stability {number(spread, 2)} % ({ends})."
