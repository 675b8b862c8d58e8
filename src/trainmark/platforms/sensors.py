"""Reads a platform's sensors as its file declares them: never raises, never waits long, never makes up a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.platforms.sensor_parsers import UnreadableError
from trainmark.platforms.sensor_program import output_of
from trainmark.platforms.sensor_table import Program, Sensors, read_table

if TYPE_CHECKING:
    from trainmark.platforms.files import PlatformFile

STRIKES = 3
"""A program that failed so many times in a row is not run again."""

NOT_DECLARED = "no program of the platform file gives it"

InChild = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was read of one device at one moment; None is what is not known."""

    device: int
    """As the vendor's own tools number it, whatever the variable of visible devices says."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Since some moment in the past: only differences mean anything."""
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    clock_mhz: float | None = None
    throttled: tuple[str, ...] | None = None
    """Why the device runs slower than it could: nothing where it does not."""
    ecc_errors: float | None = None
    """Errors memory could not correct, since some moment in the past."""


FIELDS = tuple(field.name for field in fields(Reading) if field.name != "device")


class Reader:
    """The sensors of all devices of a platform on this machine; this one has nothing to read."""

    slow = False
    """True where a read starts a program, so that it should not be asked for more often than needed."""

    def __init__(self, reason: str = "") -> None:
        self.unavailable = dict.fromkeys(FIELDS, reason)
        """Fields that no device gave at the last read, with the reason."""

    def read(self) -> list[Reading]:
        return []

    def numbers(self, words: list[str]) -> list[int] | None:
        """The devices a variable of visible devices names; None where that cannot be told."""
        return [int(word) for word in words] if all(word.isdigit() for word in words) else None

    def close(self) -> None:
        """Lets go of whatever is open."""


def check(path: Path, table: Mapping[str, object]) -> None:
    """Refuses a [sensors] table that could not be read by, saying which key is wrong."""
    read_table(path, table)


def open_reader(file: PlatformFile, *, in_child: InChild | None = None) -> Reader:
    """The reader a platform file asks for. `in_child` is called in every program started, before it begins."""
    nothing = {"kind": "none", "reason": "the platform file names no sensors"}
    table = read_table(Path(file.name), file.sensors or nothing)
    return _OPENERS[table.kind](table, in_child)


def used_devices(file: PlatformFile, reader: Reader, count: int, environ: Mapping[str, str]) -> list[int] | None:
    """The numbers of the devices that ranks 0 to count - 1 of this machine use; None where that cannot be told."""
    if file.device_type == "cpu":
        return [0]
    said = environ.get(file.visible_devices, "") if file.visible_devices else ""
    words = [word.strip() for word in said.split(",") if word.strip()]
    if not words:
        return list(range(count))
    numbers = reader.numbers(words)
    return numbers[:count] if numbers is not None and len(numbers) >= count else None


class StandInReader(Reader):
    """Asks the stand-in for an accelerator, whose sensors follow a script."""

    def read(self) -> list[Reading]:
        from trainmark.platforms import standin

        try:
            found = list(standin.readings())
        except Exception as error:  # a script's mistake must not end whoever samples
            self.unavailable = dict.fromkeys(FIELDS, f"the stand-in's sensors failed: {error}")
            return []
        self.unavailable = missing(found, {}, "the stand-in's script does not give it")
        return found


