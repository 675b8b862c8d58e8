"""Checks the host: cores, clocks, memory, limits, and other load."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmark.platforms import proc
from trainmark.record.checks import CheckResult, check, doubt, failed, format_bytes, format_count, ok, unknown
from trainmark.record.cores import FOREIGN_LOAD, limit_to_quota, read_cgroup

MIN_MEMORY_BYTES = 512 << 20
"""The smallest recipe needs this much."""
WANTED_MEMORY_BYTES = 4 << 30
"""Room for a full-size network with a small batch."""
SWAP_SHARE = 0.05
"""Share of memory in swap that is reported."""
SEMAPHORES_BYTES = 1 << 20
SEGMENT_BYTES = 16 << 20
"""Collectives create shared memory segments of about 10 MB per pair of devices."""
WANTED_SHARED_BYTES = 1 << 30
MIN_FILES, WANTED_FILES = 64, 1024
MIN_PROCESSES, WANTED_PROCESSES = 64, 1024
GENEROUS = 65536
SAMPLE_S = 1.0
UNLIMITED = -1
"""As the kernel reports it."""

FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "riscv_clocksource")
LIVELY_GOVERNORS = ("performance", "schedutil", "ondemand")
"""These hold the highest clock under load."""
LIVELY_PREFERENCES = ("performance", "balance_performance")

Limits = Mapping[str, tuple[int, int]]
"""(soft, hard) of files, locked_bytes and processes."""


@check("cores", "Host")
def check_cores(root: Path, affinity: Iterable[int], environ: Mapping[str, str] = os.environ) -> CheckResult:
    """Checks usable cores, the quota, and the number of threads of a run."""
    folder = root / "sys/devices/system/cpu"
    present = _parse_list(_read(folder / "present"))
    usable = sorted(affinity)
    quota = read_cgroup(root).cores
    siblings = {_read_or(folder / f"cpu{core}/topology/thread_siblings_list", str(core)) for core in usable}
    shared = len(siblings) < len(usable)
    facts: dict[str, Any] = {
        "present": len(present),
        "usable": len(usable),
        "physical_usable": len(siblings),
        "quota_cores": quota,
    }
    sentence = f"{len(usable)} of {format_count(len(present), 'core')} usable"
    if shared:
        sentence += f", as threads of {len(siblings)} (SMT)"
    whole = limit_to_quota(len(usable), quota)
    asked = environ.get("OMP_NUM_THREADS", "")
    if quota is not None and quota < len(usable):
        sentence += f", and a quota of {quota:.3g}, so that a run takes {format_count(whole, 'thread')}"
    if asked.isdigit() and int(asked) > whole:
        return doubt(
            f"{sentence}; OMP_NUM_THREADS={asked} is more, and threads are throttled in the middle of a step",
            f"export OMP_NUM_THREADS={whole}",
            **facts,
        )
    if quota is not None and quota < 1:
        return doubt(f"{sentence}, throttled again and again", "request a whole core", **facts)
    if len(usable) == 1:
        return doubt(f"{sentence}: training and decoding share it", "taskset -cp $$; nproc --all", **facts)
    return ok(sentence, **facts)


@check("governor", "Host")
def check_governor(root: Path) -> CheckResult:
    """Checks that clocks rise with the load."""
    folder = root / "sys/devices/system/cpu"
    found = sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    if not found:
        return unknown("no clock governor is visible; in a virtual machine the host decides")
    words = {_read(path) for path in found}
    preference = _read_or(found[0].parent / "energy_performance_preference", "")
    facts: dict[str, Any] = {"governors": sorted(words), "preference": preference or None}
    lively = {word for word in words if word in LIVELY_GOVERNORS or preference in LIVELY_PREFERENCES}
    shown = ", ".join(sorted(words)) + (f" ({preference})" if preference else "")
    if words == lively:
        return ok(shown, **facts)
    return doubt(
        f"{shown}: the cores may not reach their full clock",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        **facts,
    )


@check("memory", "Host")
def check_memory(root: Path) -> CheckResult:
    """Checks free memory, the control group's limit, and swap."""
    sizes = proc.read_memory_bytes(root / "proc")
    total, free = sizes["MemTotal"], sizes.get("MemAvailable", sizes["MemFree"])
    limit = read_cgroup(root).memory_bytes
    swapped = sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
    facts: dict[str, Any] = {
        "total_bytes": total,
        "available_bytes": free,
        "limit_bytes": limit,
        "swap_used_bytes": swapped,
    }
    sentence = f"{format_bytes(free)} of {format_bytes(total)} free"
    if limit is not None and limit < total:
        sentence += f", {format_bytes(limit)} allowed by the control group"
        free = min(free, limit)
    sentence += f", {format_bytes(swapped)} swapped out" if swapped else ", no swap in use"
    if free < MIN_MEMORY_BYTES:
        return failed(f"{sentence}: too little for any recipe", "ps aux --sort=-rss | head", **facts)
    if free < WANTED_MEMORY_BYTES:
        return doubt(f"{sentence}: little for a full-size network", "ps aux --sort=-rss | head", **facts)
    if swapped > SWAP_SHARE * total:
        return doubt(f"{sentence}: reading it back is slow", "sudo swapoff -a && sudo swapon -a", **facts)
    return ok(sentence, **facts)


