"""Checks the devices: count, names, precisions, sensors, and the speed of matmuls and memory."""

from __future__ import annotations

import os
import platform as host_platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import trainmark
from trainmark.features.doctor.host_checks import check_driver
from trainmark.platforms import detection, files, matmul_probe, sensors
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.matmul_probe import Now, Work
from trainmark.platforms.platform import Device, Platform
from trainmark.platforms.sensors import FIELDS
from trainmark.record.checks import (
    CheckResult,
    check,
    doubt,
    failed,
    first_line,
    format_bytes,
    format_count,
    ok,
    unknown,
)
from trainmark.record.doubts import RANK_SKEW
from trainmark.record.errors import TrainmarkError
from trainmark.record.precision import PRECISIONS, Precision

DEFAULT_PRECISION = "fp32"
"""The default of a run."""
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


def check_all_devices(requested: str | None, root: Path) -> tuple[list[CheckResult], Sequence[Device]]:
    """Every check of the devices but their speed, and the opened devices.

    Raises where the platform is unknown; devices that cannot be opened are a finding.
    """
    is_auto = requested in (None, "auto")
    file = files.load(detection.choose_platform() if is_auto else str(requested))
    opened: list[Device] = []

    @check("devices", "Device")
    def devices() -> CheckResult:
        try:
            platform = Platform(file)
            opened.extend(platform.open(index) for index in range(1 if platform.is_cpu else platform.device_count))
        except (TrainmarkError, RuntimeError) as error:
            opened.clear()
            return failed(str(error).partition("\n")[0], "trainmark run --platform cpu")
        return judge_devices(file, opened)

    found = devices()
    results = [
        check_platform(file, [device.name() for device in opened], detection.find_undescribed_if_auto(requested)),
        found,
        check_driver(root, is_cpu=file.device_type == "cpu"),
        *([check_precision(opened[0])] if opened else []),
        check_sensors(file),
    ]
    return results, opened


@check("torch", "Software")
def check_torch() -> CheckResult:
    """torch's version and build, and what it runs on."""
    built = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")}
    build = ", ".join(f"{name} {value}" for name, value in built.items() if value) or "the CPU only"
    capability = torch.backends.cpu.get_cpu_capability()
    threads = format_count(torch.get_num_threads(), "thread")
    host = f"Python {host_platform.python_version()}, {host_platform.system()} {host_platform.release()}"
    return ok(
        f"{torch.__version__}, built for {build}; {threads}; {capability}; trainmark {trainmark.__version__} on {host}"
    )


@check("platform", "Device")
def check_platform(file: PlatformFile, device_names: Sequence[str], unused: str | None = None) -> CheckResult:
    """Checks that the file knows the devices' names; `unused` names a device without a file."""
    pattern = file.recognise.device_name
    sentence = f"{file.title} ({file.name}.toml); collectives by {file.collectives}"
    if unused:
        return doubt(f"{sentence}; {unused}", "trainmark platform new NAME")
    if device_names and pattern and not any(re.search(pattern, name) for name in device_names):
        return doubt(
            f"{sentence}; {device_names[0]!r} does not match its devices ({pattern})",
            "trainmark list   # then --platform NAME",
        )
    if device_names and file.device_type != "cpu" and not any(map(file.peak, device_names)):
        return ok(f"{sentence}; no peak is known for {device_names[0]!r}, so MFU is left out")
    return ok(sentence)


def judge_devices(file: PlatformFile, opened: Sequence[Device]) -> CheckResult:
    """Judges their count, names and memory."""
    shown = os.environ.get(file.visible_devices or "", "")
    limited = f" ({file.visible_devices}={shown})" if shown else ""
    if not opened:
        return failed(
            f"torch sees no {file.title} device here{limited}",
            f"unset {file.visible_devices}" if shown else "trainmark run --platform cpu",
        )
    each = [(device.name(), device.memory_capacity_bytes()) for device in opened]
    parts = []
    for (name, size), number in Counter(each).items():
        memory = f", {format_bytes(size)}" if size else ""
        parts.append((f"{number} x " if len(each) > 1 else "") + name + memory)
    sentence = "; ".join(parts) + limited
    if any(device.is_stand_in for device in opened):
        return doubt(f"{sentence}: a stand-in, whose speed means nothing", "trainmark doctor --platform auto")
    (usual, number), *others = Counter(name for name, _ in each).most_common()
    if others:
        alike = ",".join(str(index) for index, (name, _) in enumerate(each) if name == usual)
        remedy = f"export {file.visible_devices}={alike}   # the {number} alike" if file.visible_devices else ""
        return doubt(f"{sentence}: not all alike, so the slowest sets the pace", remedy)
    return ok(sentence)


