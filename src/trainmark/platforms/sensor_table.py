"""The [sensors] table of a platform file: what it may say, and what is wrong with one that says something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmark.platforms.sensor_parsers import PARSERS, Layout, Row, Source
from trainmark.platforms.sensor_values import UNITS, NoValueError, number
from trainmark.spec.errors import UsageError, nearest

KINDS = ("nvml", "program", "host", "standin", "none")
KEYS = ("kind", "reason", "powercap", "programs")
PROGRAM_KEYS = ("argv", "timeout_s", "parse", "units", "fields")
PARSER_KEYS: Mapping[str, tuple[str, ...]] = {
    "csv": ("header", "delimiter"),
    "columns": ("rows",),
    "keys": ("block", "separator"),
    "pattern": ("rows",),
    "json": ("devices", "device_key"),
}
FIELD_KEYS = ("from", "unit", "find", "add")
THROTTLED_KEYS = ("from", "bits", "flags", "when")
TIMEOUT_S = 5.0
MOST_TIMEOUT_S = 30.0
POWERCAP = "/sys/class/powercap"


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a program says one number."""

    sources: tuple[Source, ...]
    unit: str = ""
    find: re.Pattern[str] | None = None
    add: bool = False


@dataclass(frozen=True, kw_only=True)
class Throttling:
    """Where a program says why a device is slowed: a mask of bits, or a flag for each reason."""

    sources: tuple[Source, ...] = ()
    bits: Mapping[int, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    when: re.Pattern[str] = re.compile("^Active$")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A vendor's program and how its output is read."""

    argv: tuple[str, ...]
    parse: str
    layout: Layout
    timeout_s: float = TIMEOUT_S
    units: Mapping[str, str] = field(default_factory=dict)
    device: Field | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    throttled: Throttling | None = None

    @property
    def gives(self) -> tuple[str, ...]:
        return (*self.fields, *(("throttled",) if self.throttled else ()))

    def rows(self, output: str) -> list[Row]:
        return PARSERS[self.parse](output, self.layout)

    def device_of(self, row: Row, place: int) -> int | None:
        """The number of the device a row is about; where nothing says it, its place among the rows."""
        if self.device is None:
            return place if row.device is None else row.device
        for source in self.device.sources:
            if cell := row.cell(source):
                match = (self.device.find or re.compile(r"^\s*([0-9]+)\s*$")).search(cell.text)
                return int(match[1]) if match and match[1].isdigit() else None
        return None

    def value(self, name: str, row: Row) -> tuple[float | tuple[str, ...] | None, str]:
        """A field's value in a row, or None and why."""
        try:
            if name in self.fields:
                return self._number(name, self.fields[name], row), ""
            assert self.throttled is not None  # noqa: S101 - `gives` has no other name
            return _reasons(self.throttled, row), ""
        except NoValueError as error:
            return None, str(error)

    def _number(self, name: str, entry: Field, row: Row) -> float:
        found = []
        for source in entry.sources:
            if (cell := row.cell(source)) is None:
                continue
            text = cell.text
            if entry.find:
                match = entry.find.search(text)
                if not match or match[1] is None:
                    raise NoValueError(f"{text[:40]!r} is not what was expected")
                text = match[1]
            found.append(number(name, text, self.units.get(cell.unit, cell.unit) or entry.unit, self.units))
            if not entry.add:
                break
        if not found:
            raise NoValueError(f"its output has no {' or '.join(str(source) for source in entry.sources)}")
        return sum(found)


def _reasons(throttled: Throttling, row: Row) -> tuple[str, ...]:
    if throttled.flags:
        cells = {
            reason: next((cell for source in sources if (cell := row.cell(source)) is not None), None)
            for reason, sources in throttled.flags.items()
        }
        if all(cell is None for cell in cells.values()):
            raise NoValueError("its output has none of the flags")
        return tuple(reason for reason, cell in cells.items() if cell and throttled.when.search(cell.text.strip()))
    cell = next((cell for source in throttled.sources if (cell := row.cell(source)) is not None), None)
    if cell is None:
        raise NoValueError(f"its output has no {' or '.join(str(source) for source in throttled.sources)}")
    try:
        mask = int(cell.text.strip(), 0)
    except ValueError:
        raise NoValueError(f"{cell.text[:40]!r} is not a mask of bits") from None
    return tuple(name for bit, name in throttled.bits.items() if mask & bit)


@dataclass(frozen=True, kw_only=True)
class Sensors:
    kind: str
    reason: str = ""
    powercap: str = POWERCAP
    programs: tuple[Program, ...] = ()


def read_table(path: Path, table: Mapping[str, object]) -> Sensors:
    """The meaning of a [sensors] table; `path` is the file to name where it has none."""
    at = f"platform file {path}: [sensors]"
    _known(at, table, KEYS)
    kind = _text(at, table, "kind")
    if kind not in KINDS:
        raise UsageError(f"{at}: kind {kind!r} is not known; {nearest(kind, KINDS)}")
    allowed = {"none": {"reason"}, "host": {"powercap"}, "program": {"programs"}, "nvml": {"programs"}}.get(kind, set())
    for key in table:
        if key not in {"kind", *allowed}:
            raise UsageError(f"{at}: {key} does not go with kind {kind!r}")
    programs = table.get("programs", [])
    if not isinstance(programs, list) or not all(isinstance(program, dict) for program in programs):
        raise UsageError(f"{at}: programs are written as [[sensors.programs]] tables")
    if kind == "program" and not programs:
        raise UsageError(f"{at}: kind {kind!r} needs at least one [[sensors.programs]] table")
    return Sensors(
        kind=kind,
        reason=_text(at, table, "reason") if "reason" in allowed else "",
        powercap=_text(at, table, "powercap") if "powercap" in table else POWERCAP,
        programs=tuple(_program(f"{at} program {index}", entry) for index, entry in enumerate(programs, 1)),
    )


def _program(at: str, table: Mapping[str, Any]) -> Program:
    parse = _text(at, table, "parse")
    if parse not in PARSERS:
        raise UsageError(f"{at}: parse {parse!r} is not known; {nearest(parse, list(PARSERS))}")
    _known(at, table, (*PROGRAM_KEYS, *PARSER_KEYS[parse]))
    argv = table.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) and word for word in argv):
        raise UsageError(f'{at}: argv must be a list of words, such as ["tool", "--query"], not {argv!r}')
    timeout_s = table.get("timeout_s", TIMEOUT_S)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= MOST_TIMEOUT_S:
        raise UsageError(f"{at}: timeout_s must be a number up to {MOST_TIMEOUT_S:g}, not {timeout_s!r}")
    entries = table.get("fields")
    if not isinstance(entries, dict) or not set(entries) - {"device"}:
        raise UsageError(f"{at}: fields must be a table that names at least one of {', '.join((*UNITS, 'throttled'))}")
    _known(f"{at} fields", entries, ("device", *UNITS, "throttled"))
    throttled = _throttling(f"{at} throttled", parse, entries["throttled"]) if "throttled" in entries else None
    numbers = {name: entry for name, entry in entries.items() if name != "throttled"}
    fields = {name: _field(f"{at} {name}", name, parse, entry) for name, entry in numbers.items()}
    units = table.get("units", {})
    every = {unit for known in UNITS.values() for unit in known}
    if not isinstance(units, dict) or not all(unit in every for unit in units.values()):
        raise UsageError(f"{at}: units must say which known unit each word means, not {units!r}")
    sources = [source for entry in fields.values() for source in entry.sources]
    if throttled:
        sources += [*throttled.sources, *(source for flag in throttled.flags.values() for source in flag)]
    return Program(
        argv=tuple(argv),
        parse=parse,
        layout=_layout(at, parse, table, frozenset(sources)),
        timeout_s=float(timeout_s),
        units=units,
        device=fields.pop("device", None),
        fields=fields,
        throttled=throttled,
    )


