"""The [sensors] table of a platform file: which programs of a vendor to run, and how to parse their output."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from trainmark.record.errors import nearest

TIMEOUT_S = 5.0
MAX_TIMEOUT_S = 30.0
POWERCAP = "/sys/class/powercap"

Source = str | int
"""Where a value is, depending on the parser: a name, a path, or the number of a column."""
Sources = str | int | tuple[str | int, ...]
"""The first one present is used; a single one needs no list."""


class NoValueError(Exception):
    """A cell without a value; the message says why."""


class UnreadableError(Exception):
    """Output that its parser cannot read; the message says why."""


# What output is parsed into


class OutputCell(NamedTuple):
    text: str
    unit: str = ""
    """A unit outside of the cell: in the header of its column, or in a JSON object."""


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """The part of the output about one device."""

    cell: Callable[[Source], OutputCell | None]
    """None where this output has no such source."""
    device: int | None = None
    """The number of the device, where the row contains it."""

    def first(self, sources: Sources) -> OutputCell | None:
        return next((cell for source in _as_tuple(sources) if (cell := self.cell(source)) is not None), None)


# The table


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program prints one number."""

    sources: Annotated[Sources, Meta(description="a name or a list of them")] = msgspec.field(name="from")
    unit: str = ""
    find: re.Pattern[str] | None = None
    """Its one group is the value."""
    add: bool = False
    """Sum of all sources, instead of the first one."""

    def __post_init__(self) -> None:
        if self.find and self.find.groups != 1:
            raise ValueError(f"find must have one group, not {self.find.groups}")


