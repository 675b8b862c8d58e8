"""The [sensors] table of a platform file: runs a vendor's programs and parses them; never raises, blocks or guesses."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from trainmark.record.errors import nearest

TIMEOUT_S, MAX_TIMEOUT_S = 5.0, 30.0
MAX_FAILURES = 3
"""A program that failed so often in a row is not run again."""
NOT_DECLARED = "no program of the platform file gives it"

InChild = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of one device; None for unknown values."""

    device: int
    """As numbered by the tools of the vendor, ignoring visible devices."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Since some time in the past: only differences are meaningful."""
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Throttle reasons; empty where it does not throttle."""
    ecc_errors: float | None = None
    """Uncorrectable memory errors, since some time in the past."""


FIELDS = tuple(field.name for field in fields(Reading) if field.name != "device")


class Reader:
    """Reads the sensors of all devices of a platform; this one has none."""

    slow = False
    """True where a reading starts a program."""

    def __init__(self, reason: str = "it was not read yet") -> None:
        self.unavailable = dict.fromkeys(FIELDS, reason)
        """Fields without a value in the last reading, with the reason."""

    def read(self) -> list[Reading]:
        return []

    def parse_devices(self, words: list[str]) -> list[int] | None:
        """The devices that a variable of visible devices names; None where unknown."""
        return [int(word) for word in words] if all(word.isdigit() for word in words) else None

    def close(self) -> None:
        """Releases resources."""


def find_missing(readings: list[Reading], reasons: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """Fields without a value on any device, each with its reason."""
    return {
        name: reasons.get(name, otherwise)
        for name in FIELDS
        if all(getattr(reading, name) is None for reading in readings)
    }


def find_used_devices(reader: Reader, count: int, visible: str) -> list[int] | None:
    """The devices of local ranks 0 to count - 1 by what the variable of visible devices says; None where unknown."""
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words:
        return list(range(count))
    numbers = reader.parse_devices(words)
    return numbers[:count] if numbers is not None and len(numbers) >= count else None


def open_reader(sensors: Sensors | None, *, in_child: InChild | None = None) -> Reader:
    """The reader of a table. `in_child` is called in every child process before its program."""
    if sensors is None:
        return Reader("the platform file names no sensors")
    if sensors.kind == "none":
        return Reader(sensors.reason)
    if sensors.kind == "program":
        return ProgramReader(sensors.programs, in_child)
    found = importlib.import_module(f"trainmark.platforms.{sensors.kind}").open_reader()
    if isinstance(found, Reader):
        return found
    return ProgramReader(sensors.programs, in_child) if sensors.programs else Reader(found)


# The table


Sources = Annotated[
    Annotated[str, Meta(min_length=1)] | Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)],
    Meta(description="a name or a list of them"),
]
"""Where a value is: the name of a column or a group, or a path. The first one present is used."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program prints one number."""

    sources: Sources = msgspec.field(name="from")
    unit: str = ""


class Throttling(msgspec.Struct, frozen=True, kw_only=True):
    """Where a program prints why a device throttles."""

    sources: Sources = msgspec.field(name="from")
    reasons: Annotated[Mapping[str, str], Meta(min_length=1, description='a table such as { "0x4" = "power cap" }')]
    """By the bits of a mask, or by the word that is printed; other bits and words mean that it does not throttle."""

    def parse(self, text: str) -> tuple[str, ...]:
        if not all(_BITS.fullmatch(bit) for bit in self.reasons):
            return tuple(reason for word, reason in self.reasons.items() if text.strip() == word)
        if not _BITS.fullmatch(text.strip()):
            raise NoValueError(f"{text[:40]!r} is not a mask of bits")
        return tuple(name for bit, name in self.reasons.items() if int(text, 0) & int(bit, 0))


