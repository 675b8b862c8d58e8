"""Takes a sensor program's output apart into rows, one a device, whose cells are found by name, number or path."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Source = str | int
"""Where a value stands, in the parser's own terms: a name, a path, or the number of a column."""


class UnreadableError(Exception):
    """Output that is not what its parser was made for; the text says why, for people."""


class Cell(NamedTuple):
    text: str
    unit: str = ""
    """The unit named beside the cell instead of in it: in the head of its column, or in a JSON object."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the output says of one device."""

    cell: Callable[[Source], Cell | None]
    """None where there is no such place in this output."""
    device: int | None = None
    """The device's number, where the row itself carries it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The keys of a program's table that say how its output is laid out; each parser knows its own."""

    header: tuple[str, ...] = ()
    delimiter: str = ","
    rows: tuple[re.Pattern[str], ...] = ()
    block: re.Pattern[str] | None = None
    separator: str = ":"
    devices: tuple[str, ...] = ("",)
    device_key: re.Pattern[str] | None = None
    names: frozenset[Source] = field(default_factory=frozenset)
    """Every source the fields ask for."""


def csv_rows(text: str, layout: Layout) -> list[Row]:
    try:
        parts = list(csv.reader(text.splitlines(), delimiter=layout.delimiter))
    except csv.Error as error:
        raise UnreadableError(f"its output is not CSV: {error}") from None
    lines = [[cell.strip() for cell in line] for line in parts]
    lines = [line for line in lines if any(line)]
    heads = [_head(name) for name in layout.header]
    if not heads:
        for number, line in enumerate(lines):
            found = [_head(cell) for cell in line]
            if any(name in layout.names for pair in found for name in pair[:2]):
                heads, lines = found, lines[number + 1 :]
                break
        else:
            raise UnreadableError("its output has no head with the names wanted")
    places = {name: place for place, (whole, bare, _) in enumerate(heads) for name in (bare, whole)}
    rows = []
    for line in lines:
        if len(line) != len(heads):
            raise UnreadableError(f"a row has {len(line)} cells, its head {len(heads)}")

        def cell(source: Source, line: list[str] = line) -> Cell | None:
            place = places.get(str(source))
            return None if place is None else Cell(line[place], heads[place][2])

        rows.append(Row(cell=cell))
    return rows


def _head(text: str) -> tuple[str, str, str]:
    """A column's name as it stands, without its unit in brackets, and that unit."""
    match = re.fullmatch(r"(.*?)\s*[\[(]([^\])]*)[\])]", text)
    return (text, match[1], match[2]) if match else (text, text, "")


def column_rows(text: str, layout: Layout) -> list[Row]:
    rows = []
    for line in text.splitlines():
        if line.strip() and all(pattern.search(line) for pattern in layout.rows):
            cells = line.split()

            def cell(source: Source, cells: list[str] = cells) -> Cell | None:
                number = int(source)
                return Cell(cells[number - 1]) if 0 < number <= len(cells) else None

            rows.append(Row(cell=cell))
    return rows


def key_rows(text: str, layout: Layout) -> list[Row]:
    """Lines of `key : value`, indented under headings; a line that fits `block` begins the next device."""
    rows = []
    cells: dict[Source, Cell] = {}
    above: list[tuple[int, str]] = []
    for line in text.expandtabs(8).splitlines():
        if not line.strip():
            continue
        assert layout.block is not None  # noqa: S101 - the table is refused without it
        if begin := layout.block.search(line):
            cells, above = {}, []
            number = begin.groupdict().get("device")
            rows.append(Row(cell=cells.get, device=_whole(number)))
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        key, _, value = (part.strip() for part in line.partition(layout.separator))
        if value:
            cells.setdefault(key, Cell(value))
            for start in range(len(above)):
                cells.setdefault("/".join([*(name for _, name in above[start:]), key]), Cell(value))
        above.append((indent, key))
    return rows


def pattern_rows(text: str, layout: Layout) -> list[Row]:
    for pattern in layout.rows:
        if found := list(pattern.finditer(text)):
            return [Row(cell=_group_of(match)) for match in found]
    return []


def _group_of(match: re.Match[str]) -> Callable[[Source], Cell | None]:
    groups = match.groupdict()

    def cell(source: Source) -> Cell | None:
        text = groups.get(str(source))
        return None if text is None else Cell(text)

    return cell


def json_rows(text: str, layout: Layout) -> list[Row]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError("its output is not JSON") from None
    places = (_at(document, path) for path in layout.devices)
    entries = next((place for place in places if isinstance(place, (list, Mapping))), None)
    if entries is None:
        raise UnreadableError(f"its JSON has no devices at {' or '.join(path or 'its top' for path in layout.devices)}")
    if isinstance(entries, list):
        return [Row(cell=_entry_of(entry)) for entry in entries]
    rows = []
    for key, entry in entries.items():
        match = layout.device_key.search(key) if layout.device_key else None
        if match or not layout.device_key:
            rows.append(Row(cell=_entry_of(entry), device=_whole(match[1]) if match and match.groups() else None))
    return rows


def _entry_of(entry: Any) -> Callable[[Source], Cell | None]:
    def cell(source: Source) -> Cell | None:
        value = _at(entry, str(source))
        unit = ""
        if isinstance(value, Mapping) and "value" in value:
            value, unit = value["value"], str(value.get("unit", ""))
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        return Cell(str(value), unit)

    return cell


def _at(document: Any, path: str) -> Any:
    """What a path leads to: keys and list places with "/" between them, or a key that has a "/" of its own."""
    if path and isinstance(document, Mapping) and path in document:
        return document[path]
    for step in path.split("/") if path else ():
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


PARSERS: Mapping[str, Callable[[str, Layout], list[Row]]] = {
    "csv": csv_rows,
    "columns": column_rows,
    "keys": key_rows,
    "pattern": pattern_rows,
    "json": json_rows,
}