@check("/dev/shm", "Host")  # noqa: S108 - looked at, not written to
def check_shared_memory(
    folder: Path, *, accelerators: int, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage
) -> CheckResult:
    """Checks the space for named shared memory: semaphores, and collectives of several accelerators.

    Decoded images are shared anonymously and take no space here.
    """
    size, _, free = usage(folder)
    facts: dict[str, Any] = {"size_bytes": size, "free_bytes": free}
    sentence = f"{format_bytes(free)} of {format_bytes(size)} free"
    remedy = f"sudo mount -o remount,size={'8G' if accelerators > 1 else '1G'} /dev/shm   # docker run --shm-size=8g"
    if free < (SEGMENT_BYTES if accelerators > 1 else SEMAPHORES_BYTES):
        return failed(f"{sentence}: processes cannot share what they need to", remedy, **facts)
    if accelerators > 1 and free < WANTED_SHARED_BYTES:
        return doubt(f"{sentence}: little for the collectives of {accelerators} devices", remedy, **facts)
    return ok(sentence, **facts)


@check("limits", "Host")
def check_limits(root: Path, allowed: Limits) -> CheckResult:
    """Checks the limits of shell and control group: open files, locked memory, processes."""
    (files, most_files), (locked, _), (processes, _) = (
        allowed[name] for name in ("files", "locked_bytes", "processes")
    )
    group = read_cgroup(root).processes
    if group is not None:
        processes = group if processes == UNLIMITED else min(processes, group)
    fabric = any((root / "sys/class/infiniband").glob("*"))
    facts: dict[str, Any] = {"files": files, "locked_bytes": locked, "processes": processes, "infiniband": fabric}
    shown = "locked memory unlimited" if locked == UNLIMITED else f"{format_bytes(locked)} of locked memory"
    sentence = f"{_format_limit(files, 'file')}, {_format_limit(processes, 'process')}, {shown}"
    short, remedies = [], []
    if _is_below(files, WANTED_FILES):
        short.append("files")
        enough = GENEROUS if most_files == UNLIMITED else min(GENEROUS, most_files)
        remedies.append(f"ulimit -n {enough}" if enough >= WANTED_FILES else f"sudo prlimit -p $$ -n{GENEROUS}")
    if _is_below(processes, WANTED_PROCESSES):
        short.append("processes")
        remedies.append(f"ulimit -u {GENEROUS}")
    if fabric and locked != UNLIMITED:
        short.append("locked memory for InfiniBand")
        remedies.append("ulimit -l unlimited")
    if _is_below(files, MIN_FILES) or _is_below(processes, MIN_PROCESSES):
        return failed(f"{sentence}: no run can start with so few", " && ".join(remedies), **facts)
    if short:
        return doubt(f"{sentence}: few {' and '.join(short)}", " && ".join(remedies), **facts)
    return ok(sentence, **facts)


@check("load", "Host")
def check_load(root: Path, wait: Callable[[float], object] = time.sleep) -> CheckResult:
    """Measures for a second how much other programs use the cores."""
    before = _read_use(root)
    wait(SAMPLE_S)
    after = _read_use(root)
    passed = after.cpu.every - before.cpu.every
    if passed <= 0:
        return unknown(f"{root / 'proc/stat'} does not change, so other load is unknown")
    others = max(0.0, (after.cpu.busy - before.cpu.busy - (after.own_ticks - before.own_ticks)) / passed)
    stolen = max(0, after.cpu.stolen - before.cpu.stolen) / passed
    core_ticks = passed / max(1, after.cores)
    used = {
        pid: (ticks - before.processes.get(pid, (name, ticks))[1]) / core_ticks
        for pid, (name, ticks) in after.processes.items()
    }
    busiest = [pid for pid in sorted(used, key=lambda pid: -used[pid]) if used[pid] > FOREIGN_LOAD][:3]
    facts: dict[str, Any] = {
        "share": round(others, 4),
        "stolen_share": round(stolen, 4),
        "processes": [{"pid": pid, "name": after.processes[pid][0], "cores": round(used[pid], 2)} for pid in busiest],
    }
    sentence = f"others use {100 * others:.0f} % of the cores"
    if stolen > FOREIGN_LOAD / 2:
        sentence += f", of which {100 * stolen:.0f} % are stolen by other guests of the host"
    if others <= FOREIGN_LOAD:
        return ok(sentence, **facts)
    names = [f"{after.processes[pid][0]} ({pid})" for pid in busiest]
    if not names:
        return doubt(sentence, "top -b -n 1 -o %CPU | head -15", **facts)
    pids = ",".join(str(pid) for pid in busiest)
    return doubt(f"{sentence}: {', '.join(names)}", f"ps -o pid,user,etime,args -p {pids}", **facts)