@check("precision", "Device")
def check_precision(device: Device) -> CheckResult:
    """Checks which precisions of its file the device trains in, by a tiny layer and a few matmuls of each."""
    listed = [PRECISIONS[name] for name in device.platform.file.precisions]
    refused = {one.name: fault for one in listed if (fault := find_fault(device, one))}
    runs = [one for one in listed if one.name not in refused]
    emulated = [one.name for one in runs if device.emulates(one)]
    sentence = ", ".join(one.name for one in runs if one.name not in emulated) or "none natively"
    if emulated:
        sentence += f"; {', '.join(emulated)} only emulated"
    if not refused:
        return ok(sentence)
    name, reason = next(iter(refused.items()))
    sentence += f"; {', '.join(refused)} not at all: {reason}"
    if not runs or DEFAULT_PRECISION in refused:
        return failed(sentence, f"trainmark run --precision {runs[0].name}" if runs else "trainmark run --platform cpu")
    return doubt(sentence, f"trainmark run --precision {runs[0].name}   # not {name}")


def find_fault(device: Device, precision: Precision) -> str | None:
    """Why no layer can be trained in a precision, or which other type its matmuls are computed in."""
    if reason := device.explain_refusal(precision):
        return reason
    # of TF32 matmuls alone: for convolutions a library may choose an algorithm without it
    kinds = ("matmul",) if precision.allows_tf32 else tuple(matmul_probe.KINDS)
    weights, wanted = getattr(torch, precision.weights), precision.unscaled
    try:
        device.set_precision(precision)
        found = [(kind, wanted, matmul_probe.find_type(kind, device, precision, weights)) for kind in kinds]
        if precision.scaled:
            found += [("matmul", *pair) for pair in matmul_probe.find_scaled_types(device, precision).items()]
    except (RuntimeError, NotImplementedError) as error:
        return first_line(error)
    finally:
        device.set_precision(PRECISIONS["fp32"])
    wrong = [f"{kind}: computed in {used}, not in {asked}" for kind, asked, used in found if used != asked]
    return wrong[0] if wrong else None


@check("sensors", "Device")
def check_sensors(file: PlatformFile) -> CheckResult:
    """Checks which sensor values can be read, and why not the others."""
    reader = sensors.open_reader(file.sensors)
    try:
        readings, missing = reader.read(), reader.unavailable
    finally:
        reader.close()
    there = [name for name in FIELDS if any(getattr(reading, name) is not None for reading in readings)]
    lacking: dict[str, list[str]] = {}
    for name in FIELDS:
        if name not in there:
            lacking.setdefault(missing.get(name, "no device gave it"), []).append(name)
    reasons = [f"no {_name_sensors(names)}: {reason}" for reason, names in lacking.items()]
    if not there:
        return unknown("; ".join(["nothing can be read", *lacking]))
    sentence = "; ".join([_name_sensors(there), *reasons])
    return ok(sentence) if {"power_w", "energy_j"} & {*there} else unknown(sentence)


def _name_sensors(names: Sequence[str]) -> str:
    """`power, memory used` of power_w and memory_used_bytes."""
    return ", ".join(re.sub(r"_(bytes|w|j|c|percent|mhz)$", "", name).replace("_", " ") for name in names)


# Speed

Rates = tuple[float, ...]
"""One rate per repeat."""


def check_speed(devices: Sequence[Device], probe_s: float) -> Iterator[CheckResult]:
    """Matmuls of each number type that the devices compute natively, and memory copies, for so long altogether."""
    file, families = devices[0].platform.file, dict[str, Precision]()
    for precision in (PRECISIONS[name] for name in file.precisions):
        if not devices[0].emulates(precision):
            families.setdefault(precision.family, precision)
    share_s = probe_s / (len(families) + 1) / len(devices)
    peak = file.peak(devices[0].name())
    for family, precision in families.items():
        tflops, source = (peak.tflops.get(family), peak.source) if peak else (None, "")
        measure = partial(measure_matmul, precision=precision, budget_s=share_s)
        yield check_rate(f"matmul {family}", devices, measure, unit="TFLOP/s", peak=tflops, source=source)
    devices[0].set_precision(PRECISIONS["fp32"])
    yield check_rate("memory copy", devices, partial(measure_copy, budget_s=share_s), unit="GB/s")


