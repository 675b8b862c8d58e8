"""How what the samplers saw is shown: a line a series, with where it began, ended and went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from trainmark.spec.format import number
from trainmark.spec.telemetry import MachineTelemetry, Series

Spark = Callable[[Sequence[float]], str]

_GIB = 2.0**30
DEVICE_SERIES = {
    "power_w": ("power", "W", 1.0),
    "temperature_c": ("temperature", "°C", 1.0),
    "memory_used_bytes": ("memory", "GiB", _GIB),
    "utilisation_percent": ("use", "%", 1.0),
    "clock_mhz": ("clock", "MHz", 1.0),
}
HOST_SERIES = {
    "cpu_percent": ("processors", "%", 1.0),
    "foreign_percent": ("other programs", "%", 1.0),
    "memory_used_bytes": ("memory", "GiB", _GIB),
    "load": ("load average", "", 1.0),
    "shm_free_bytes": ("free /dev/shm", "GiB", _GIB),
}
OTHER_WORDS = {
    "energy_j": "energy",
    "memory_total_bytes": "memory capacity",
    "throttled": "throttling",
    "ecc_errors": "memory errors",
}
MOST_DEVICES = 8


def remark(machine: MachineTelemetry) -> str:
    """How a machine was sampled, for a title."""
    said = f"{machine.host}, {machine.samples} samples, one every {number(machine.every_s)} s"
    return f"{said}; the sampler ended early" if machine.ended_early else said


def pairs(machine: MachineTelemetry, spark: Spark) -> Iterator[tuple[str, str]]:
    for device in machine.devices[:MOST_DEVICES]:
        several = f"{device.device} " if len(machine.devices) > 1 else ""
        yield from _drawn(device.series, DEVICE_SERIES, f"device {several}", spark)
    if len(machine.devices) > MOST_DEVICES:
        yield "", f"and {len(machine.devices) - MOST_DEVICES} more devices"
    yield from _drawn(machine.host_series, HOST_SERIES, "host ", spark)
    missing: dict[str, list[str]] = {}
    for name, reason in machine.unavailable.items():
        word = DEVICE_SERIES[name][0] if name in DEVICE_SERIES else OTHER_WORDS.get(name, name)
        missing.setdefault(reason, []).append(word)
    for reason, names in missing.items():
        yield "unavailable", f"{', '.join(names)}: {reason}"


def _drawn(
    series: Mapping[str, Series], shown: Mapping[str, tuple[str, str, float]], before: str, spark: Spark
) -> Iterator[tuple[str, str]]:
    for name, (word, unit, scale) in shown.items():
        values = [value / scale for value in series[name].values] if name in series else []
        if not values:
            continue
        mean, ends = number(sum(values) / len(values)), f"from {number(min(values))} to {number(max(values))}"
        yield f"{before}{word}", spark(values)
        yield "", f"mean {mean}, {ends} {unit}".rstrip()
