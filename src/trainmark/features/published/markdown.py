"""Finds the headings, list items and tables of a Markdown page, tolerating sloppy markup."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_COLUMNS = 200
MAX_TABLE_LINES = 2000
"""A page of results has a hundred; one of a million pipes must not take long."""
MAX_PARTS = 4000
LONGEST_CELL = 500


@dataclass(frozen=True, kw_only=True)
class Heading:
    line: int
    level: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A list item of the form `key: value`."""

    line: int
    key: str
    value: str


@dataclass(frozen=True, kw_only=True)
class MarkdownRow:
    """One row of a table; its cells are plain text."""

    number: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    index: int
    """Counted from 1 through the page."""
    heads: MarkdownRow
    rows: tuple[MarkdownRow, ...]


Part = Heading | Fact | Table


@dataclass(frozen=True, kw_only=True)
class Layout:
    parts: tuple[Part, ...]
    """In the page's order."""
    unread: tuple[str, ...]


_BEFORE = re.compile(r"(?:\s|[-*+](?=\s)|>|[0-9]{1,9}[.)](?=\s))*")
"""Indents, quotes and list marks a table can stand behind."""
_FENCE = re.compile(r"\s*(?:```|~~~)")
_HEADING = re.compile(r"\s{0,8}(?:[-*+]\s+)?(#{1,6})(?!#)\s*(.*)")
_FACT = re.compile(r"\s*[-*+]\s+([^:：|]{1,80})[:：](.*)")
_PIPE = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"[:：]?\s*[-—–－]+\s*[:：]?")
_ONLY_RULE = re.compile(r"[\s|:：—–－>-]+")
_MARKS = re.compile(
    r"\\([!-/:-@\[-`{-~])"  # an escaped sign stays as it is
    r"|(<br\s*/?>|<su[bp]>)"
    r"|</?(?:b|i|u|p|em|strong|code|sub|sup|span|font|center|div|nobr)(?:\s[^<>]{0,200})?/?>"
    r"|!?\[([^\[\]]{0,300})\]\([^()\s]{0,500}\)"  # of a link its text
    r"|`+|~~"
    r"|(?<![0-9A-Za-z*])\*+(?=[^\s*])|(?<=[^\s*])\*+(?![0-9A-Za-z*])"  # elsewhere it multiplies
    r"|(?<![0-9A-Za-z])_+|_+(?![0-9A-Za-z])",
    re.IGNORECASE,
)


def parse_layout(text: str) -> Layout:
    """The parts of a page; never fails, and takes linear time."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fenced = _find_fenced(lines)
    parts: list[Part] = []
    unread: list[str] = []
    tables, room = 0, MAX_TABLE_LINES
    index = 0
    while index < len(lines) and len(parts) < MAX_PARTS:
        line = lines[index]
        if index in fenced or not line or line.isspace():
            index += 1
        elif "|" in line and _begins_table(lines, index):
            end = index
            while end < len(lines) and end - index < room and "|" in lines[end] and end not in fenced:
                end += 1
            found, problems = _parse_tables(lines[index:end], index + 1, tables)
            tables += len(found)
            parts += found
            unread += problems
            room -= end - index
            index = end
            if not room:
                break
        else:
            if part := _parse_line(line[:LONGEST_CELL], index + 1):
                parts.append(part)
            index += 1
    if index < len(lines) and any(line and not line.isspace() for line in lines[index:]):
        unread.append(f"line {index + 1}: the page is too long for one of results; nothing is read from here on")
    return Layout(parts=tuple(parts), unread=tuple(unread))


def _parse_line(line: str, number: int) -> Heading | Fact | None:
    if "#" in line and (match := _HEADING.match(line)):
        return Heading(line=number, level=len(match[1]), text=strip_markup(match[2].rstrip(" #")))
    if (":" in line or "：" in line) and (match := _FACT.match(line)):
        return Fact(line=number, key=strip_markup(match[1]), value=strip_markup(match[2]))
    return None


def strip_markup(text: str) -> str:
    """What a reader of the rendered page sees: without emphasis, links, entities and escapes, on one line."""
    return " ".join(html.unescape(_MARKS.sub(_unmark, text)).split())


def _unmark(match: re.Match[str]) -> str:
    escaped, broken, link = match.groups()
    return escaped or link or (" " if broken else "")


def _find_fenced(lines: Sequence[str]) -> set[int]:
    """Lines of code blocks; an unclosed block does not count."""
    fences = [index for index, line in enumerate(lines) if _FENCE.match(line)]
    return {index for first, last in zip(fences[::2], fences[1::2], strict=False) for index in range(first, last + 1)}


def _begins_table(lines: Sequence[str], index: int) -> bool:
    line = lines[index]
    if line.startswith("|", _prefix_length(line)):
        return True
    below = lines[index + 1][:2000] if index + 1 < len(lines) else ""
    return bool(_ONLY_RULE.fullmatch(below)) and "-" in below and _is_rule(_split_cells(below))


def _prefix_length(line: str) -> int:
    match = _BEFORE.match(line)
    return match.end() if match else 0


def _split_cells(line: str) -> list[str]:
    row = line[_prefix_length(line) :].rstrip()
    row = row.removeprefix("|")
    if row.endswith("|") and not row.endswith("\\|"):
        row = row[:-1]
    return _PIPE.split(row)


def _is_rule(cells: Sequence[str]) -> bool:
    return all(_RULE.fullmatch(cell.strip()) for cell in cells)


def _parse_tables(lines: Sequence[str], first: int, before: int) -> tuple[list[Table], list[str]]:
    """The tables of a block of lines with pipes: usually one; more where no blank line stands between them."""
    unread: list[str] = []
    rows: list[MarkdownRow | None] = []  # None is a rule below heads
    for number, line in enumerate(lines, first):
        if (columns := line.count("|")) > MAX_COLUMNS:
            unread.append(f"line {number}: it has {columns} columns, and at most {MAX_COLUMNS} are read")
            continue
        cells = _split_cells(line)
        if _is_rule(cells):
            rows.append(None)
            continue
        if any(len(cell) > LONGEST_CELL for cell in cells):
            unread.append(f"line {number}: a cell has more than {LONGEST_CELL} characters and is cut there")
        rows.append(MarkdownRow(number=number, cells=tuple(strip_markup(cell[:LONGEST_CELL]) for cell in cells)))
    blocks: list[list[MarkdownRow]] = [[]]
    for index, row in enumerate(rows):
        if row is None:
            continue
        if index + 1 < len(rows) and rows[index + 1] is None and blocks[-1]:
            blocks.append([])
        blocks[-1].append(row)
    filled = [block for block in blocks if block]
    return [
        Table(index=before + place, heads=block[0], rows=tuple(block[1:])) for place, block in enumerate(filled, 1)
    ], unread
