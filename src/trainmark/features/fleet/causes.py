"""Finds what may explain a slow host: clocks, heat, throttling, memory errors, foreign load, different software."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median

from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.format import number, short_device
from trainmark.record.machine import MachineTelemetry
from trainmark.record.record import Record

CLOCK_LOWER = 0.03
"""Share below the fleet's median clock from which a clock is reported."""
HOTTER_C = 8.0
"""Degrees above the fleet's median from which a host is reported as hot."""
SHARE_MORE = 0.05
"""Additional share of throttled samples, or of processors used by other programs, that is reported."""
POWER_LESS = 0.08

Figures = Mapping[str, float | None]


def read_figures(record: Record) -> Figures:
    """The telemetry of a run in a few figures; None where no sensor measured it."""
    machines = record.telemetry.machines
    throttled = record.metrics.get("throttled")
    errors = [
        device.ecc_errors_new for machine in machines for device in machine.devices if device.ecc_errors_new is not None
    ]
    return {
        "clock_mhz": _lowest_mean(machines, "clock_mhz"),
        "temperature_c": _highest(machines, "temperature_c"),
        "power_w": _lowest_mean(machines, "power_w"),
        "throttled": None if throttled is None or throttled.value is None else throttled.value / 100,
        "ecc_errors": sum(errors) if errors else None,
        "foreign_load": record.environment.foreign_load,
    }


def take_medians(fleet: Sequence[Figures]) -> Figures:
    """The fleet's median of each figure."""
    found: dict[str, float | None] = {}
    for name in fleet[0] if fleet else ():
        known = [value for one in fleet if (value := one[name]) is not None]
        found[name] = median(known) if known else None
    return found


def explain(own: Figures, fleet: Figures) -> Iterator[str]:
    """Describes what is worse on a host than at the fleet's median."""

    def beside(name: str) -> tuple[float, float] | None:
        mine, theirs = own.get(name), fleet.get(name)
        return None if mine is None or theirs is None else (mine, theirs)

    if (clock := beside("clock_mhz")) and clock[0] < clock[1] * (1 - CLOCK_LOWER):
        yield f"its slowest device ran at {number(clock[0])} MHz, the fleet's median at {number(clock[1])} MHz"
    if (heat := beside("temperature_c")) and heat[0] > heat[1] + HOTTER_C:
        yield f"it reached {number(heat[0])} °C, the fleet's median {number(heat[1])} °C"
    if (slowed := beside("throttled")) and slowed[0] > slowed[1] + SHARE_MORE:
        yield f"a device was throttled in {100 * slowed[0]:.0f} % of samples"
    if (errors := beside("ecc_errors")) and errors[0] > errors[1]:
        yield f"its memory had {errors[0]:.0f} new uncorrectable errors"
    if (load := beside("foreign_load")) and load[0] > max(FOREIGN_LOAD, load[1] + SHARE_MORE):
        yield f"other programs used {100 * load[0]:.0f} % of its processors"
    if (power := beside("power_w")) and power[0] < power[1] * (1 - POWER_LESS):
        yield f"a device drew {number(power[0])} W, the fleet's median {number(power[1])} W"


SOFTWARE: Mapping[str, Callable[[Record], object]] = {
    "device": lambda record: short_device(record.environment.device.name),
    "driver": lambda record: record.environment.device.driver,
    "processor": lambda record: short_device(record.environment.cpu.name),
    "usable cores": lambda record: record.environment.cpu.usable_cores,
    "threads": lambda record: record.environment.threads,
    "kernel": lambda record: record.environment.os,
    "torch": lambda record: record.environment.torch,
    "python": lambda record: record.environment.python,
}
"""Facts that all hosts of a fleet should share."""


def find_differences(records: Mapping[str, Record]) -> dict[str, list[str]]:
    """By host, the facts that differ from those of the majority; facts without a majority are left out."""
    found: dict[str, list[str]] = {}
    for name, fact in SOFTWARE.items():
        values = {host: str(value) for host, record in records.items() if (value := fact(record)) not in (None, "")}
        if len(values) < 3:
            continue
        common, count = Counter(values.values()).most_common(1)[0]
        if count * 2 <= len(values):
            continue
        for host, value in values.items():
            if value != common:
                found.setdefault(host, []).append(f"its {name} is {value}, the fleet's {common}")
    return found


SILENT = frozenset({"throttled", "ecc-errors", "foreign-load"})
"""Doubts that the figures cover already."""


def find_own_doubts(record: Record, fleet: Sequence[Record]) -> Iterator[str]:
    """Doubts of a host that less than a quarter of the fleet shares."""
    counts = Counter(code for one in fleet for code in {doubt.code for doubt in one.doubts})
    for doubt in record.doubts:
        if doubt.code not in SILENT and counts[doubt.code] * 4 < len(fleet):
            yield doubt.text


def _select_training(machine: MachineTelemetry, values: Sequence[float], at_s: Sequence[float]) -> list[float]:
    if len(machine.training_s) < 2:
        return list(values)
    begin, end = machine.training_s
    return [value for value, at in zip(values, at_s, strict=True) if begin <= at <= end] or list(values)


def _device_values(machines: Sequence[MachineTelemetry], name: str) -> Iterator[list[float]]:
    for machine in machines:
        for device in machine.devices:
            if (series := device.series.get(name)) and series.values:
                yield _select_training(machine, series.values, series.at_s)


def _lowest_mean(machines: Sequence[MachineTelemetry], name: str) -> float | None:
    return min((fmean(values) for values in _device_values(machines, name)), default=None)


def _highest(machines: Sequence[MachineTelemetry], name: str) -> float | None:
    return max((max(values) for values in _device_values(machines, name)), default=None)
