"""Checks the devices: count, names, precisions, sensors, and the speed of matmuls and memory."""

from __future__ import annotations

import platform as host_platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import trainmark
from trainmark.platforms import files, matmul_rate, sensors as sensor_readers
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.matmul_rate import Now, Work
from trainmark.platforms.platform import Device
from trainmark.platforms.reading import FIELDS, Reading
from trainmark.record.checks import CheckResult, check, doubt, failed, format_bytes, format_count, ok, unknown
from trainmark.record.doubts import RANK_SKEW
from trainmark.record.precision import PRECISIONS, Precision

MIN_REPEATS = 5
REPEAT_S = 0.02
"""Shorter work is repeated per reading of the clock."""
SIDES = (256, 512, 1024, 2048, 4096, 8192)
COPY_BYTES = 512 << 20
"""Larger than caches; less where the memory is small."""
MEMORY_SHARE = 16
UNSTEADY = 0.10
WANTED_OF_PEAK, MAX_OF_PEAK = 0.5, 1.05
"""Large matmuls reach 60 to 95 % of the data sheet; more than 100 % means another arithmetic ran."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The rate of each repeat."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance within which the middle 80 % lie, as a share of the median."""
        cuts = quantiles(self.values, n=10, method="inclusive")
        return (cuts[-1] - cuts[0]) / 2 / self.median


def check_matmul(devices: Sequence[Device], precision: Precision, *, budget_s: float) -> CheckResult:
    """Matmuls of large matrices on every device; `budget_s` is for all of them."""

    @check(f"matmul {precision.family}", "Speed")
    def result() -> CheckResult:
        try:
            rates = [measure_matmul(device, precision, budget_s=budget_s / len(devices)) for device in devices]
        except RuntimeError as error:
            return failed(f"the device failed: {str(error).partition(chr(10))[0]}")
        finally:
            devices[0].set_precision(PRECISIONS["fp32"])
        peak = devices[0].platform.file.peak(devices[0].name())
        return judge_rates(
            rates,
            unit="TFLOP/s",
            file=devices[0].platform.file,
            peak=peak.tflops.get(precision.family) if peak else None,
            source=peak.source if peak else "",
        )

    return result()


def check_copy(devices: Sequence[Device], *, budget_s: float) -> CheckResult:
    """Copies of a large buffer within the memory of every device."""

    @check("memory copy", "Speed")
    def result() -> CheckResult:
        try:
            rates = [measure_copy(device, budget_s=budget_s / len(devices)) for device in devices]
        except RuntimeError as error:
            return failed(f"the device failed: {str(error).partition(chr(10))[0]}")
        return judge_rates(rates, unit="GB/s", file=devices[0].platform.file)

    return result()


def measure_matmul(device: Device, precision: Precision, *, budget_s: float, now_s: Now = time.perf_counter) -> Rate:
    """TFLOP/s of the largest matmul that can be repeated within the budget."""
    device.set_precision(precision)
    with device.arithmetic(precision):
        return _largest_matmul(device, precision, budget_s, now_s)


def _largest_matmul(device: Device, precision: Precision, budget_s: float, now_s: Now) -> Rate:
    dtype = torch.float32 if precision.allows_tf32 else getattr(torch, precision.computes_in)
    for side in SIDES:
        multiply = matmul_rate.make_matmul(device, dtype, side)
        once_s = min(matmul_rate.time_work(device, multiply, now_s=now_s) for _ in range(2))
        if 8 * once_s * (MIN_REPEATS + 2) > budget_s:
            break
    return _measure_rate(device, multiply, 1e-12 * matmul_rate.count_matmul_flops(side), budget_s, once_s, now_s)


