"""What the devices of the stand-in do, by a script: how many they are, how slow, how hot, and when they fail.

The stand-in shows how a run fares on an accelerator that is not here. The variable TRAINMARK_STANDIN names a TOML
file; its keys are the fields of `Script`, for all devices, beside `devices`, their number. A `[[device]]` table says
what the device of its `index` does differently. Without the variable there are two devices that do nothing special.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.spec.errors import UsageError, nearest

if TYPE_CHECKING:  # the sampler, which only wants readings, must not have to load torch
    from trainmark.platforms.platform import OwnDevices
    from trainmark.platforms.reading import Reading

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "TRAINMARK_STANDIN"
DEVICES = 2
Values = tuple[float, ...]
"""What a sensor shows: one value a second, and again from the first."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What one device does."""

    memory_mib: float = 8192.0
    latency_us: float = 200.0
    """From an operation's launch to its beginning, if nothing is before it in the queue."""
    operation_us: float | None = None
    """How long each operation takes; otherwise as long as the CPU needs for it."""
    slowdown: float = 1.0
    """Times as long as that."""
    hang_after: int | None = None
    """Operations after which nothing ends any more."""
    lost_after: int | None = None
    """Operations after which every call fails."""
    power_w: Values | None = None
    temperature_c: Values | None = None
    utilisation_percent: Values | None = None
    clock_mhz: Values | None = None
    memory_used_mib: Values | None = None
    throttled: tuple[str, ...] = ()
    """Reasons the device gives for running slower than it could."""
    ecc_errors_per_s: float = 0.0
    """How fast the count of memory errors grows, which began at 0 with the machine."""


_SENSORS = ("power_w", "temperature_c", "utilisation_percent", "clock_mhz", "memory_used_mib")
_COUNTS = ("devices", "hang_after", "lost_after", "index")
_KEYS = [field.name for field in fields(Script)]


def scripts() -> list[Script]:
    """Of each device, as the file says that TRAINMARK_STANDIN names."""
    named = os.environ.get(VARIABLE)
    return read(Path(named)) if named else [Script()] * DEVICES


def read(path: Path) -> list[Script]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{VARIABLE} names {path}, which cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{VARIABLE} names {path}, which is not valid TOML: {error}") from None
    where = f"stand-in script {path}"
    tables = document.pop("device", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{where}: device must be written as [[device]] tables, each with its index")
    general = _checked(where, document, "devices")
    count = general.pop("devices", DEVICES)
    if count < 1:
        raise UsageError(f"{where}: devices must be 1 or more, not {count}")
    own: dict[int, dict[str, Any]] = {}
    for table in tables:
        values = _checked(f"{where}: [[device]]", table, "index")
        index = values.pop("index", None)
        if index is None or not 0 <= index < count or index in own:
            raise UsageError(f"{where}: [[device]] needs an index of its own from 0 to {count - 1}, not {index!r}")
        own[index] = values
    return [Script(**{**general, **own.get(index, {})}) for index in range(count)]


def readings() -> list[Reading]:
    """What the devices' sensors show now; what the script does not say is unknown."""
    from trainmark.platforms.reading import Reading

    now_s = time.monotonic()
    return [
        Reading(
            device=index,
            memory_used_bytes=_bytes(_now(script.memory_used_mib, now_s)),
            memory_total_bytes=_bytes(script.memory_mib),
            power_w=_now(script.power_w, now_s),
            energy_j=None if script.power_w is None else energy_j(script.power_w, now_s),
            temperature_c=_now(script.temperature_c, now_s),
            utilisation_percent=_now(script.utilisation_percent, now_s),
            clock_mhz=_now(script.clock_mhz, now_s),
            throttled=script.throttled,
            ecc_errors=int(script.ecc_errors_per_s * now_s),
        )
        for index, script in enumerate(scripts())
    ]


def energy_j(power_w: Values, until_s: float) -> float:
    """What a device with this power has used when its clock, which began at 0, shows so many seconds."""
    rounds, rest_s = divmod(until_s, len(power_w))
    whole_s = int(rest_s)
    return rounds * sum(power_w) + sum(power_w[:whole_s]) + (rest_s - whole_s) * power_w[whole_s]


def devices() -> OwnDevices:
    from trainmark.platforms.standin_device import StandInDevices

    return StandInDevices(scripts())


def _now(values: Values | None, now_s: float) -> float | None:
    return None if values is None else values[int(now_s) % len(values)]


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else round(mib * 2**20)


def _checked(where: str, table: Mapping[str, Any], also: str) -> dict[str, Any]:
    """The table's values, each of the type that its key wants."""
    known = [also, *_KEYS]
    for key in table:
        if key not in known:
            raise UsageError(f"{where}: key {key!r} is not known; {nearest(key, known)}")
    return {key: _value(f"{where}: {key}", key, value) for key, value in table.items()}


def _value(where: str, key: str, value: object) -> object:
    if key == "throttled":
        if not isinstance(value, list) or not all(isinstance(reason, str) for reason in value):
            raise UsageError(f"{where} must be a list of reasons, not {value!r}")
        return tuple(value)
    if key in _SENSORS:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UsageError(f"{where} must hold a number at least")
        return tuple(_number(where, one) for one in values)
    if key in _COUNTS and not isinstance(value, int):
        raise UsageError(f"{where} must be a whole number, not {value!r}")
    number = _number(where, value)
    return int(number) if key in _COUNTS else number


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise UsageError(f"{where} must be a number of 0 or more, not {value!r}")
    return float(value)