@check("clock", "Host")
def check_clock(root: Path) -> CheckResult:
    """Checks the clock source that all times are measured with."""
    folder = root / "sys/devices/system/clocksource/clocksource0"
    current = _read(folder / "current_clocksource")
    others = _read_or(folder / "available_clocksource", "").split()
    facts: dict[str, Any] = {"source": current, "available": others}
    if current in FAST_CLOCKS:
        return ok(f"time comes from {current}, which is fast to read", **facts)
    better = next((name for name in FAST_CLOCKS if name in others), None)
    remedy = f"echo {better} | sudo tee /{folder.relative_to(root)}/current_clocksource" if better else ""
    return doubt(f"time comes from {current}, which is slow to read", remedy, **facts)


@check("driver", "Device")
def check_driver(root: Path, *, is_cpu: bool) -> CheckResult:
    """Checks the drivers of accelerators on the PCI bus, whether or not torch can use them."""
    drivers: dict[str, list[bool]] = {}
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        kind = _read_or(device / "class", "")[:6]
        if kind not in _ACCELERATOR_CLASSES and kind != _SCREEN_CLASS:
            continue
        link = device / "driver"
        name = link.resolve().name if link.exists() else ""
        drivers.setdefault(name, []).append(kind in _ACCELERATOR_CLASSES)
    cards = sum(map(sum, drivers.values()))
    versions = {name: _read_or(root / "sys/module" / name / "version", "") for name in drivers if name}
    facts: dict[str, Any] = {"drivers": {name: versions[name] or None for name in versions}, "accelerators": cards}
    shown = ", ".join(f"{name} {version}".strip() for name, version in versions.items())
    if any(drivers.get("", [])):
        return doubt(
            f"{format_count(sum(drivers['']), 'accelerator')} on the PCI bus without a driver"
            + (f"; {shown}" if shown else ""),
            "lspci -k | grep -iA3 -E 'accelerator|3d controller|display'",
            **facts,
        )
    if cards and is_cpu:
        return doubt(
            f"{format_count(cards, 'accelerator')} on the PCI bus (driver {shown}), and a CPU is used",
            "trainmark list; trainmark doctor --platform NAME",
            **facts,
        )
    if shown or is_cpu:
        return ok(shown or "no accelerator on the PCI bus, and none needed", **facts)
    return unknown("no accelerator is shown on the PCI bus", **facts)


_ACCELERATOR_CLASSES = ("0x0302", "0x0380", "0x1200")
"""3D controllers, displays without a screen, processing accelerators."""
_SCREEN_CLASS = "0x0300"
"""A display adapter: a GPU, or the small one of a server."""


@dataclass(frozen=True, kw_only=True)
class _Use:
    """Ticks of the cores since the machine started."""

    cpu: proc.CpuTicks
    own_ticks: int
    cores: int
    processes: Mapping[int, tuple[str, int]]
    """(name, ticks) of all other processes."""


def _read_use(root: Path) -> _Use:
    own = proc.read_process_stat("self", root / "proc")
    own_pid = int(_read(root / "proc/self/stat").partition(" ")[0])
    stats = {pid: proc.read_process_stat(pid, root / "proc") for pid in proc.list_pids(root / "proc") if pid != own_pid}
    return _Use(
        cpu=proc.read_cpu_ticks(root / "proc"),
        own_ticks=own.ticks if own else 0,
        cores=proc.count_cores(root / "proc"),
        processes={pid: (stat.name, stat.ticks) for pid, stat in stats.items() if stat is not None},
    )


def _parse_list(text: str) -> list[int]:
    """`0-3,8` as its numbers."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _format_limit(limit: int, thing: str) -> str:
    if limit == UNLIMITED:
        return f"{thing}{'es' if thing.endswith('s') else 's'} unlimited"
    return f"{limit:,} {thing}{'es' if thing.endswith('s') else 's'}".replace(",", " ")


def _is_below(limit: int, wanted: int) -> bool:
    return limit != UNLIMITED and limit < wanted


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _read_or(path: Path, default: str) -> str:
    try:
        return _read(path)
    except OSError:
        return default