class ProgramReader(Reader):
    """Runs the programs of a table. A field is taken from the first that gave it; the rest are not run again."""

    slow = True

    def __init__(self, programs: tuple[Program, ...], in_child: InChild | None = None) -> None:
        super().__init__("it was not read yet")
        self._programs = programs
        self._in_child = in_child
        self._giver: dict[str, int] = {}
        self._asked: set[int] = set()
        """Programs that answered once, so that it is known what they give."""
        self._strikes = [0] * len(programs)
        self._reasons: dict[str, str] = {}

    def read(self) -> list[Reading]:
        found: dict[int, Reading] = {}
        reasons: dict[str, str] = {}
        readings: list[Reading]
        for index, program in enumerate(self._programs):
            wanted = self._wanted(index, program)
            if not wanted or self._strikes[index] >= STRIKES:
                continue
            output, failed = output_of(program.argv, program.timeout_s, self._in_child)
            readings, why = ([], failed) if failed else program_readings(program, output)
            if isinstance(why, str):
                self._strike(index, wanted, f"{program.argv[0]}: {why}", reasons)
                continue
            self._strikes[index] = 0
            self._asked.add(index)
            for name in wanted:
                if any(getattr(reading, name) is not None for reading in readings):
                    self._giver[name] = index
                    reasons.pop(name, None)
                elif self._giver.get(name, index) == index:
                    reasons.setdefault(name, f"{program.argv[0]}: {why.get(name, 'no device gave it')}")
            for reading in readings:
                known = found.setdefault(reading.device, Reading(device=reading.device))
                new = {name: getattr(reading, name) for name in wanted if getattr(known, name) is None}
                found[reading.device] = replace(known, **new)
        kept = {name: reason for name, reason in self._reasons.items() if name not in self._giver}
        readings = sorted(found.values(), key=lambda reading: reading.device)
        self._reasons = {**kept, **reasons}
        self.unavailable = missing(readings, self._reasons, NOT_DECLARED)
        return readings

    def _wanted(self, index: int, program: Program) -> list[str]:
        mine = [name for name in program.gives if self._giver.get(name, index) == index]
        return [name for name in mine if name in self._giver] if index in self._asked else mine

    def _strike(self, index: int, wanted: list[str], reason: str, reasons: dict[str, str]) -> None:
        self._strikes[index] += 1
        if reason.endswith("not found") or self._strikes[index] >= STRIKES:
            self._strikes[index] = STRIKES
            for name in wanted:
                self._giver.pop(name, None)  # whoever comes later in the list may give it from now on
        for name in wanted:
            reasons.setdefault(name, reason)


def program_readings(program: Program, output: str) -> tuple[list[Reading], dict[str, str] | str]:
    """What one output says, and for each field why some device lacks it; only a reason where nothing can be read."""
    try:
        return _readings(program, output)
    except UnreadableError as error:
        return [], str(error)
    except Exception as error:  # whatever strange output does to a parser, whoever samples goes on
        return [], f"its output could not be read ({type(error).__name__})"


def _readings(program: Program, output: str) -> tuple[list[Reading], dict[str, str]]:
    if not output.strip():
        raise UnreadableError("its output is empty")
    rows = program.rows(output)
    if not rows:
        raise UnreadableError("its output has no device in it")
    found: dict[int, Reading] = {}
    reasons: dict[str, str] = {}
    for place, row in enumerate(rows):
        device = program.device_of(row, place)
        if device is None:
            raise UnreadableError("a row does not say which device it is about")
        said: dict[str, Any] = {}
        for name in program.gives:
            said[name], reason = program.value(name, row)
            if said[name] is None:
                reasons.setdefault(name, reason)
        found.setdefault(device, Reading(device=device, **said))
    return list(found.values()), reasons


def missing(readings: list[Reading], reasons: Mapping[str, str], otherwise: str) -> dict[str, str]:
    """Fields that no device gave, each with its reason."""
    return {
        name: reasons.get(name, otherwise)
        for name in FIELDS
        if all(getattr(reading, name) is None for reading in readings)
    }


def _open_nvml(table: Sensors, in_child: InChild | None) -> Reader:
    from trainmark.platforms.nvml import NvmlReader, open_nvml

    opened = open_nvml()
    if isinstance(opened, NvmlReader):
        return opened
    return ProgramReader(table.programs, in_child) if table.programs else Reader(opened)


def _open_host(table: Sensors, in_child: InChild | None) -> Reader:
    from trainmark.platforms.host_sensors import HostReader

    return HostReader(Path(table.powercap))


_OPENERS: Mapping[str, Callable[[Sensors, InChild | None], Reader]] = {
    "nvml": _open_nvml,
    "program": lambda table, in_child: ProgramReader(table.programs, in_child),
    "host": _open_host,
    "standin": lambda table, in_child: StandInReader(),
    "none": lambda table, in_child: Reader(table.reason),
}