def measure_copy(device: Device, *, budget_s: float, now_s: Now = time.perf_counter) -> Rate:
    """GB/s, reads and writes counted, as in data sheets."""
    size = min(COPY_BYTES, (device.memory_capacity_bytes() or COPY_BYTES * MEMORY_SHARE) // MEMORY_SHARE)
    with device.arithmetic(PRECISIONS["fp32"]):
        source = torch.ones(size // 4, device=device.torch)
        target = torch.zeros_like(source)

        def move() -> None:
            target.copy_(source)

        once_s = matmul_rate.time_work(device, move, now_s=now_s)
        return _measure_rate(device, move, 2e-9 * 4 * source.numel(), budget_s, once_s, now_s)


def judge_rates(
    rates: Sequence[Rate], *, unit: str, file: PlatformFile, peak: float | None = None, source: str = ""
) -> CheckResult:
    """Judges the rates that the devices reached."""
    middle = median(rate.median for rate in rates)
    spread = max(rate.spread for rate in rates)
    slow = min(range(len(rates)), key=lambda index: rates[index].median)
    facts: dict[str, Any] = {
        "unit": unit,
        "median": middle,
        "spread": spread,
        "peak": peak,
        "share_of_peak": middle / peak if peak else None,
        "source": source or None,
        "devices": [{"median": rate.median, "spread": rate.spread, "repeats": len(rate.values)} for rate in rates],
    }
    sentence = f"{_format_rate(middle, unit)} ±{100 * spread:.2g} %"
    if peak:
        sentence += f", {100 * middle / peak:.0f} % of {peak:g} ({source})"
    if len(rates) > 1:
        sentence += f"; slowest is device {slow} with {_format_rate(rates[slow].median, unit)}"
    proof = f"trainmark platform check {file.word}"
    if peak and middle > MAX_OF_PEAK * peak:
        return doubt(
            f"{sentence}: more than its peak, so another arithmetic ran, or it is another device", proof, **facts
        )
    if peak and middle < WANTED_OF_PEAK * peak:
        return doubt(f"{sentence}: it may be shared, hot, or power-limited", proof, **facts)
    if rates[slow].median < (1 - RANK_SKEW) * middle:
        alone = f"export {file.visible_devices}={slow}; trainmark doctor" if file.visible_devices else ""
        below = f"{100 * (1 - rates[slow].median / middle):.0f} % below the median"
        return doubt(f"{sentence}, {below}", alone, **facts)
    if spread > UNSTEADY:
        return doubt(f"{sentence}: not steady, so other programs may use it", "top -b -n 1 -o %CPU | head -15", **facts)
    return ok(sentence, **facts)


def _format_rate(rate: float, unit: str) -> str:
    """`251 TFLOP/s`, `34.9 GFLOP/s`."""
    return f"{1000 * rate:.3g} G{unit[1:]}" if unit.startswith("T") and rate < 1 else f"{rate:.3g} {unit}"


def _measure_rate(device: Device, work: Work, amount: float, budget_s: float, once_s: float, now_s: Now) -> Rate:
    """`amount` is the work per call, in the unit of the rate times seconds."""
    times = max(1, min(1000, round(REPEAT_S / max(once_s, 1e-9))))
    taken = matmul_rate.time_repeats(device, work, budget_s=budget_s, times=times, least=MIN_REPEATS, now_s=now_s)
    return Rate(values=tuple(times * amount / seconds for seconds in taken))


DEFAULT_PRECISION = "fp32"
"""The default of a run."""

SENSOR_WORDS = {
    "memory_used_bytes": "memory",
    "memory_total_bytes": "memory size",
    "power_w": "power",
    "energy_j": "energy",
    "temperature_c": "temperature",
    "utilisation_percent": "utilisation",
    "clock_mhz": "clock",
    "throttled": "throttling",
    "ecc_errors": "ECC errors",
}


@check("torch", "Software")
def check_torch() -> CheckResult:
    """Checks torch's version, build and accelerator API."""
    built = {
        name: value
        for name, value in vars(torch.version).items()
        if isinstance(value, str) and not name.startswith("_") and name != "git_version"
    }
    built.pop("torch_version", None)
    facts: dict[str, Any] = {
        "version": torch.__version__,
        "built_for": built,
        "accelerator_api": hasattr(torch, "accelerator"),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    build = ", ".join(f"{name} {value}" for name, value in built.items()) or "the CPU only"
    sentence = f"{torch.__version__}, built for {build}; {format_count(torch.get_num_threads(), 'thread')}"
    if not facts["accelerator_api"]:
        return failed(
            f"{sentence}; it has no torch.accelerator", f"{sys.executable} -m pip install 'torch>=2.6'", **facts
        )
    return ok(f"{sentence}; {facts['cpu_capability']}", **facts)


@check("trainmark", "Software")
def check_versions() -> CheckResult:
    facts: dict[str, Any] = {
        "trainmark": trainmark.__version__,
        "python": host_platform.python_version(),
        "os": f"{host_platform.system()} {host_platform.release()}",
        "libc": " ".join(host_platform.libc_ver()),
        "optimised_python": sys.flags.optimize,
    }
    return ok(f"{facts['trainmark']} on Python {facts['python']}, {facts['os']}", **facts)


@check("platform", "Device")
def check_platform(
    file: PlatformFile, *, chosen_by: str, device_names: Sequence[str], unused: str | None = None
) -> CheckResult:
    """Checks that the file knows the devices' names; `unused` names a device without a file."""
    pattern = file.recognise.device_name
    peak = next(filter(None, map(file.peak, device_names)), None)
    known = pattern is None or any(re.search(pattern, name) for name in device_names)
    facts: dict[str, Any] = {
        "name": file.name,
        "title": file.title,
        "own_file": file.name not in files.names(),
        "chosen_by": chosen_by,
        "device_type": file.device_type,
        "collectives": file.collectives,
        "recognised_by_name": bool(pattern) and known,
        "peak_source": peak.source if peak else None,
    }
    sentence = f"{file.title} ({file.name}.toml), {chosen_by}; collectives by {file.collectives}"
    if unused:
        return doubt(f"{sentence}; {unused}", "trainmark platform new NAME", **facts)
    if device_names and not known:
        return doubt(
            f"{sentence}; {device_names[0]!r} does not match its devices ({pattern})",
            "trainmark list   # then --platform NAME",
            **facts,
        )
    if file.device_type != "cpu" and device_names and peak is None:
        return ok(f"{sentence}; no peak is known for {device_names[0]!r}, so MFU is left out", **facts)
    return ok(sentence, **facts)


@check("devices", "Device")
def check_devices(file: PlatformFile, opened: Sequence[Device], *, environ: Mapping[str, str]) -> CheckResult:
    """Checks their count, names and memory."""
    shown = environ.get(file.visible_devices or "", "")
    limited = f" ({file.visible_devices}={shown})" if shown else ""
    if not opened:
        return failed(
            f"torch sees no {file.title} device here{limited}",
            f"unset {file.visible_devices}" if shown else "trainmark run --platform cpu",
            count=0,
        )
    each = [(device.name(), device.memory_capacity_bytes()) for device in opened]
    facts: dict[str, Any] = {
        "count": len(each),
        "devices": [{"name": name, "memory_bytes": size} for name, size in each],
    }
    parts = []
    for (name, size), number in Counter(each).items():
        memory = f", {format_bytes(size)}" if size else ""
        parts.append((f"{number} x " if len(each) > 1 else "") + name + memory)
    sentence = "; ".join(parts) + limited
    if any(device.is_stand_in for device in opened):
        return doubt(f"{sentence}: a stand-in, whose speed means nothing", "trainmark doctor --platform auto", **facts)
    (usual, number), *others = Counter(name for name, _ in each).most_common()
    if others:
        alike = ",".join(str(index) for index, (name, _) in enumerate(each) if name == usual)
        remedy = f"export {file.visible_devices}={alike}   # the {number} alike" if file.visible_devices else ""
        return doubt(f"{sentence}: not all alike, so the slowest sets the pace", remedy, **facts)
    return ok(sentence, **facts)


@check("precision", "Device")
def check_precision(device: Device) -> CheckResult:
    """Checks which precisions of its file the device trains in, by a tiny layer of each."""
    listed = [PRECISIONS[name] for name in device.platform.file.precisions]
    refused = {one.name: reason for one in listed if (reason := device.explain_refusal(one))}
    runs = [one for one in listed if one.name not in refused]
    emulated = [one.name for one in runs if device.emulates(one)]
    facts: dict[str, Any] = {"runs": [one.name for one in runs], "emulated": emulated, "refused": refused}
    sentence = ", ".join(one.name for one in runs if one.name not in emulated) or "none natively"
    if emulated:
        sentence += f"; {', '.join(emulated)} only emulated"
    if not refused:
        return ok(sentence, **facts)
    name, reason = next(iter(refused.items()))
    sentence += f"; {', '.join(refused)} not at all: {reason}"
    if not runs or DEFAULT_PRECISION in refused:
        first = f"trainmark run --precision {runs[0].name}" if runs else "trainmark run --platform cpu"
        return failed(sentence, first, **facts)
    return doubt(sentence, f"trainmark run --precision {runs[0].name}   # not {name}", **facts)


@check("sensors", "Device")
def check_sensors(file: PlatformFile) -> CheckResult:
    """Checks which sensor values can be read, and why not the others."""
    readings, missing = read_sensors(file)
    there = [name for name in FIELDS if any(getattr(reading, name) is not None for reading in readings)]
    facts: dict[str, Any] = {"read": there, "unavailable": missing, "devices": len(readings)}
    reasons = group_by_reason({name: reason for name, reason in missing.items() if name not in there})
    lacking = "; ".join(f"no {', '.join(_name_sensors(lacked))}: {reason}" for reason, lacked in reasons.items())
    if not there:
        return unknown("; ".join(["nothing can be read", *reasons]), **facts)
    sentence = "; ".join(filter(None, (", ".join(_name_sensors(there)), lacking)))
    return ok(sentence, **facts) if {"power_w", "energy_j"} & set(there) else unknown(sentence, **facts)


def read_sensors(file: PlatformFile) -> tuple[Sequence[Reading], dict[str, str]]:
    """One reading of every device, and why fields are missing."""
    reader = sensor_readers.open_reader(file)
    try:
        return reader.read(), dict(reader.unavailable)
    finally:
        reader.close()


def explain_choice(file: PlatformFile, word: str | None, environ: Mapping[str, str]) -> str:
    """How the platform was chosen."""
    if word not in (None, "auto"):
        return "as requested" if file.name in files.names() else f"from {Path(str(word)).name}"
    return "as TRAINMARK_PLATFORM says" if environ.get("TRAINMARK_PLATFORM") else "found by auto"


def list_families(device: Device) -> list[Precision]:
    """One precision per number type that the device computes natively."""
    found: dict[str, Precision] = {}
    for name in device.platform.file.precisions:
        if not device.emulates(PRECISIONS[name]):
            found.setdefault(PRECISIONS[name].family, PRECISIONS[name])
    return list(found.values())


def _name_sensors(names: Iterable[str]) -> list[str]:
    return [SENSOR_WORDS.get(name, name) for name in names]


def group_by_reason(missing: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in missing.items():
        reasons.setdefault(reason, []).append(name)
    return reasons