def check_rate(
    name: str,
    devices: Sequence[Device],
    measure: Callable[[Device], Rates],
    *,
    unit: str,
    peak: float | None = None,
    source: str = "",
) -> CheckResult:
    @check(name, "Speed")
    def result() -> CheckResult:
        try:
            rates = [measure(device) for device in devices]
        except RuntimeError as error:
            return failed(f"the device failed: {str(error).partition(chr(10))[0]}")
        return judge_rates(rates, unit=unit, file=devices[0].platform.file, peak=peak, source=source)

    return result()


def measure_matmul(device: Device, precision: Precision, *, budget_s: float) -> Rates:
    """TFLOP/s of the largest matmul that can be repeated within the budget."""
    device.set_precision(precision)
    dtype = torch.float32 if precision.allows_tf32 else getattr(torch, precision.computes_in)
    with device.arithmetic(precision):
        for side in SIDES:
            multiply = matmul_probe.make_matmul(device, dtype, side)
            once_s = min(matmul_probe.time_work(device, multiply) for _ in range(2))
            if 8 * once_s * (MIN_REPEATS + 2) > budget_s:
                break
        return measure_rates(device, multiply, 1e-12 * matmul_probe.count_matmul_flops(side), budget_s, once_s)


def measure_copy(device: Device, *, budget_s: float) -> Rates:
    """GB/s, reads and writes counted, as in data sheets."""
    size = min(COPY_BYTES, (device.memory_capacity_bytes() or COPY_BYTES * MEMORY_SHARE) // MEMORY_SHARE)
    with device.arithmetic(PRECISIONS["fp32"]):
        source = torch.ones(size // 4, device=device.torch)
        target = torch.zeros_like(source)
        once_s = matmul_probe.time_work(device, lambda: target.copy_(source))
        return measure_rates(device, lambda: target.copy_(source), 2e-9 * 4 * source.numel(), budget_s, once_s)


def measure_rates(
    device: Device, work: Work, amount: float, budget_s: float, once_s: float, now_s: Now = time.perf_counter
) -> Rates:
    """`amount` is the work per call, in the unit of the rate times seconds."""
    times = max(1, min(1000, round(REPEAT_S / max(once_s, 1e-9))))
    taken = matmul_probe.time_repeats(device, work, budget_s=budget_s, times=times, least=MIN_REPEATS, now_s=now_s)
    return tuple(times * amount / seconds for seconds in taken)


def judge_rates(
    rates: Sequence[Rates], *, unit: str, file: PlatformFile, peak: float | None = None, source: str = ""
) -> CheckResult:
    """Judges the rates that the devices reached; the spread is half the width of the middle 80 %."""
    medians = [median(values) for values in rates]
    cuts = [quantiles(values, n=10, method="inclusive") for values in rates]
    spread = max((cut[-1] - cut[0]) / 2 / middle for cut, middle in zip(cuts, medians, strict=True))
    middle, slow = median(medians), medians.index(min(medians))
    share = middle / peak if peak else None
    facts: dict[str, Any] = {"unit": unit, "median": middle, "spread": spread, "peak": peak, "share_of_peak": share}
    facts["devices"] = medians
    sentence = f"{_format_rate(middle, unit)} ±{100 * spread:.2g} %"
    if share:
        sentence += f", {100 * share:.0f} % of {peak:g} ({source})"
    if len(rates) > 1:
        sentence += f"; slowest is device {slow} with {_format_rate(medians[slow], unit)}"
    proof = f"trainmark platform check {file.word}"
    if share and share > MAX_OF_PEAK:
        return doubt(
            f"{sentence}: more than its peak, so another arithmetic ran, or it is another device", proof, **facts
        )
    if share and share < WANTED_OF_PEAK:
        return doubt(f"{sentence}: it may be shared, hot, or power-limited", proof, **facts)
    if medians[slow] < (1 - RANK_SKEW) * middle:
        alone = f"export {file.visible_devices}={slow}; trainmark doctor" if file.visible_devices else ""
        return doubt(f"{sentence}, {100 * (1 - medians[slow] / middle):.0f} % below the median", alone, **facts)
    if spread > UNSTEADY:
        return doubt(f"{sentence}: not steady, so other programs may use it", "top -b -n 1 -o %CPU | head -15", **facts)
    return ok(sentence, **facts)


def _format_rate(rate: float, unit: str) -> str:
    """`251 TFLOP/s`, `34.9 GFLOP/s`."""
    return f"{1000 * rate:.3g} G{unit[1:]}" if unit.startswith("T") and rate < 1 else f"{rate:.3g} {unit}"
