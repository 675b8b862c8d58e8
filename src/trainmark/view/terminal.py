"""Writes texts and tables that fit a terminal's width and encoding, whatever stands in them."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
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
_NO_BREAK = "\ue000"
"""Stands for a space at which no line may end, until all is drawn."""


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

    def measure(self, text: Text) -> tuple[int, int]:
        """Columns of its longest word and of its longest line."""
        from rich.measure import Measurement

        return Measurement.get(self._console, self._console.options, text)

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
        content = self._drawn.getvalue().replace(_NO_BREAK, " ")
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
    least = _select_columns(table, lambda column: not column.spare)
    for shown in (table, least):
        if widths := _column_widths(writer, shown, writer.width - 3 * len(shown.columns) - 1):
            writer.put(_fill_table(writer, writer.table(framed=True), shown, widths))
            return
    _draw_stacked(writer, table if _stacked_widths(writer, table) else least)


def plain_table(writer: TerminalWriter, table: TableModel) -> Table | None:
    """The table with no more than a line below its heads, or None where the terminal is too narrow for it."""
    widths = _column_widths(writer, table, writer.width - 2 * (len(table.columns) - 1))
    return _fill_table(writer, writer.table(), table, widths) if widths else None


def _draw_stacked(writer: TerminalWriter, shown: TableModel) -> None:
    """For a narrow terminal: each run takes a line that says which it is, and below it a row of numbers."""
    numbers = _select_columns(shown, lambda column: not column.label)
    count = len(numbers.columns)
    widths = _stacked_widths(writer, shown) or [writer.width // count - 2] * count
    writer.put(_fill_table(writer, writer.table(), replace(numbers, rows=[]), widths), indent=2)
    for labels, row in zip(shown.rows, numbers.rows, strict=True):
        parts = [
            f"fix_hp {cell}" if column.title == "fix_hp" else str(cell)
            for column, cell in zip(shown.columns, labels, strict=True)
            if column.label
        ]
        writer.put(writer.text(" · ".join(parts), labels[0].style or "bold"))
        writer.put(_fill_table(writer, writer.table(heads=False), replace(numbers, rows=[row]), widths), indent=2)


def _stacked_widths(writer: TerminalWriter, shown: TableModel) -> list[int] | None:
    numbers = _select_columns(shown, lambda column: not column.label)
    return _column_widths(writer, numbers, writer.width - 2 * len(numbers.columns))


def _select_columns(shown: TableModel, keeps: Callable[[Column], bool]) -> TableModel:
    kept = [index for index, column in enumerate(shown.columns) if keeps(column)]
    rows = [[row[index] for index in kept] for row in shown.rows]
    return replace(shown, columns=[shown.columns[index] for index in kept], rows=rows)


def _fill_table(writer: TerminalWriter, drawn: Table, shown: TableModel, widths: Sequence[int]) -> Table:
    """The table with its columns and rows; of a column in which a number must stand above its remark, all do."""
    places = range(len(widths))
    above = [any(writer.length(str(row[place])) > widths[place] for row in shown.rows) for place in places]
    for column, width in zip(shown.columns, widths, strict=True):
        side: Literal["left", "right"] = "right" if column.right else "left"
        drawn.add_column(_head(writer, column), justify=side, width=width, overflow="fold")
    for row in shown.rows:
        cells = [_text(writer, row[place], above[place] and shown.columns[place].right) for place in places]
        drawn.add_row(*cells, end_section=drawn.show_edge and any(above))
    return drawn


def _head(writer: TerminalWriter, column: Column) -> Text:
    return writer.text("\n".join(filter(None, (column.title, " ".join(column.unit)))))


def _text(writer: TerminalWriter, cell: Cell, above: bool = False) -> Text:
    first, *others = (writer.text(piece).plain.replace(" ", _NO_BREAK) for piece in cell.pieces or ("",))
    return writer.text("", cell.style).append(("\n" if above else " ").join(filter(None, (first, " ".join(others)))))


def _column_widths(writer: TerminalWriter, shown: TableModel, room: int) -> list[int] | None:
    """A width for each column so that no piece is broken, or None where there is not the room."""
    least, wished = [], []
    for place, column in enumerate(shown.columns):
        texts = [_head(writer, column), *(_text(writer, row[place]) for row in shown.rows)]
        narrow, wide = (max(sizes) for sizes in zip(*map(writer.measure, texts), strict=True))
        least.append(max(column.least, narrow if column.right else min(narrow, _LONGEST_WORD)))
        wished.append(max(wide, least[-1]))
    if sum(least) > room:
        return None
    # what is left goes to those who lack little first, as they gain a whole line by it
    for place in sorted(range(len(least)), key=lambda place: wished[place] - least[place]):
        least[place] += min(room - sum(least), wished[place] - least[place])
    return least


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
