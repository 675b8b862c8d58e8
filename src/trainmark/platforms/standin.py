"""Scripts of the stand-in, a simulated accelerator: number of devices, speed, sensors, faults, wrong results.

The variable TRAINMARK_STANDIN names a TOML file; its keys are the fields of `Script`, for all devices, and `devices`,
their number. A `[[device]]` table overrides them for the device of its `index`. Without the variable there are two
devices without faults.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from trainmark.platforms.sensors import FIELDS, Reader, Reading, find_missing
from trainmark.record import tables
from trainmark.record.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "TRAINMARK_STANDIN"
DEVICES = 2
_Number = Annotated[float, Meta(ge=0, le=sys.float_info.max, description="a number of 0 or more")]
_Count = Annotated[int, Meta(ge=0, description="a whole number of 0 or more")]


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A flipped bit in the result of an operator, or in what it writes in place."""

    operator: str
    """As `relu` for `aten::relu`, or `allreduce_` for the result of a collective."""
    at: tuple[_Count, ...] = ()
    """Which calls of the operator on the device, counted from 1."""
    every: _Count = 0
    """Every n-th call."""
    tensor: _Count = 0
    """Which of several tensors, modulo their number."""
    place: _Count = 0
    """Which element of the tensor, modulo its size."""
    bit: _Count = 20
    """Which bit, from the lowest, modulo their number."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of one device."""

    memory_mib: _Number = 8192.0
    latency_us: _Number = 200.0
    """From the launch of an operation to its start in an empty queue."""
    operation_us: _Number | None = None
    """How long each operation takes; by default as long as on the CPU."""
    slowdown: _Number = 1.0
    """Factor on that."""
    hang_after: _Count | None = None
    """Operations after which the device hangs."""
    lost_after: _Count | None = None
    """Operations after which every call fails."""
    power_w: _Number | None = None
    temperature_c: _Number | None = None
    utilisation_percent: _Number | None = None
    clock_mhz: _Number | None = None
    memory_used_mib: _Number | None = None
    throttled: Annotated[tuple[str, ...], Meta(description="a list of reasons")] = ()
    """Throttle reasons."""
    ecc_errors_per_s: _Number = 0.0
    """Memory errors per second since boot."""

    honest_for: _Count = 0
    """Operations before the lies below begin, but for the clock."""
    event_clock: _Number = 1.0
    """Factor on the times between events of the device."""
    float32_inside: Literal["float32", "tf32", "float16", "bfloat16"] = "float32"
    """The type that float32 operands of matmuls are rounded to."""
    exchanges: bool = True
    """False: collectives succeed without exchanging anything."""
    wrong_operators: tuple[str, ...] = ()
    """Operators, as `relu` for `aten::relu`, whose results are 10 % too large."""
    unwritten_operators: tuple[str, ...] = ()
    """Operators whose in-place results, such as running statistics, are lost."""
    missing_operators: tuple[str, ...] = ()
    """Operators the device does not have."""
    flips: tuple[Flip, ...] = ()
    """Bits that are flipped."""
    unsteady_operators: tuple[str, ...] = ()
    """Operators whose results differ from call to call, unless torch.use_deterministic_algorithms is on."""
    ever_unsteady_operators: tuple[str, ...] = ()
    """Operators whose results always differ from call to call."""
    plain_memory_error: bool = False
    """Out of memory is a plain RuntimeError with a message of the vendor."""


def load_scripts() -> list[Script]:
    """One script per device, from the file that TRAINMARK_STANDIN names."""
    if not (named := os.environ.get(VARIABLE)):
        return [Script()] * DEVICES
    try:
        common: dict[str, Any] = tomllib.loads(Path(named).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{VARIABLE} names {named}, which cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{VARIABLE} names {named}, which is not valid TOML: {error}") from None
    where = f"stand-in script {named}"
    count, own = common.pop("devices", DEVICES), common.pop("device", [])
    indices = [table.get("index") for table in own]
    if not isinstance(count, int) or count < 1 or len({*indices} & {*range(count)}) < len(indices):
        raise UsageError(f"{where}: devices must be 1 or more, and each [[device]] needs an index of its own below it")
    overrides = {table.pop("index"): table for table in own}
    return [tables.read(Script, {**common, **overrides.get(index, {})}, where) for index in range(count)]


def open_reader() -> Reader:
    """The sensors of all devices."""
    return StandInReader()


class StandInReader(Reader):
    """Sensors that follow the script; unknown where it has no value."""

    def read(self) -> list[Reading]:
        try:
            scripts = load_scripts()
        except UsageError as error:  # an invalid script must not end the sampler
            self.unavailable = dict.fromkeys(FIELDS, f"the stand-in's sensors failed: {error}")
            return []
        found = [_read_device(index, script, time.monotonic()) for index, script in enumerate(scripts)]
        self.unavailable = find_missing(found, {}, "the stand-in's script does not give it")
        return found


def _read_device(index: int, script: Script, now_s: float) -> Reading:
    return Reading(
        device=index,
        memory_used_bytes=None if script.memory_used_mib is None else script.memory_used_mib * 2**20,
        memory_total_bytes=script.memory_mib * 2**20,
        power_w=script.power_w,
        energy_j=None if script.power_w is None else script.power_w * now_s,
        temperature_c=script.temperature_c,
        utilisation_percent=script.utilisation_percent,
        clock_mhz=script.clock_mhz,
        throttled=script.throttled,
        ecc_errors=int(script.ecc_errors_per_s * now_s),
    )