_BITS = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


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
            raise ValueError(f"it must be a table that names at least one of {', '.join(FIELDS)}")
        for name in self.names:
            unit, known = getattr(getattr(self, name), "unit", ""), list(UNITS.get(name, ()))
            if unit and unit not in known:
                raise ValueError(f"{name}: unit {unit!r}; {nearest(unit, known)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in FIELDS if getattr(self, name) is not None)

    def sources(self) -> set[str]:
        entries = [getattr(self, name) for name in ("device", *self.names)]
        return {source for entry in entries if entry is not None for source in _as_tuple(entry.sources)}


Row = Mapping[str, str]
"""The part of the output about one device: texts by their sources."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program of a vendor and how to parse its output."""

    argv: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(min_length=1, description='a list of arguments, such as ["tool", "--query"]'),
    ]
    parse: Literal["csv", "json", "pattern"]
    fields: Fields
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S, description=f"a number up to {MAX_TIMEOUT_S:g}")] = (
        TIMEOUT_S
    )
    units: Mapping[str, str] = {}
    """Known units by the program's names for them."""
    rows: re.Pattern[str] | tuple[re.Pattern[str], ...] = ()
    """For patterns: the first one with a match finds all devices; its groups are the values."""
    devices: Annotated[str | tuple[str, ...], Meta(description="a path or a list of paths")] = ""
    """For JSON: path of the list or table of devices, the first one that exists."""
    device_key: re.Pattern[str] | None = None
    """For JSON: which keys of a table are devices; its group is the number."""

    def __post_init__(self) -> None:
        for key, parser in (("rows", "pattern"), ("devices", "json"), ("device_key", "json")):
            if getattr(self, key) and self.parse != parser:
                raise ValueError(f"{key} does not go with parse {self.parse!r}")
        if self.parse == "pattern":
            groups = {name for pattern in _as_tuple(self.rows) for name in pattern.groupindex}
            if missing := self.fields.sources() - groups:
                raise ValueError(f"parse 'pattern' needs the key rows, with a group named {min(missing)!r}")
        if not set(self.units.values()) <= {unit for known in UNITS.values() for unit in known}:
            raise ValueError(f"units must say which known unit each word means, not {dict(self.units)!r}")

    @property
    def gives(self) -> tuple[str, ...]:
        return self.fields.names

    def find_device(self, row: Row, place: int) -> int | None:
        """The number of the device of a row; by default its position among the rows."""
        if self.fields.device is None:
            return int(row.get(DEVICE, place))
        text = _find_text(row, self.fields.device.sources) or ""
        return int(text) if text.strip().isdigit() else None

    def parse_value(self, name: str, row: Row) -> float | tuple[str, ...]:
        entry = getattr(self.fields, name)
        text = _find_text(row, entry.sources)
        if text is None:
            raise NoValueError(f"its output has no {' or '.join(_as_tuple(entry.sources))}")
        if isinstance(entry, Throttling):
            return entry.parse(text)
        return parse_number(name, text, entry.unit, self.units)