def _layout(at: str, parse: str, table: Mapping[str, Any], names: frozenset[Source]) -> Layout:
    header = table.get("header", [])
    if not isinstance(header, list) or not all(isinstance(name, str) for name in header):
        raise UsageError(f"{at}: header must be a list of the columns' names, not {header!r}")
    delimiter = _text(at, table, "delimiter") if "delimiter" in table else ","
    if len(delimiter) != 1:
        raise UsageError(f"{at}: delimiter must be one sign, not {delimiter!r}")
    given = table.get("rows", [])
    rows = tuple(_pattern(at, "rows", text) for text in (given if isinstance(given, list) else [given]))
    if parse == "pattern" and not rows:
        raise UsageError(f"{at}: parse {parse!r} needs the key rows")
    if parse == "keys" and "block" not in table:
        raise UsageError(f"{at}: parse {parse!r} needs the key block")
    if parse == "pattern":
        for name in names:
            if not any(name in pattern.groupindex for pattern in rows):
                raise UsageError(f"{at}: rows has no group named {name!r}")
    return Layout(
        header=tuple(header),
        delimiter=delimiter,
        rows=rows,
        block=_pattern(at, "block", table["block"]) if "block" in table else None,
        separator=_text(at, table, "separator") if "separator" in table else ":",
        devices=_paths(at, table.get("devices", "")),
        device_key=_pattern(at, "device_key", table["device_key"]) if "device_key" in table else None,
        names=names,
    )


