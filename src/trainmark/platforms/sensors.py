"""Reads the sensors of a platform as declared in its file: never raises, never blocks long, never guesses."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmark.platforms import standin
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.host_sensors import HostReader
from trainmark.platforms.nvml import NvmlReader, open_nvml
from trainmark.platforms.reading import FIELDS, Reader, Reading, find_missing
from trainmark.platforms.sensor_table import (
    HostSensors,
    NoSensors,
    NvmlSensors,
    Program,
    ProgramSensors,
    StandInSensors,
    UnreadableError,
)

MAX_FAILURES = 3
"""A program that failed so often in a row is not run again."""

MAX_BYTES = 4 << 20
"""Longer output is rejected."""

NOT_DECLARED = "no program of the platform file gives it"

InChild = Callable[[], None]


def open_reader(file: PlatformFile, *, in_child: InChild | None = None) -> Reader:
    """The reader of a platform file. `in_child` is called in every child process before its program."""
    match file.sensors:
        case None:
            return Reader("the platform file names no sensors")
        case NoSensors(reason=reason):
            return Reader(reason)
        case HostSensors(powercap=powercap):
            return HostReader(Path(powercap))
        case StandInSensors():
            return StandInReader()
        case NvmlSensors(programs=programs):
            opened = open_nvml()
            if isinstance(opened, NvmlReader):
                return opened
            return ProgramReader(programs, in_child) if programs else Reader(opened)
        case ProgramSensors(programs=programs):
            return ProgramReader(programs, in_child)


def find_used_devices(file: PlatformFile, reader: Reader, count: int, environ: Mapping[str, str]) -> list[int] | None:
    """The devices of local ranks 0 to count - 1; None where unknown."""
    if file.device_type == "cpu":
        return [0]
    visible = environ.get(file.visible_devices, "") if file.visible_devices else ""
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words:
        return list(range(count))
    numbers = reader.parse_devices(words)
    return numbers[:count] if numbers is not None and len(numbers) >= count else None


class StandInReader(Reader):
    """Reads the stand-in, whose sensors follow a script."""

    def read(self) -> list[Reading]:
        try:
            found = list(standin.read_sensors())
        except Exception as error:  # an invalid script must not end the sampler
            self.unavailable = dict.fromkeys(FIELDS, f"the stand-in's sensors failed: {error}")
            return []
        self.unavailable = find_missing(found, {}, "the stand-in's script does not give it")
        return found


class ProgramReader(Reader):
    """Runs the programs of a table. A field is read from the first program that has it; others are not run again."""

    slow = True

    def __init__(self, programs: tuple[Program, ...], in_child: InChild | None = None) -> None:
        super().__init__("it was not read yet")
        self._programs = programs
        self._in_child = in_child
        self._source: dict[str, int] = {}
        self._answered: set[int] = set()
        """Programs that succeeded once, so that their fields are known."""
        self._failures = [0] * len(programs)
        self._reasons: dict[str, str] = {}

    def read(self) -> list[Reading]:
        found: dict[int, Reading] = {}
        reasons: dict[str, str] = {}
        readings: list[Reading]
        for index, program in enumerate(self._programs):
            wanted = self._select_wanted(index, program)
            if not wanted or self._failures[index] >= MAX_FAILURES:
                continue
            output, failed = run_program(program.argv, program.timeout_s, self._in_child)
            readings, why = ([], failed) if failed else parse_readings(program, output)
            if isinstance(why, str):
                self._count_failure(index, wanted, f"{program.argv[0]}: {why}", reasons)
                continue
            self._failures[index] = 0
            self._answered.add(index)
            for name in wanted:
                if any(getattr(reading, name) is not None for reading in readings):
                    self._source[name] = index
                    reasons.pop(name, None)
                elif self._source.get(name, index) == index:
                    reasons.setdefault(name, f"{program.argv[0]}: {why.get(name, 'no device gave it')}")
            for reading in readings:
                known = found.setdefault(reading.device, Reading(device=reading.device))
                new = {name: getattr(reading, name) for name in wanted if getattr(known, name) is None}
                found[reading.device] = replace(known, **new)
        kept = {name: reason for name, reason in self._reasons.items() if name not in self._source}
        readings = sorted(found.values(), key=lambda reading: reading.device)
        self._reasons = {**kept, **reasons}
        self.unavailable = find_missing(readings, self._reasons, NOT_DECLARED)
        return readings

    def _select_wanted(self, index: int, program: Program) -> list[str]:
        mine = [name for name in program.gives if self._source.get(name, index) == index]
        return [name for name in mine if name in self._source] if index in self._answered else mine

    def _count_failure(self, index: int, wanted: list[str], reason: str, reasons: dict[str, str]) -> None:
        self._failures[index] += 1
        if reason.endswith("not found") or self._failures[index] >= MAX_FAILURES:
            self._failures[index] = MAX_FAILURES
            for name in wanted:
                self._source.pop(name, None)  # a later program may provide it from now on
        for name in wanted:
            reasons.setdefault(name, reason)


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
    rows = program.rows(output)
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
            values[name], reason = program.value(name, row)
            if values[name] is None:
                reasons.setdefault(name, reason)
        found.setdefault(device, Reading(device=device, **values))
    return list(found.values()), reasons


# Programs


def run_program(argv: Sequence[str], timeout_s: float, in_child: Callable[[], None] | None = None) -> tuple[str, str]:
    """The output and an empty string, or an empty string and why there is none."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
            start_new_session=True,  # so that its children can be killed with it
            preexec_fn=in_child,  # noqa: PLW1509 - called in a process that has one thread that matters
        )
    except FileNotFoundError:
        return "", "not found"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"cannot be started: {error}"
    try:
        written, failed = _read_pipes(process, time.monotonic() + timeout_s)
        if not failed:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
    finally:
        # also where it has ended: its children may live on and hold its pipes
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if failed:
        return "", failed.format(timeout_s=timeout_s)
    if process.returncode:
        last = [line.strip() for line in (written[1] or written[0]).decode("utf-8", "replace").splitlines()]
        words = next((line for line in last if line), "")
        return "", f"ended with exit code {process.returncode}" + (f": {words[:120]}" if words else "")
    return written[0].decode("utf-8", errors="replace"), ""


def _read_pipes(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[list[bytes], str]:
    written = [b"", b""]
    with selectors.DefaultSelector() as selector:
        for place, pipe in enumerate((process.stdout, process.stderr)):
            if pipe is not None:
                selector.register(pipe.fileno(), selectors.EVENT_READ, place)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            events = selector.select(left_s) if left_s > 0 else []
            if not events:
                return written, "did not answer within {timeout_s:g} s"
            for key, _ in events:
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                written[key.data] += piece
            if max(map(len, written)) > MAX_BYTES:
                return written, f"wrote more than {MAX_BYTES >> 20} MiB"
    return written, ""
