"""CPU usage of a process with its descendants, and of the whole machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from trainmark.platforms import proc

MAX_SCAN_SHARE = 0.0025
"""Of one core, for scanning all processes of the machine."""
MIN_INTERVAL_S = 0.5
WINDOW_S = 10.0
"""Foreign load is a mean over so long."""


def read_busy_s() -> float | None:
    """CPU seconds of all processes since boot, including stolen time."""
    try:
        return proc.read_cpu_ticks().busy / proc.TICKS_PER_S
    except OSError:
        return None


def count_cores() -> int:
    return os.cpu_count() or 1


class ProcessTree:
    """A process with all its descendants. New ones are found by scanning all processes, as often as is cheap."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._members = {root}
        self._next_scan_s = 0.0

    def read_used_s(self) -> float | None:
        """CPU seconds of the tree so far, of live processes and of ended ones that were waited for.

        Only differences are meaningful. A new process counts from the scan that finds it, with all it has used.
        """
        now_s = time.monotonic()
        if now_s < self._next_scan_s:
            stats = {pid: proc.read_process_stat(pid) for pid in self._members}
        else:
            stats = self._scan()
            self._next_scan_s = now_s + (time.monotonic() - now_s) / MAX_SCAN_SHARE
        found = [stat.ticks + stat.ticks_of_ended for stat in stats.values() if stat is not None]
        return sum(found) / proc.TICKS_PER_S if stats.get(self._root) is not None else None

    def _scan(self) -> dict[int, proc.ProcessStat | None]:
        try:
            everybody = proc.list_pids()
        except OSError:
            return {}
        stats = {pid: stat for pid in everybody if (stat := proc.read_process_stat(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        self._members, rest = set(), [self._root]
        while rest:
            pid = rest.pop()
            if pid not in self._members:
                self._members.add(pid)
                rest += children.get(pid, [])
        return {pid: stats.get(pid) for pid in self._members}


class ForeignLoad:
    """The share of all cores that other processes use."""

    def __init__(
        self,
        own_s: Callable[[], float | None],
        busy_s: Callable[[], float | None] = read_busy_s,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own_s, self._busy_s, self._now_s = own_s, busy_s, now_s
        self._samples: deque[tuple[float, float, float]] = deque()
        self._sample()

    def share(self) -> float | None:
        """Over the last seconds; None where they are too few, or unknown."""
        if not self._samples or self._now_s() - self._samples[-1][0] >= MIN_INTERVAL_S:
            self._sample()
        while len(self._samples) > 2 and self._samples[-1][0] - self._samples[1][0] > WINDOW_S:
            self._samples.popleft()
        if len(self._samples) < 2:
            return None
        (began_s, busy_before_s, own_before_s), (now_s, busy_now_s, own_now_s) = self._samples[0], self._samples[-1]
        others_s = (busy_now_s - busy_before_s) - (own_now_s - own_before_s)
        return min(1.0, max(0.0, others_s / (now_s - began_s) / count_cores()))

    def _sample(self) -> None:
        own_s, busy_now_s = self._own_s(), self._busy_s()
        if own_s is not None and busy_now_s is not None:
            self._samples.append((self._now_s(), busy_now_s, own_s))


def track_foreign_load() -> ForeignLoad:
    """The load of all processes but this one and its descendants."""
    return ForeignLoad(ProcessTree(os.getpid()).read_used_s)