class Sensors(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["program", "nvml", "host", "standin", "none"]
    """By programs, by none for a reason, or by the module of that name beside this one."""
    programs: tuple[Program, ...] = ()
    """With kind nvml, for machines without the module pynvml."""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind == "program" and not self.programs:
            raise ValueError("kind 'program' needs at least one [[sensors.programs]] table")
        if self.programs and self.kind not in ("program", "nvml"):
            raise ValueError(f"programs does not go with kind {self.kind!r}")
        if bool(self.reason) != (self.kind == "none"):
            raise ValueError("kind 'none' needs a reason, and no other has one")


# Parsers of output


DEVICE = ""
"""The source of a device's number, where the parser finds it."""


class UnreadableError(Exception):
    """Output that its parser cannot read; the message says why."""


def parse_readings(program: Program, output: str) -> tuple[list[Reading], dict[str, str] | str]:
    """The readings of an output with reasons for missing fields; only a reason where nothing can be parsed."""
    try:
        return _parse_rows(program, output)
    except UnreadableError as error:
        return [], str(error)
    except Exception as error:  # unexpected output must not end the sampler
        return [], f"its output could not be read ({type(error).__name__})"


def _parse_rows(program: Program, output: str) -> tuple[list[Reading], dict[str, str]]:
    if not output.strip():
        raise UnreadableError("its output is empty")
    rows = list(_PARSERS[program.parse](program, output))
    if not rows:
        raise UnreadableError("its output has no device in it")
    found: dict[int, Reading] = {}
    reasons: dict[str, str] = {}
    for place, row in enumerate(rows):
        device = program.find_device(row, place)
        if device is None:
            raise UnreadableError("a row does not say which device it is about")
        values: dict[str, Any] = {}
        for name in program.gives:
            try:
                values[name] = program.parse_value(name, row)
            except NoValueError as error:
                reasons.setdefault(name, str(error))
        found.setdefault(device, Reading(device=device, **values))
    return list(found.values()), reasons


def _parse_csv(program: Program, output: str) -> Iterator[Row]:
    """The first line with a wanted name is the header; units in its brackets go to the numbers below."""
    wanted = program.fields.sources()
    heads: list[tuple[str, str, str]] = []
    for line in csv.reader(output.splitlines(), skipinitialspace=True):
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        if not heads:
            found = [_parse_head(cell) for cell in cells]
            if any(name in wanted for head in found for name in head[:2]):
                heads = found
            continue
        if len(cells) != len(heads):
            raise UnreadableError(f"a row has {len(cells)} cells, its head {len(heads)}")
        row = {}
        for (whole, bare, unit), text in zip(heads, cells, strict=True):
            row[bare] = row[whole] = _add_unit(text, unit)
        yield row
    if not heads:
        raise UnreadableError("its output has no head with the names wanted")


def _parse_json(program: Program, output: str) -> Iterator[Row]:
    try:
        document = json.loads(output)
    except (ValueError, RecursionError):
        raise UnreadableError("its output is not JSON") from None
    paths = _as_tuple(program.devices)
    places = (document.get(path) if path and isinstance(document, dict) else document for path in paths)
    entries = next((place for place in places if isinstance(place, (list, dict))), None)
    if entries is None:
        raise UnreadableError(f"its JSON has no devices at {' or '.join(path or 'its top' for path in paths)}")
    for key, entry in entries.items() if isinstance(entries, dict) else enumerate(entries):
        if program.device_key is None or isinstance(entries, list):
            yield dict(_flatten(entry))
        elif match := program.device_key.search(str(key)):
            yield {**dict(_flatten(entry)), **({DEVICE: match[1]} if match.groups() else {})}


def _flatten(entry: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Texts by their paths: keys and list indices joined by "/". A table of value and unit is one text."""
    if isinstance(entry, dict) and "value" in entry:
        yield path, _add_unit(str(entry["value"]), str(entry.get("unit", "")))
    elif isinstance(entry, (dict, list)):
        for key, value in entry.items() if isinstance(entry, dict) else enumerate(entry):
            yield from _flatten(value, f"{path}/{key}" if path else str(key))
    elif isinstance(entry, (str, int, float)) and not isinstance(entry, bool):
        yield path, str(entry)


def _parse_pattern(program: Program, output: str) -> Iterator[Row]:
    for pattern in _as_tuple(program.rows):
        if found := list(pattern.finditer(output)):
            for match in found:
                yield {name: text for name, text in match.groupdict().items() if text is not None}
            return


_PARSERS: Mapping[str, Callable[[Program, str], Iterator[Row]]] = {
    "csv": _parse_csv,
    "json": _parse_json,
    "pattern": _parse_pattern,
}


def _parse_head(text: str) -> tuple[str, str, str]:
    """The header of a column, the same without its unit in brackets, and that unit."""
    match = re.fullmatch(r"(.*?)\s*[\[(]([^\[\]()]*)[\])]", text)
    return (text, match[1], match[2]) if match else (text, text, "")


def _add_unit(text: str, unit: str) -> str:
    return f"{text} {unit}" if unit and re.fullmatch(r"[-+0-9.eE]+", text) else text


def _find_text(row: Row, sources: str | tuple[str, ...]) -> str | None:
    return next((row[source] for source in _as_tuple(sources) if source in row), None)


def _as_tuple(given: Any) -> tuple[Any, ...]:
    """A single value or a list."""
    return given if isinstance(given, tuple) else (given,)


# Numbers with units


class NoValueError(Exception):
    """A text without a value; the message says why."""


NO_VALUE = re.compile(r"(?i)\[?\s*(n/?a|not (supported|available)|unknown( error)?|error|none|nan|-+)?\s*\]?")
"""What programs print for a missing value."""
_NUMBER = re.compile(r"\(?\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([%°℃A-Za-z ]*?)\s*\)?")

_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES |= {"bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS: Mapping[str, Mapping[str, float]] = {
    "memory_used_bytes": _BYTES,
    "memory_total_bytes": _BYTES,
    "power_w": {"W": 1, "mW": 1e-3, "uW": 1e-6, "kW": 1e3},
    "energy_j": {"J": 1, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600},
    "temperature_c": {"C": 1, "°C": 1, "℃": 1},
    "utilisation_percent": {"%": 1, "share": 100},
    "clock_mhz": {"MHz": 1, "GHz": 1e3, "kHz": 1e-3, "Hz": 1e-6},
    "ecc_errors": {},
}
"""By field, its units and their factors; the first is the unit of the field."""


def parse_number(name: str, text: str, unit: str, renamed: Mapping[str, str]) -> float:
    """The value of field `name`. A unit beside the number overrides `unit`; `renamed` maps names of units."""
    text = text.strip()
    if NO_VALUE.fullmatch(text):
        raise NoValueError(f"the program says {text or 'nothing'}")
    match = _NUMBER.fullmatch(text)
    if not match:
        comma = ", perhaps with a decimal comma" if re.fullmatch(r"[0-9]+,[0-9]+\D*", text) else ""
        raise NoValueError(f"{text[:40]!r} is not a number{comma}")
    value, known = float(match[1]), UNITS[name]
    word = renamed.get(match[2], match[2]) or unit or next(iter(known), "")
    factor = next((known[each] for each in known if each.lower() == word.lower()), None)
    factor = known.get(word, factor)
    if known and factor is None:
        raise NoValueError(f"the unit of {text[:40]!r} is not known")
    if value < 0 and name != "temperature_c":
        raise NoValueError(f"{text[:40]!r} cannot be")
    return value if factor is None else value * factor


# Programs


class ProgramReader(Reader):
    """Runs programs. A field is read from the first one that has it; one that adds nothing is not run again."""

    slow = True

    def __init__(self, programs: tuple[Program, ...], in_child: InChild | None = None) -> None:
        super().__init__()
        self._programs = list(programs)
        self._in_child = in_child
        self._failures: dict[tuple[str, ...], int] = {}
        self._reasons: dict[str, str] = {}

    def read(self) -> list[Reading]:
        found: dict[int, dict[str, Any]] = {}
        for program in list(self._programs):
            wanted = [name for name in program.gives if not any(name in values for values in found.values())]
            if not wanted:
                continue
            output, failure = run_program(program.argv, program.timeout_s, self._in_child)
            readings, why = ([], failure) if failure else parse_readings(program, output)
            if isinstance(why, str):
                self._count_failure(program, why, wanted)
                continue
            self._failures.pop(program.argv, None)
            given = set()
            for reading in readings:
                known = found.setdefault(reading.device, {})
                known |= {name: value for name in wanted if (value := getattr(reading, name)) is not None}
                given |= known.keys() & set(wanted)
            for name in set(wanted) - given:
                self._reasons[name] = f"{program.argv[0]}: {why.get(name, 'no device gave it')}"
            if not given and program is not self._programs[0]:
                self._programs.remove(program)
        result = [Reading(device=device, **values) for device, values in sorted(found.items())]
        self.unavailable = find_missing(result, self._reasons, NOT_DECLARED)
        return result

    def _count_failure(self, program: Program, why: str, wanted: list[str]) -> None:
        for name in wanted:
            self._reasons[name] = f"{program.argv[0]}: {why}"
        failures = self._failures[program.argv] = self._failures.get(program.argv, 0) + 1
        if why == "not found" or failures >= MAX_FAILURES:
            self._programs.remove(program)


def run_program(argv: Sequence[str], timeout_s: float, in_child: InChild | None = None) -> tuple[str, str]:
    """The output and an empty string, or an empty string and why there is none."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
            start_new_session=True,  # so that its children can be killed with it
            preexec_fn=in_child,  # noqa: PLW1509 - called in a process that has one thread that matters
        )
    except FileNotFoundError:
        return "", "not found"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"cannot be started: {error}"
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "", f"did not answer within {timeout_s:g} s"
        finally:
            # also where it has ended: its children may live on
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        words = next((line.strip() for line in (errors or output).splitlines() if line.strip()), "")
        return "", f"ended with exit code {process.returncode}" + (f": {words[:120]}" if words else "")
    return output, ""
