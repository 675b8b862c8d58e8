"""What the devices of the stand-in do, by a script: how many they are, how slow, how hot, when they fail, how they lie.

The stand-in shows how a run fares on an accelerator that is not here. The variable TRAINMARK_STANDIN names a TOML
file; its keys are the fields of `Script`, for all devices, beside `devices`, their number. A `[[device]]` table says
what the device of its `index` does differently. Without the variable there are two devices that do nothing special.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from trainmark.record import tables
from trainmark.record.errors import UsageError

if TYPE_CHECKING:  # the sampler, which only wants readings, must not have to load torch
    from trainmark.platforms.reading import Reading

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
"""What a sensor shows: one value a second, and again from the first."""


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """A bit that comes out wrong in what an operator gives, or in what it writes where it writes in place."""

    operator: str
    """As `aten::relu` without its first word, or `allreduce_` for what an exchange leaves."""
    at: tuple[_Count, ...] = ()
    """Which of the operator's calls on the device are hit, counted from 1."""
    every: _Count = 0
    """Every so manieth of them."""
    tensor: _Count = 0
    """Of several that the operator gives or writes, which; counted round where there are fewer."""
    place: _Count = 0
    """Which of the tensor's numbers, counted round."""
    bit: _Count = 20
    """Which of its bits, from the lowest, counted round."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """What one device does."""

    memory_mib: _Number = 8192.0
    latency_us: _Number = 200.0
    """From an operation's launch to its beginning, if nothing is before it in the queue."""
    operation_us: _Number | None = None
    """How long each operation takes; otherwise as long as the CPU needs for it."""
    slowdown: _Number = 1.0
    """Times as long as that."""
    hang_after: _Count | None = None
    """Operations after which nothing ends any more."""
    lost_after: _Count | None = None
    """Operations after which every call fails."""
    power_w: Values | None = None
    temperature_c: Values | None = None
    utilisation_percent: Values | None = None
    clock_mhz: Values | None = None
    memory_used_mib: Values | None = None
    throttled: Annotated[tuple[str, ...], Meta(description="a list of reasons")] = ()
    """Reasons the device gives for running slower than it could."""
    ecc_errors_per_s: _Number = 0.0
    """How fast the count of memory errors grows, which began at 0 with the machine."""

    event_clock: _Number = 1.0
    """Times as much as really passed is what the device's events count."""
    float32_inside: Literal["float32", "tf32", "float16", "bfloat16"] = "float32"
    """What factors of float32 are rounded to, unasked, before they are multiplied."""
    exchanges: bool = True
    """False: collectives end without an error and exchange nothing."""
    wrong_operators: tuple[str, ...] = ()
    """Operators, as `aten::relu` without its first word, whose results come out a tenth too large."""
    unwritten_operators: tuple[str, ...] = ()
    """Operators that lose what they write into tensors they are given, such as running statistics."""
    missing_operators: tuple[str, ...] = ()
    """Operators the device does not have."""
    flips: tuple[Flip, ...] = ()
    """Bits that come out wrong now and then."""
    unsteady_operators: tuple[str, ...] = ()
    """Operators whose results differ from call to call, unless torch.use_deterministic_algorithms is on."""
    ever_unsteady_operators: tuple[str, ...] = ()
    """Operators whose results differ from call to call whatever anybody asks for."""
    plain_memory_error: bool = False
    """Memory that ends is said as a plain RuntimeError, in words of the vendor's own."""
    memory_told_by: Literal["module", "accelerator", "nobody"] = "module"
    """Whose functions tell how much memory is there and used: torch's module for the device, torch.accelerator."""


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
    """Of each device, as the file says that TRAINMARK_STANDIN names."""
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
    """What the devices' sensors show now; what the script does not say is unknown."""
    from trainmark.platforms.reading import Reading

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
    """What a device with this power has used when its clock, which began at 0, shows so many seconds."""
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
