"""What the kernel tells of the host: cores, clocks, memory, limits, and who else is using it."""

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
"""Less than this and not even the smallest recipe starts."""
WANTED_MEMORY_BYTES = 4 << 30
"""Room for a full-size network with a small batch."""
SWAP_SHARE = 0.05
"""Of the memory: more than that has been pushed out, and comes back slowly."""
SEMAPHORES_BYTES = 1 << 20
SEGMENT_BYTES = 16 << 20
"""Collectives make pieces of shared memory of about 10 MB for each pair of devices."""
WANTED_SHARED_BYTES = 1 << 30
MIN_FILES, WANTED_FILES = 64, 1024
MIN_PROCESSES, WANTED_PROCESSES = 64, 1024
GENEROUS = 65536
LOOK_S = 1.0
UNLIMITED = -1
"""As the kernel says it."""

FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "riscv_clocksource")
LIVELY_GOVERNORS = ("performance", "schedutil", "ondemand")
"""Under a steady load these hold the highest clock."""
LIVELY_PREFERENCES = ("performance", "balance_performance")

Limits = Mapping[str, tuple[int, int]]
"""(soft, hard) of files, locked_bytes and processes."""


@check("cores", "Host")
def cores(root: Path, affinity: Iterable[int], environ: Mapping[str, str] = os.environ) -> CheckResult:
    """How many of the cores a run may use, what a quota leaves of them, and how many threads a run will take."""
    folder = root / "sys/devices/system/cpu"
    present = _listed(_text(folder / "present"))
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
            f"{sentence}; OMP_NUM_THREADS={asked} asks for more, which are stopped in the middle of a step",
            f"export OMP_NUM_THREADS={whole}",
            **facts,
        )
    if quota is not None and quota < 1:
        return doubt(f"{sentence}, stopped again and again", "ask for a whole core", **facts)
    if len(usable) == 1:
        return doubt(f"{sentence}: training and decoding take turns on it", "taskset -cp $$; nproc --all", **facts)
    return ok(sentence, **facts)


@check("governor", "Host")
def governor(root: Path) -> CheckResult:
    """Whether the clocks of the cores rise with the load."""
    folder = root / "sys/devices/system/cpu"
    found = sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    if not found:
        return unknown("this kernel shows no clock governor; in a virtual machine the host decides")
    words = {_text(path) for path in found}
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
def memory(root: Path) -> CheckResult:
    """What is there, what a control group leaves of it, and what is in swap."""
    sizes = proc.memory_bytes(root / "proc")
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
        return doubt(f"{sentence}: what comes back from there is slow", "sudo swapoff -a && sudo swapon -a", **facts)
    return ok(sentence, **facts)


@check("/dev/shm", "Host")  # noqa: S108 - looked at, not written to
def shared_memory(
    folder: Path, *, accelerators: int, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage
) -> CheckResult:
    """Room for what processes share by name: semaphores always, and the collectives of several accelerators.

    Decoded images are shared without a name, which takes memory and nothing here.
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
def limits(root: Path, allowed: Limits) -> CheckResult:
    """What the shell and the control group allow: open files, locked memory, processes."""
    (files, most_files), (locked, _), (processes, _) = (
        allowed[name] for name in ("files", "locked_bytes", "processes")
    )
    group = read_cgroup(root).processes
    if group is not None:
        processes = group if processes == UNLIMITED else min(processes, group)
    fabric = any((root / "sys/class/infiniband").glob("*"))
    facts: dict[str, Any] = {"files": files, "locked_bytes": locked, "processes": processes, "infiniband": fabric}
    shown = "locked memory unlimited" if locked == UNLIMITED else f"{format_bytes(locked)} of locked memory"
    sentence = f"{_shown(files, 'file')}, {_shown(processes, 'process')}, {shown}"
    short, remedies = [], []
    if _below(files, WANTED_FILES):
        short.append("files")
        enough = GENEROUS if most_files == UNLIMITED else min(GENEROUS, most_files)
        remedies.append(f"ulimit -n {enough}" if enough >= WANTED_FILES else f"sudo prlimit -p $$ -n{GENEROUS}")
    if _below(processes, WANTED_PROCESSES):
        short.append("processes")
        remedies.append(f"ulimit -u {GENEROUS}")
    if fabric and locked != UNLIMITED:
        short.append("locked memory for InfiniBand")
        remedies.append("ulimit -l unlimited")
    if _below(files, MIN_FILES) or _below(processes, MIN_PROCESSES):
        return failed(f"{sentence}: no run can start with so few", " && ".join(remedies), **facts)
    if short:
        return doubt(f"{sentence}: few {' and '.join(short)}", " && ".join(remedies), **facts)
    return ok(sentence, **facts)


@check("load", "Host")
def load(root: Path, wait: Callable[[float], object] = time.sleep) -> CheckResult:
    """Who else uses the cores, by a look of a second."""
    before = _use(root)
    wait(LOOK_S)
    after = _use(root)
    passed = after.cpu.every - before.cpu.every
    if passed <= 0:
        return unknown(f"{root / 'proc/stat'} does not move, so nothing can be said of other programs")
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
def clock(root: Path) -> CheckResult:
    """Where the time comes from that everything here is measured with."""
    folder = root / "sys/devices/system/clocksource/clocksource0"
    current = _text(folder / "current_clocksource")
    others = _read_or(folder / "available_clocksource", "").split()
    facts: dict[str, Any] = {"source": current, "available": others}
    if current in FAST_CLOCKS:
        return ok(f"time comes from {current}, which is fast to read", **facts)
    better = next((name for name in FAST_CLOCKS if name in others), None)
    remedy = f"echo {better} | sudo tee /{folder.relative_to(root)}/current_clocksource" if better else ""
    return doubt(f"time comes from {current}, which is slow to read", remedy, **facts)


@check("driver", "Device")
def driver(root: Path, *, is_cpu: bool) -> CheckResult:
    """The kernel's drivers of the accelerators on the PCI bus, whether or not torch can use them."""
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
"""A card for a screen: a fast one, or the small one every server has."""


@dataclass(frozen=True, kw_only=True)
class _Use:
    """Ticks of the cores since the machine started."""

    cpu: proc.CpuTicks
    own_ticks: int
    cores: int
    processes: Mapping[int, tuple[str, int]]
    """(name, ticks) of all but this one."""


def _use(root: Path) -> _Use:
    own = proc.process_stat("self", root / "proc")
    own_pid = int(_text(root / "proc/self/stat").partition(" ")[0])
    stats = {pid: proc.process_stat(pid, root / "proc") for pid in proc.pids(root / "proc") if pid != own_pid}
    return _Use(
        cpu=proc.cpu_ticks(root / "proc"),
        own_ticks=own.ticks if own else 0,
        cores=proc.cores(root / "proc"),
        processes={pid: (stat.name, stat.ticks) for pid, stat in stats.items() if stat is not None},
    )


def _listed(text: str) -> list[int]:
    """`0-3,8` as its numbers."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _shown(limit: int, thing: str) -> str:
    if limit == UNLIMITED:
        return f"{thing}{'es' if thing.endswith('s') else 's'} unlimited"
    return f"{limit:,} {thing}{'es' if thing.endswith('s') else 's'}".replace(",", " ")


def _below(limit: int, wanted: int) -> bool:
    return limit != UNLIMITED and limit < wanted


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def _read_or(path: Path, default: str) -> str:
    try:
        return _text(path)
    except OSError:
        return default