class Throttling(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program prints why a device throttles: a bit mask, or one flag per reason."""

    sources: Annotated[Sources, Meta(description="a name or a list of them")] = msgspec.field(name="from", default=())
    bits: Annotated[Mapping[str, str], Meta(description='a table such as { "0x4" = "power cap" }')] = {}
    flags: Annotated[Mapping[str, Sources], Meta(description="a table of reasons")] = {}
    when: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        if not (self.sources and self.bits) and self.when is None:
            raise ValueError("it must be a table with from and bits, or with flags and when")
        if self.when is not None and not self.flags:
            raise ValueError("flags must be a table of reasons")
        if any(re.fullmatch(r"0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+", bit) is None for bit in self.bits):
            raise ValueError('bits must be a table such as { "0x4" = "power cap" }')

    def reasons(self, row: DeviceRow) -> tuple[str, ...]:
        if self.when is not None:
            cells = {reason: row.first(sources) for reason, sources in self.flags.items()}
            if all(cell is None for cell in cells.values()):
                raise NoValueError("its output has none of the flags")
            return tuple(reason for reason, cell in cells.items() if cell and self.when.search(cell.text.strip()))
        if (cell := row.first(self.sources)) is None:
            raise NoValueError(f"its output has no {_join_names(self.sources)}")
        try:
            mask = int(cell.text.strip(), 0)
        except ValueError:
            raise NoValueError(f"{cell.text[:40]!r} is not a mask of bits") from None
        return tuple(name for bit, name in self.bits.items() if mask & int(bit, 0))


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """What a program prints about a device."""

    device: Field | None = None
    memory_used_bytes: Field | None = None
    memory_total_bytes: Field | None = None
    power_w: Field | None = None
    energy_j: Field | None = None
    temperature_c: Field | None = None
    utilisation_percent: Field | None = None
    clock_mhz: Field | None = None
    ecc_errors: Field | None = None
    throttled: Throttling | None = None

    def __post_init__(self) -> None:
        if not self.names:
            known = ", ".join(name for name in self.__struct_fields__ if name != "device")
            raise ValueError(f"it must be a table that names at least one of {known}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.__struct_fields__ if name != "device" and getattr(self, name) is not None)

    def sources(self) -> Iterator[tuple[str, Sources]]:
        """All sources, with the field of each."""
        for name in self.__struct_fields__:
            entry = getattr(self, name)
            if isinstance(entry, Field):
                yield name, entry.sources
            elif isinstance(entry, Throttling):
                yield from ((name, sources) for sources in ([entry.sources] if entry.sources else entry.flags.values()))


class Program(msgspec.Struct, frozen=True, kw_only=True, tag_field="parse"):
    """A program of a vendor and how to parse its output."""

    argv: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description='a list of arguments, such as ["tool", "--query"]'),
    ]
    fields: Fields
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S, description=f"a number up to {MAX_TIMEOUT_S:g}")] = (
        TIMEOUT_S
    )
    units: Mapping[str, str] = {}
    """Known units by the program's names for them."""

    def __post_init__(self) -> None:
        for name, sources in self.fields.sources():
            self._check_sources(name, sources)
        for name in self.fields.names:
            unit, known = getattr(getattr(self.fields, name), "unit", ""), list(UNITS.get(name, ()))
            if unit and unit not in known:
                raise ValueError(f"{name}: unit {unit!r}; {nearest(unit, known)}")
        every = {unit for known in UNITS.values() for unit in known}
        if not set(self.units.values()) <= every:
            raise ValueError(f"units must say which known unit each word means, not {dict(self.units)!r}")

    def _check_sources(self, name: str, sources: Sources) -> None:
        if sources == ():
            raise ValueError(f"{name}: from is empty")
        if not all(isinstance(source, str) and source for source in _as_tuple(sources)):
            raise ValueError(f"{name}: from must be a name or a list of them, not {sources!r}")

    def rows(self, output: str) -> list[DeviceRow]:
        raise NotImplementedError

    @property
    def gives(self) -> tuple[str, ...]:
        return self.fields.names

    def find_device(self, row: DeviceRow, place: int) -> int | None:
        """The number of the device of a row; by default its position among the rows."""
        device = self.fields.device
        if device is None:
            return place if row.device is None else row.device
        for source in _as_tuple(device.sources):
            if cell := row.cell(source):
                match = (device.find or re.compile(r"^\s*([0-9]+)\s*$")).search(cell.text)
                return int(match[1]) if match and match[1].isdigit() else None
        return None

    def value(self, name: str, row: DeviceRow) -> tuple[float | tuple[str, ...] | None, str]:
        """The value of a field in a row, or None and why."""
        entry = getattr(self.fields, name)
        try:
            return (entry.reasons(row) if isinstance(entry, Throttling) else self._number(name, entry, row)), ""
        except NoValueError as error:
            return None, str(error)

    def _number(self, name: str, entry: Field, row: DeviceRow) -> float:
        found = []
        for source in _as_tuple(entry.sources):
            if (cell := row.cell(source)) is None:
                continue
            text = cell.text
            if entry.find:
                match = entry.find.search(text)
                if not match or match[1] is None:
                    raise NoValueError(f"{text[:40]!r} is not what was expected")
                text = match[1]
            found.append(parse_number(name, text, self.units.get(cell.unit, cell.unit) or entry.unit, self.units))
            if not entry.add:
                break
        if not found:
            raise NoValueError(f"its output has no {_join_names(entry.sources)}")
        return sum(found)


class CsvProgram(Program, frozen=True, kw_only=True, tag="csv"):
    header: Annotated[tuple[str, ...], Meta(description="a list of the columns' names")] = ()
    """Where the output has none; else the first line with a wanted name is the header."""
    delimiter: Annotated[str, Meta(min_length=1, max_length=1, description="one sign")] = ","

    def rows(self, output: str) -> list[DeviceRow]:
        try:
            parts = list(csv.reader(output.splitlines(), delimiter=self.delimiter))
        except csv.Error as error:
            raise UnreadableError(f"its output is not CSV: {error}") from None
        lines = [[cell.strip() for cell in line] for line in parts]
        lines = [line for line in lines if any(line)]
        heads = [_parse_head(name) for name in self.header]
        if not heads:
            wanted = {source for _, sources in self.fields.sources() for source in _as_tuple(sources)}
            for number, line in enumerate(lines):
                found = [_parse_head(cell) for cell in line]
                if any(name in wanted for pair in found for name in pair[:2]):
                    heads, lines = found, lines[number + 1 :]
                    break
            else:
                raise UnreadableError("its output has no head with the names wanted")
        places = {name: place for place, (whole, bare, _) in enumerate(heads) for name in (bare, whole)}
        rows = []
        for line in lines:
            if len(line) != len(heads):
                raise UnreadableError(f"a row has {len(line)} cells, its head {len(heads)}")

            def cell(source: Source, line: list[str] = line) -> OutputCell | None:
                place = places.get(str(source))
                return None if place is None else OutputCell(line[place], heads[place][2])

            rows.append(DeviceRow(cell=cell))
        return rows


class ColumnsProgram(Program, frozen=True, kw_only=True, tag="columns"):
    lines: re.Pattern[str] | tuple[re.Pattern[str], ...] = msgspec.field(name="rows", default=())
    """Patterns that every line of a device contains."""

    def _check_sources(self, name: str, sources: Sources) -> None:
        if not all(isinstance(source, int) and source > 0 for source in _as_tuple(sources)):
            raise ValueError(f"{name}: from must be the number of a column, from 1, or a list of them, not {sources!r}")

    def rows(self, output: str) -> list[DeviceRow]:
        rows = []
        for line in output.splitlines():
            if line.strip() and all(pattern.search(line) for pattern in _as_tuple(self.lines)):
                cells = line.split()

                def cell(source: Source, cells: list[str] = cells) -> OutputCell | None:
                    number = int(source)
                    return OutputCell(cells[number - 1]) if 0 < number <= len(cells) else None

                rows.append(DeviceRow(cell=cell))
        return rows


class KeysProgram(Program, frozen=True, kw_only=True, tag="keys"):
    """Lines of `key : value`, indented under headings."""

    block: re.Pattern[str] | None = None
    """A line that matches begins the next device."""
    separator: str = ":"

    def __post_init__(self) -> None:
        if self.block is None:
            raise ValueError("parse 'keys' needs the key block")
        super().__post_init__()

    def rows(self, output: str) -> list[DeviceRow]:
        rows = []
        cells: dict[Source, OutputCell] = {}
        above: list[tuple[int, str]] = []
        for line in output.expandtabs(8).splitlines():
            if not line.strip():
                continue
            if self.block and (begin := self.block.search(line)):
                cells, above = {}, []
                number = begin.groupdict().get("device")
                rows.append(DeviceRow(cell=cells.get, device=_parse_int(number)))
                continue
            indent = len(line) - len(line.lstrip())
            while above and above[-1][0] >= indent:
                above.pop()
            key, _, value = (part.strip() for part in line.partition(self.separator))
            if value:
                cells.setdefault(key, OutputCell(value))
                for start in range(len(above)):
                    cells.setdefault("/".join([*(name for _, name in above[start:]), key]), OutputCell(value))
            above.append((indent, key))
        return rows


class PatternProgram(Program, frozen=True, kw_only=True, tag="pattern"):
    patterns: re.Pattern[str] | tuple[re.Pattern[str], ...] = msgspec.field(name="rows", default=())
    """The first one with a match finds all devices; its groups are the values."""

    def __post_init__(self) -> None:
        if not self.patterns:
            raise ValueError("parse 'pattern' needs the key rows")
        super().__post_init__()

    def _check_sources(self, name: str, sources: Sources) -> None:
        super()._check_sources(name, sources)
        for source in _as_tuple(sources):
            if not any(source in pattern.groupindex for pattern in _as_tuple(self.patterns)):
                raise ValueError(f"rows has no group named {source!r}")

    def rows(self, output: str) -> list[DeviceRow]:
        for pattern in _as_tuple(self.patterns):
            if found := list(pattern.finditer(output)):
                return [DeviceRow(cell=_make_group_reader(match)) for match in found]
        return []


class JsonProgram(Program, frozen=True, kw_only=True, tag="json"):
    devices: Annotated[str | tuple[str, ...], Meta(description="a path or a list of paths")] = ""
    """Path of the list or table of devices: the first one that exists."""
    device_key: re.Pattern[str] | None = None
    """Which keys of a table are devices; its group is the number."""

    def rows(self, output: str) -> list[DeviceRow]:
        try:
            document = json.loads(output)
        except (ValueError, RecursionError):
            raise UnreadableError("its output is not JSON") from None
        places = (_follow_path(document, path) for path in _as_tuple(self.devices))
        entries = next((place for place in places if isinstance(place, (list, Mapping))), None)
        if entries is None:
            raise UnreadableError(
                f"its JSON has no devices at {' or '.join(path or 'its top' for path in _as_tuple(self.devices))}"
            )
        if isinstance(entries, list):
            return [DeviceRow(cell=_make_entry_reader(entry)) for entry in entries]
        rows = []
        for key, entry in entries.items():
            match = self.device_key.search(key) if self.device_key else None
            if match or not self.device_key:
                rows.append(
                    DeviceRow(
                        cell=_make_entry_reader(entry),
                        device=_parse_int(match[1]) if match and match.groups() else None,
                    )
                )
        return rows


Programs = CsvProgram | ColumnsProgram | KeysProgram | PatternProgram | JsonProgram


class NvmlSensors(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="nvml"):
    """Read through NVML, or by programs where it is not available."""

    programs: tuple[Programs, ...] = ()


class ProgramSensors(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="program"):
    programs: tuple[Programs, ...] = ()

    def __post_init__(self) -> None:
        if not self.programs:
            raise ValueError("kind 'program' needs at least one [[sensors.programs]] table")


class HostSensors(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="host"):
    """The host, from files of the kernel."""

    powercap: str = POWERCAP


class StandInSensors(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="standin"):
    """The sensors of the stand-in, as its script says."""


class NoSensors(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="none"):
    reason: Annotated[str, Meta(min_length=1)]


Sensors = NvmlSensors | ProgramSensors | HostSensors | StandInSensors | NoSensors


# Cells


NO_VALUE = re.compile(r"(?i)\[?\s*(n/?a|not (supported|available)|unknown( error)?|error|none|nan|-+)?\s*\]?")
"""What programs print for a missing value."""

_NUMBER = re.compile(r"\(?\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([%°℃A-Za-z]*)\s*\)?")

_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES |= {"bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

UNITS: Mapping[str, Mapping[str, float]] = {
    "memory_used_bytes": _BYTES,
    "memory_total_bytes": _BYTES,
    "power_w": {"W": 1, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "energy_j": {"J": 1, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600},
    "temperature_c": {"C": 1, "°C": 1, "℃": 1, "K": 1},
    "utilisation_percent": {"%": 1, "share": 100},
    "clock_mhz": {"MHz": 1, "GHz": 1e3, "kHz": 1e-3, "Hz": 1e-6},
    "ecc_errors": {},
}
"""By field, its units and their factors; the first is the unit of the field."""

_ZERO_CELSIUS_K = 273.15


def parse_number(name: str, text: str, unit: str, renamed: Mapping[str, str]) -> float:
    """The value of field `name`. A unit beside the number overrides `unit`; `renamed` maps names of units."""
    text = text.strip()
    if NO_VALUE.fullmatch(text):
        raise NoValueError(f"the program says {text or 'nothing'}")
    match = _NUMBER.fullmatch(text)
    if not match:
        comma = ", perhaps with a decimal comma" if re.fullmatch(r"[0-9]+,[0-9]+\D*", text) else ""
        raise NoValueError(f"{text[:40]!r} is not a number{comma}")
    value = float(match[1])
    known = UNITS[name]
    word = renamed.get(match[2], match[2]) or unit or next(iter(known), "")
    written = word if word in known else next((name for name in known if name.lower() == word.lower()), None)
    if known and written is None:
        raise NoValueError(f"the unit of {text[:40]!r} is not known")
    if value < 0 and name != "temperature_c":
        raise NoValueError(f"{text[:40]!r} cannot be")
    if written == "K":
        return value - _ZERO_CELSIUS_K
    return value * known[written] if written is not None else value


def _parse_head(text: str) -> tuple[str, str, str]:
    """The header of a column, the same without its unit in brackets, and that unit."""
    if text.endswith(("]", ")")):
        before = max(text.rfind(sign, 0, -1) for sign in "])") + 1
        if opening := re.compile(r"[\[(]").search(text, before, len(text) - 1):
            return text, text[: opening.start()].rstrip(), text[opening.end() : -1]
    return text, text, ""


def _make_group_reader(match: re.Match[str]) -> Callable[[Source], OutputCell | None]:
    groups = match.groupdict()

    def cell(source: Source) -> OutputCell | None:
        text = groups.get(str(source))
        return None if text is None else OutputCell(text)

    return cell


def _make_entry_reader(entry: Any) -> Callable[[Source], OutputCell | None]:
    def cell(source: Source) -> OutputCell | None:
        value = _follow_path(entry, str(source))
        unit = ""
        if isinstance(value, Mapping) and "value" in value:
            value, unit = value["value"], str(value.get("unit", ""))
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            return None
        return OutputCell(str(value), unit)

    return cell


def _follow_path(document: Any, path: str) -> Any:
    """The value at a path: keys and list indices separated by "/", or a key that contains "/"."""
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


def _parse_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _as_tuple(given: Any) -> tuple[Any, ...]:
    """A single value or a list."""
    return given if isinstance(given, tuple) else (given,)


def _join_names(sources: Sources) -> str:
    return " or ".join(str(source) for source in _as_tuple(sources))
