"""What torch and the platform file tell of the devices: how many, which, in what precisions, and with what sensors."""

from __future__ import annotations

import platform as host_platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trainmark
from trainmark.platforms import files, sensors as sensor_readers
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.platform import Device
from trainmark.platforms.reading import FIELDS, Reading
from trainmark.record.checks import CheckResult, check, doubt, failed, format_bytes, format_count, ok, unknown
from trainmark.record.precision import PRECISIONS, Precision

DEFAULT_PRECISION = "fp32"
"""What a run takes where none is named."""

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
def torch_build() -> CheckResult:
    """Which torch, built for what, and whether it has the interface all devices are used through."""
    import torch

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
def versions() -> CheckResult:
    facts: dict[str, Any] = {
        "trainmark": trainmark.__version__,
        "python": host_platform.python_version(),
        "os": f"{host_platform.system()} {host_platform.release()}",
        "libc": " ".join(host_platform.libc_ver()),
        "optimised_python": sys.flags.optimize,
    }
    return ok(f"{facts['trainmark']} on Python {facts['python']}, {facts['os']}", **facts)


@check("platform", "Device")
def platform(
    file: PlatformFile, *, chosen_by: str, device_names: Sequence[str], unused: str | None = None
) -> CheckResult:
    """Which file describes the devices, and whether it knows them by name; `unused` tells of one nobody describes."""
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
            f"{sentence}; {device_names[0]!r} does not look like one of its devices ({pattern})",
            "trainmark list   # then --platform NAME",
            **facts,
        )
    if file.device_type != "cpu" and device_names and peak is None:
        return ok(f"{sentence}; no peak is known for {device_names[0]!r}, so MFU is left out", **facts)
    return ok(sentence, **facts)


@check("devices", "Device")
def devices(file: PlatformFile, opened: Sequence[Device], *, environ: Mapping[str, str]) -> CheckResult:
    """How many there are, what they are called and how much memory each has."""
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
def precision(device: Device) -> CheckResult:
    """Which of the precisions its file lists the device really trains in: a tiny layer of each is trained."""
    listed = [PRECISIONS[name] for name in device.platform.file.precisions]
    refused = {asked.name: reason for asked in listed if (reason := device.refuses(asked))}
    runs = [asked for asked in listed if asked.name not in refused]
    emulated = [asked.name for asked in runs if device.emulates(asked)]
    facts: dict[str, Any] = {"runs": [asked.name for asked in runs], "emulated": emulated, "refused": refused}
    sentence = ", ".join(asked.name for asked in runs if asked.name not in emulated) or "none natively"
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
def sensors(file: PlatformFile) -> CheckResult:
    """Which of the values beside a run can be read, and why not the others."""
    readings, missing = read_sensors(file)
    there = [name for name in FIELDS if any(getattr(reading, name) is not None for reading in readings)]
    facts: dict[str, Any] = {"read": there, "unavailable": missing, "devices": len(readings)}
    reasons = group_by_reason({name: reason for name, reason in missing.items() if name not in there})
    lacking = "; ".join(f"no {', '.join(_worded(lacked))}: {reason}" for reason, lacked in reasons.items())
    if not there:
        return unknown("; ".join(["nothing can be read", *reasons]), **facts)
    sentence = "; ".join(filter(None, (", ".join(_worded(there)), lacking)))
    return ok(sentence, **facts) if {"power_w", "energy_j"} & set(there) else unknown(sentence, **facts)


def read_sensors(file: PlatformFile) -> tuple[Sequence[Reading], dict[str, str]]:
    """One reading of every device, and why fields are missing."""
    reader = sensor_readers.open_reader(file)
    try:
        return reader.read(), dict(reader.unavailable)
    finally:
        reader.close()


def chosen(file: PlatformFile, word: str | None, environ: Mapping[str, str]) -> str:
    """Who chose the platform, for its sentence."""
    if word not in (None, "auto"):
        return "as asked" if file.name in files.names() else f"from {Path(str(word)).name}"
    return "as TRAINMARK_PLATFORM says" if environ.get("TRAINMARK_PLATFORM") else "found by auto"


def families(device: Device) -> list[Precision]:
    """One precision for each kind of arithmetic the device has of its own."""
    found: dict[str, Precision] = {}
    for name in device.platform.file.precisions:
        if not device.emulates(PRECISIONS[name]):
            found.setdefault(PRECISIONS[name].family, PRECISIONS[name])
    return list(found.values())


def _worded(names: Iterable[str]) -> list[str]:
    return [SENSOR_WORDS.get(name, name) for name in names]


def group_by_reason(missing: Mapping[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, reason in missing.items():
        reasons.setdefault(reason, []).append(name)
    return reasons
