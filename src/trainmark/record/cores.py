"""Cores this process may use, and threads per rank."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int | None = None) -> None:
    """Asks the kernel to kill this process when the thread that started it ends.

    Give the parent's pid where it is known: it may have ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes a number near this for "no limit"."""


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Limits of the control group; None where there is none, or it is unknown."""

    cores: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None


def read_cgroup(root: Path) -> Allowance:
    """The narrowest limits from the process's own group up to the root; `root` is where /proc and /sys are."""
    memory = [*_numbers(root, "memory", "memory.max"), *_numbers(root, "memory", "memory.limit_in_bytes")]
    return Allowance(
        cores=min(_quotas(root), default=None),
        memory_bytes=min((size for size in memory if size < _NO_LIMIT_BYTES), default=None),
        processes=min(_numbers(root, "pids", "pids.max"), default=None),
    )


def _quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu"):
        words = _words(folder / "cpu.max")
        if not words:
            words = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            yield int(words[0]) / int(words[1])


def _numbers(root: Path, controller: str, name: str) -> Iterator[int]:
    for folder in _folders(root, controller):
        words = _words(folder / name)
        if words and words[0].isdigit():
            yield int(words[0])


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders with the limits of a controller, from the process's own group upwards."""
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/"]  # a container shows its own group at the top
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        tops = [mounted / controllers, mounted / controller] if controllers else [mounted, mounted / "unified"]
        top = next((folder for folder in tops if folder.is_dir()), None)
        if top is None:
            continue
        # a group of another namespace is written with dots, and one of the host's may not be shown here
        own = PurePosixPath(*(part for part in PurePosixPath(path).parts if part not in ("/", "..")))
        for folder in (own, *own.parents):
            if (top / folder).is_dir():
                yield top / folder


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []


def read_busy_s() -> float:
    """CPU seconds of all processes of the machine since boot, including stolen time."""
    import psutil  # late: most readers of this module do not need it

    times = psutil.cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in busy))


def read_foreign_s() -> float:
    """The same without this process and its ended children; only differences mean anything."""
    return read_busy_s() - sum(os.times()[:4])


FOREIGN_LOAD = 0.10
"""Share of the machine that other programs may use before it is reported."""
MAX_RANKS_PER_CORE = 4
"""More ranks per core are refused: a step would take minutes."""


def count_usable_cores(root: Path = Path("/")) -> int:
    """Whole cores, by the scheduler's affinity and the control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return limit_to_quota(allowed, read_cgroup(root).cores)


def limit_to_quota(cores: int, quota: float | None) -> int:
    """Rounded down: a spent quota stops all threads, so a part of a core does not count."""
    return cores if quota is None else max(1, min(cores, int(quota)))


def choose_threads(local_ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """Threads of one of `local_ranks`: OMP_NUM_THREADS where the user set it, else its share of the cores."""
    requested = environ.get("OMP_NUM_THREADS", "")
    # torchrun sets it to 1 for several ranks unless the user did
    by_torchrun = requested == "1" and local_ranks > 1 and "TORCHELASTIC_RUN_ID" in environ
    if requested.isdigit() and int(requested) > 0 and not by_torchrun:
        return int(requested)
    return max(1, count_usable_cores() // local_ranks)
