"""Finds the headings, list items and tables of a Markdown page, tolerating sloppy markup."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_LINES = 3000
"""A page of results has a few hundred; one of a million pipes must not take long."""
MAX_SIGNS = 8000
"""Of a line that is read."""
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


_BEFORE = re.compile(r"^(?:\s|[-*+](?=\s)|>|[0-9]{1,9}[.)](?=\s))*")
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
    parts: list[Part] = []
    unread: list[str] = []
    if len(lines) > MAX_LINES and any(map(str.strip, lines[MAX_LINES:])):
        unread.append(f"line {MAX_LINES + 1}: the page is too long for one of results; nothing is read from here on")
    for number, line in enumerate(lines[:MAX_LINES], 1):
        if len(line) > MAX_SIGNS:
            unread.append(f"line {number}: it has {len(line)} characters, and at most {MAX_SIGNS} are read")
            lines[number - 1] = ""
    lines = _blank_code(lines[:MAX_LINES])
    index, tables = 0, 0
    while index < len(lines):
        end = index
        if _begins_table(lines, index):
            while end < len(lines) and "|" in lines[end]:
                end += 1
            found = _parse_tables(lines[index:end], index + 1, tables)
            tables += len(found)
            parts += found
        elif part := _parse_line(lines[index][:LONGEST_CELL], index + 1):
            parts.append(part)
        index = max(end, index + 1)
    return Layout(parts=tuple(parts), unread=tuple(unread))


def _parse_line(line: str, number: int) -> Heading | Fact | None:
    if "#" in line and (match := _HEADING.match(line)):
        return Heading(line=number, level=len(match[1]), text=strip_markup(match[2].rstrip(" #")))
    if (":" in line or "：" in line) and (match := _FACT.match(line)):
        return Fact(line=number, key=strip_markup(match[1]), value=strip_markup(match[2]))
    return None


def strip_markup(text: str) -> str:
    """What a reader of the rendered page sees: without emphasis, links, entities and escapes, on one line."""
    plain = _MARKS.sub(lambda match: match[1] or match[3] or (" " if match[2] else ""), text)
    return " ".join(html.unescape(plain).split())


def _blank_code(lines: Sequence[str]) -> list[str]:
    """The lines without those of code blocks; an unclosed block does not count."""
    fences = [index for index, line in enumerate(lines) if _FENCE.match(line)]
    found = list(lines)
    for first, last in zip(fences[::2], fences[1::2], strict=False):
        found[first : last + 1] = [""] * (last + 1 - first)
    return found


def _begins_table(lines: Sequence[str], index: int) -> bool:
    line, below = lines[index], lines[index + 1] if index + 1 < len(lines) else ""
    if "|" not in line or _BEFORE.sub("", line).startswith("|"):
        return "|" in line
    return bool(_ONLY_RULE.fullmatch(below)) and "-" in below and _is_rule(_split_cells(below))


def _split_cells(line: str) -> list[str]:
    row = _BEFORE.sub("", line).rstrip().removeprefix("|")
    return _PIPE.split(row[:-1] if row.endswith("|") and not row.endswith("\\|") else row)


def _is_rule(cells: Sequence[str]) -> bool:
    return all(_RULE.fullmatch(cell.strip()) for cell in cells)


def _parse_tables(lines: Sequence[str], first: int, before: int) -> list[Table]:
    """The tables of a block of lines with pipes: usually one; more where no blank line stands between them."""
    blocks: list[list[MarkdownRow]] = []
    rows = [(number, _split_cells(line)) for number, line in enumerate(lines, first)]
    for index, (number, cells) in enumerate(rows):
        if _is_rule(cells):
            continue
        if not blocks or (index + 1 < len(rows) and _is_rule(rows[index + 1][1])):
            blocks.append([])
        plain = tuple(strip_markup(cell[:LONGEST_CELL]) for cell in cells)
        blocks[-1].append(MarkdownRow(number=number, cells=plain))
    return [Table(index=before + place, heads=block[0], rows=tuple(block[1:])) for place, block in enumerate(blocks, 1)]
