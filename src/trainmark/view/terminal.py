"""Writes texts and tables that fit a terminal's width and encoding, whatever stands in them."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainmark.record import escape
from trainmark.record.format import TOO_NOISY_WORDS, format_interval

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from trainmark.record.numbers import Bounds

_LONGEST_WORD = 18
"""A longer word in a cell is broken rather than given a column of its own width."""


class TerminalWriter:
    """Lines of a given width that rich draws; every text in them is safe to show and fits the reader's encoding."""

    def __init__(self, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> None:
        from rich.console import Console

        self.width = max(width, 40)
        self.encoding = encoding
        self.draws_lines = escape.can_encode(encoding, "─│╭╮╰╯━")
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

        lines = (escape.fit_encoding(escape.terminal(line), self.encoding) for line in value.split("\n"))
        return Text("\n".join(lines), style=style)

    def length(self, value: str) -> int:
        """Columns the text takes."""
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

    def grid(self, heads: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = ()) -> Table:
        """A table whose numbers stand at the right, its `left` columns of words at the left; a last one of words may
        take several lines."""
        drawn = self.table()
        for place, head in enumerate(heads):
            folds = place in left and place == len(heads) - 1
            justify: Literal["left", "right"] = "left" if place in left else "right"
            style = "dim" if folds else ""
            drawn.add_column(self.text(head), justify=justify, no_wrap=not folds, overflow="fold", style=style)
        for row in rows:
            drawn.add_row(*map(self.text, row))
        return drawn

    def numbered_list(self, sentences: Iterable[str]) -> Table:
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

    def put_title(self, title: str, remark: str = "") -> None:
        """The head of a section, below an empty line."""
        from rich.text import Text

        self.put("", Text.assemble(self.text(title, "bold"), self.text(f"  {remark}" if remark else "", "dim")))

    def put_pairs(self, pairs: Iterable[tuple[str, str]], *, indent: int = 2, folds: bool = True) -> None:
        """Names and values; a long name is folded where it may be."""
        drawn = self.table(heads=False)
        widest = max(16, self.width // 3) if folds else None
        drawn.add_column(overflow="fold", style="dim", max_width=widest, no_wrap=not folds)
        drawn.add_column(overflow="fold")
        for name, value in pairs:
            drawn.add_row(self.text(name), self.text(value))
        self.put(drawn, indent=indent)

    def put_unbroken(self, line: str) -> None:
        """One line as long as it is, so that a path in it can be copied."""
        self._console.print(self.text(line), soft_wrap=True)

    def getvalue(self) -> str:
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
    """Says which run this is: where the terminal is narrow, labels stand in a line above their numbers."""
    least: int = 0
    """Narrower than this it is not worth reading."""
    spare: bool = False
    """Left out where the terminal has no room for it."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    pieces: tuple[str, ...]
    """A line may end between two of them, never inside one: `11 874`, `±0.4 %`."""
    style: str = ""

    def __str__(self) -> str:
        return " ".join(self.pieces)


def interval_pieces(interval: Bounds | None, noisy: str = TOO_NOISY_WORDS) -> tuple[str, ...]:
    """What stands beside a value in its cell."""
    shown = format_interval(interval, noisy)
    return (shown,) if shown.startswith("±") else tuple(shown.split())


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """One table before it is drawn: runs that count the same item, so that one unit holds for a whole column."""

    columns: list[Column]
    rows: list[list[Cell]]
    title: str = ""


def draw_table(writer: TerminalWriter, table: TableModel) -> None:
    """The table in a frame, or where the terminal is too narrow for one, stacked; rather without its spare columns."""
    least = _select_columns(table, [index for index, column in enumerate(table.columns) if not column.spare])
    for shown in (table, least):
        if widths := _column_widths(writer, shown, writer.width - 3 * len(shown.columns) - 1):
            _draw_framed(writer, shown, widths)
            return
    _draw_stacked(writer, table if _numbers_fit(writer, table) else least)


def plain_table(writer: TerminalWriter, table: TableModel) -> Table | None:
    """The table with no more than a line below its heads, or None where the terminal is too narrow for it."""
    widths = _column_widths(writer, table, writer.width - 2 * (len(table.columns) - 1))
    return _fill_table(writer, writer.table(), table, widths, _draw_rows(writer, table, widths)) if widths else None


def _fill_table(
    writer: TerminalWriter,
    drawn: Table,
    shown: TableModel,
    widths: Sequence[int],
    rows: Iterable[Sequence[Text]],
    *,
    apart: bool = False,
) -> Table:
    """A table with its columns and rows; `apart` draws a line between rows."""
    for column, width in zip(shown.columns, widths, strict=True):
        side: Literal["left", "right"] = "right" if column.right else "left"
        drawn.add_column(_head(writer, column, width), justify=side, width=width, overflow="fold")
    for row in rows:
        drawn.add_row(*row, end_section=apart)
    return drawn


def _draw_framed(writer: TerminalWriter, shown: TableModel, widths: Sequence[int]) -> None:
    rows = _draw_rows(writer, shown, widths)
    several_lines = any("\n" in cell.plain for row in rows for cell in row)
    writer.put(_fill_table(writer, writer.table(framed=True), shown, widths, rows, apart=several_lines))


def _draw_stacked(writer: TerminalWriter, shown: TableModel) -> None:
    """For a narrow terminal: each run takes a line that says which it is, and below it a row of numbers."""
    numbers = _numbers(shown)
    count = len(numbers.columns)
    room = writer.width - 2 * count
    widths = _column_widths(writer, numbers, room) or [room // count] * count
    writer.put(_fill_table(writer, writer.table(), numbers, widths, ()), indent=2)
    for labels, row in zip(shown.rows, _draw_rows(writer, numbers, widths), strict=True):
        parts = [
            f"fix_hp {cell}" if column.title == "fix_hp" else str(cell)
            for column, cell in zip(shown.columns, labels, strict=True)
            if column.label
        ]
        writer.put(writer.text(" · ".join(parts), labels[0].style or "bold"))
        writer.put(_fill_table(writer, writer.table(heads=False), numbers, widths, [row]), indent=2)


def _numbers(shown: TableModel) -> TableModel:
    return _select_columns(shown, [index for index, column in enumerate(shown.columns) if not column.label])


def _numbers_fit(writer: TerminalWriter, shown: TableModel) -> bool:
    numbers = _numbers(shown)
    return _column_widths(writer, numbers, writer.width - 2 * len(numbers.columns)) is not None


def _select_columns(shown: TableModel, kept: Sequence[int]) -> TableModel:
    return replace(
        shown,
        columns=[shown.columns[index] for index in kept],
        rows=[[row[index] for index in kept] for row in shown.rows],
    )


def _draw_rows(writer: TerminalWriter, shown: TableModel, widths: Sequence[int]) -> list[tuple[Text, ...]]:
    columns = zip(shown.columns, zip(*shown.rows, strict=True), widths, strict=True)
    return list(zip(*(_column(writer, column, cells, width) for column, cells, width in columns), strict=True))


def _head(writer: TerminalWriter, column: Column, width: int) -> Text:
    return writer.text("\n".join([column.title, *_break_lines(writer, column.unit, width)]))


def _column(writer: TerminalWriter, column: Column, cells: Sequence[Cell], width: int) -> list[Text]:
    """The cells of one column; if one number must stand above its remark, all do."""
    apart = column.right and any(writer.length(str(cell)) > width for cell in cells)
    drawn = []
    for cell in cells:
        lines = _break_lines(writer, cell.pieces[1:], width) if apart else _break_lines(writer, cell.pieces, width)
        drawn.append(writer.text("\n".join([*cell.pieces[:1], *lines] if apart else lines), cell.style))
    return drawn


def _break_lines(writer: TerminalWriter, pieces: Iterable[str], width: int) -> list[str]:
    lines: list[str] = []
    for piece in pieces:
        if lines and writer.length(f"{lines[-1]} {piece}") <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def _column_widths(writer: TerminalWriter, shown: TableModel, room: int) -> list[int] | None:
    """A width for each column so that no piece is broken, or None where there is not the room."""
    least, wished = [], []
    for index, column in enumerate(shown.columns):
        cells = [row[index] for row in shown.rows]
        pieces = [column.title, *column.unit, *(piece for cell in cells for piece in cell.pieces)]
        longest = max(writer.length(piece) for piece in pieces)
        line = max([writer.length(" ".join(column.unit)), *(writer.length(str(cell)) for cell in cells)])
        least.append(max(column.least, longest if column.right else min(longest, _LONGEST_WORD)))
        wished.append(max(line, least[-1]))
    return _distribute_room(room, least, wished) if sum(least) <= room else None


def _distribute_room(room: int, least: Sequence[int], wished: Sequence[int]) -> list[int]:
    """Gives the room that is left to those who lack little first, as they gain a whole line by it."""
    widths, left = list(least), room - sum(least)
    for index in sorted(range(len(least)), key=lambda index: wished[index] - least[index]):
        given = min(left, wished[index] - least[index])
        widths[index] += given
        left -= given
    return widths


# Sections of facts about a run, which a page shows too


class RecordFact(NamedTuple):
    name: str
    value: str
    local: bool = False
    """Says where something lies on this machine: for its owner's terminal, not for a page that may be handed on."""


@dataclass(frozen=True, kw_only=True)
class FactSection:
    title: str
    remark: str = ""
    """Beside the title."""
    sentence: str = ""
    facts: Sequence[RecordFact] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """A table below the facts."""
    left: frozenset[int] = frozenset()
    """Columns of the table that hold words; numbers stand at the right."""


def draw_section(writer: TerminalWriter, section: FactSection | None, *, indent: int = 2) -> None:
    """Title, sentence, named values and table, of what there is of them."""
    if section is None:
        return
    writer.put_title(section.title, section.remark)
    if section.sentence:
        writer.put(section.sentence, "", indent=indent)
    if section.facts:
        writer.put_pairs([(fact.name, fact.value) for fact in section.facts], indent=indent)
    if section.rows:
        writer.put(writer.grid(section.heads, section.rows, section.left), indent=indent)
