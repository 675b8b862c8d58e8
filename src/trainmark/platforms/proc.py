"""Reads CPU times and memory from /proc, cheaply, as it is read often."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import psutil

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuTicks(NamedTuple):
    """Of all cores together, since boot."""

    busy: int
    """Including stolen ones."""
    stolen: int
    every: int


class ProcessStat(NamedTuple):
    name: str
    parent: int
    ticks: int
    """Of the process itself."""
    ticks_of_ended: int
    """Of the children it has waited for."""


def read_foreign_s() -> float:
    """CPU seconds of all processes but this one and its ended children; only differences mean anything."""
    times = psutil.cpu_times()
    busy_s = times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)
    return float(busy_s - sum(os.times()[:4]))


def read_cpu_ticks(proc: Path = PROC) -> CpuTicks:
    with open(proc / "stat", "rb") as file:  # noqa: PTH123 - twice a second beside a run
        words = file.readline().split()
    # guest time, which comes after the first eight, is part of user time
    user, nice, system, idle, waiting, irq, soft_irq, stolen = ([int(word) for word in words[1:9]] + [0] * 8)[:8]
    busy = user + nice + system + irq + soft_irq + stolen
    return CpuTicks(busy=busy, stolen=stolen, every=busy + idle + waiting)


def count_cores(proc: Path = PROC) -> int:
    return len(re.findall(r"^cpu\d", (proc / "stat").read_text(encoding="utf-8"), re.MULTILINE))


def list_pids(proc: Path = PROC) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - for its speed


def read_process_stat(pid: int | str, proc: Path = PROC) -> ProcessStat | None:
    """None where the process is gone."""
    try:
        with open(proc / str(pid) / "stat", "rb") as file:  # noqa: PTH123 - called for every process of the machine
            head, _, tail = file.read().rpartition(b")")  # the name may contain anything, also brackets
        words = tail.split()
        own, ended = int(words[11]) + int(words[12]), int(words[13]) + int(words[14])
    except (OSError, ValueError, IndexError):
        return None
    name = head.partition(b" (")[2].decode("utf-8", errors="replace")
    return ProcessStat(name=name, parent=int(words[1]), ticks=own, ticks_of_ended=ended)


def read_memory_bytes(proc: Path = PROC) -> dict[str, int]:
    """By the kernel's names: MemTotal, MemAvailable, SwapFree, ..."""
    with open(proc / "meminfo", "rb") as file:  # noqa: PTH123 - twice a second beside a run
        lines = file.read().decode("ascii", errors="replace").splitlines()
    parts = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) << 10 for name, _, value in parts if value.split()}
