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

from trainmark.platforms.reading import Reading
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
Values = Annotated[
    _Number | Annotated[tuple[_Number, ...], Meta(min_length=1)],
    Meta(description="a number of 0 or more, or a list of such"),
]
"""Values of a sensor: one per second, repeated."""


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
    power_w: Values | None = None
    temperature_c: Values | None = None
    utilisation_percent: Values | None = None
    clock_mhz: Values | None = None
    memory_used_mib: Values | None = None
    throttled: Annotated[tuple[str, ...], Meta(description="a list of reasons")] = ()
    """Throttle reasons."""
    ecc_errors_per_s: _Number = 0.0
    """Memory errors per second since boot."""

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
    memory_told_by: Literal["module", "accelerator", "nobody"] = "module"
    """What reports memory: the torch module of the device, torch.accelerator, or nothing."""


class _DeviceScript(Script, frozen=True, kw_only=True):
    index: _Count


class _ScriptFile(Script, frozen=True, kw_only=True):
    devices: Annotated[int, Meta(ge=1, description="1 or more")] = DEVICES
    device: Annotated[
        tuple[_DeviceScript, ...], Meta(description="written as [[device]] tables, each with its index")
    ] = ()

    def __post_init__(self) -> None:
        own: set[int] = set()
        for entry in self.device:
            if entry.index >= self.devices or entry.index in own:
                raise ValueError(
                    f"[[device]] needs an index of its own from 0 to {self.devices - 1}, not {entry.index}"
                )
            own.add(entry.index)


def load_scripts() -> list[Script]:
    """One script per device, from the file that TRAINMARK_STANDIN names."""
    named = os.environ.get(VARIABLE)
    return read_script(Path(named)) if named else [Script()] * DEVICES


def read_script(path: Path) -> list[Script]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{VARIABLE} names {path}, which cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{VARIABLE} names {path}, which is not valid TOML: {error}") from None
    where = f"stand-in script {path}"
    found = tables.read(_ScriptFile, document, where)
    own: dict[int, dict[str, Any]] = {table["index"]: table for table in document.get("device", ())}
    return [
        tables.read(Script, _select_script_keys({**document, **own.get(index, {})}), where)
        for index in range(found.devices)
    ]


def _select_script_keys(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in Script.__struct_fields__}


def read_sensors() -> list[Reading]:
    """The current readings of all devices; unknown where the script has no value."""
    now_s = time.monotonic()
    return [
        Reading(
            device=index,
            memory_used_bytes=_to_bytes(_value_at(script.memory_used_mib, now_s)),
            memory_total_bytes=_to_bytes(script.memory_mib),
            power_w=_value_at(script.power_w, now_s),
            energy_j=None if script.power_w is None else compute_energy_j(script.power_w, now_s),
            temperature_c=_value_at(script.temperature_c, now_s),
            utilisation_percent=_value_at(script.utilisation_percent, now_s),
            clock_mhz=_value_at(script.clock_mhz, now_s),
            throttled=script.throttled,
            ecc_errors=int(script.ecc_errors_per_s * now_s),
        )
        for index, script in enumerate(load_scripts())
    ]


def compute_energy_j(power: float | tuple[float, ...], until_s: float) -> float:
    """The energy used at this power in so many seconds."""
    power_w = _as_tuple(power)
    rounds, rest_s = divmod(until_s, len(power_w))
    whole_s = int(rest_s)
    return rounds * sum(power_w) + sum(power_w[:whole_s]) + (rest_s - whole_s) * power_w[whole_s]


def _value_at(values: float | tuple[float, ...] | None, now_s: float) -> float | None:
    return None if values is None else _as_tuple(values)[int(now_s) % len(_as_tuple(values))]


def _as_tuple(values: float | tuple[float, ...]) -> tuple[float, ...]:
    return values if isinstance(values, tuple) else (values,)


def _to_bytes(mib: float | None) -> int | None:
    return None if mib is None else round(mib * 2**20)