def _field(at: str, name: str, parse: str, table: object) -> Field:
    if not isinstance(table, dict):
        raise UsageError(f'{at} must be a table such as {{ from = "..." }}, not {table!r}')
    _known(at, table, FIELD_KEYS)
    unit = _text(at, table, "unit") if "unit" in table else ""
    if unit and unit not in UNITS.get(name, {}):
        raise UsageError(f"{at}: unit {unit!r}; {nearest(unit, list(UNITS.get(name, {})))}")
    find = _pattern(at, "find", table["find"]) if "find" in table else None
    if find and find.groups != 1:
        raise UsageError(f"{at}: find must have one group, not {find.groups}")
    add = table.get("add", False)
    if not isinstance(add, bool):
        raise UsageError(f"{at}: add must be true or false, not {add!r}")
    return Field(sources=_sources(at, parse, table.get("from")), unit=unit, find=find, add=add)


def _throttling(at: str, parse: str, table: object) -> Throttling:
    if not isinstance(table, dict) or not ({"from", "bits"} <= set(table) or {"flags", "when"} <= set(table)):
        raise UsageError(f"{at} must be a table with from and bits, or with flags and when, not {table!r}")
    _known(at, table, THROTTLED_KEYS)
    if "flags" in table:
        if not isinstance(table["flags"], dict) or not table["flags"]:
            raise UsageError(f"{at}: flags must be a table of reasons, not {table['flags']!r}")
        flags = {reason: _sources(f"{at} {reason}", parse, places) for reason, places in table["flags"].items()}
        return Throttling(flags=flags, when=_pattern(at, "when", table["when"]))
    try:
        bits = {int(bit, 0): str(name) for bit, name in table["bits"].items()}
    except (AttributeError, ValueError):
        raise UsageError(f'{at}: bits must be a table such as {{ "0x4" = "power cap" }}') from None
    return Throttling(sources=_sources(at, parse, table["from"]), bits=bits)


def _paths(at: str, given: object) -> tuple[str, ...]:
    paths = given if isinstance(given, list) else [given]
    if not paths or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"{at}: devices must be a path or a list of paths, not {given!r}")
    return tuple(paths)


def _sources(at: str, parse: str, given: object) -> tuple[Source, ...]:
    wanted = int if parse == "columns" else str
    places = given if isinstance(given, list) else [given]
    for place in places:
        if not isinstance(place, wanted) or isinstance(place, bool) or not place:
            raise UsageError(
                f"{at}: from must be {'the number of a column, from 1,' if wanted is int else 'a name'} or a list of "
                f"them, not {given!r}"
            )
    if not places:
        raise UsageError(f"{at}: from is empty")
    return tuple(places)


def _known(at: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            raise UsageError(f"{at}: key {key!r} is not known; {nearest(key, names)}")


def _text(at: str, table: Mapping[str, object], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(f"{at}: {key} {'is missing' if value is None else f'must be text, not {value!r}'}")
    return value


def _pattern(at: str, key: str, text: object) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise UsageError(f"{at}: {key} must be a regular expression, not {text!r}")
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise UsageError(f"{at}: {key} is not a regular expression: {error}") from None
