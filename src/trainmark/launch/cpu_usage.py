"""CPU usage of a process with its descendants, and of the whole machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import psutil

from trainmark.record.cores import read_busy_s

MAX_SCAN_SHARE = 0.0025
"""Of one core, for scanning all processes of the machine."""
MIN_INTERVAL_S = 0.5
WINDOW_S = 10.0
"""Foreign load is a mean over so long."""


def count_cores() -> int:
    return os.cpu_count() or 1


class ProcessTree:
    """A process with all its descendants. New ones are found by scanning all processes, as often as is cheap."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: list[psutil.Process] = []
        self._next_scan_s = 0.0

    def read_used_s(self) -> float | None:
        """CPU seconds of the tree so far, of live processes and of ended ones that were waited for.

        Only differences are meaningful. A new process counts from the scan that finds it, with all it has used.
        """
        now_s = time.monotonic()
        try:
            if now_s >= self._next_scan_s:
                root = psutil.Process(self._root)
                self._members = [root, *root.children(recursive=True)]
                self._next_scan_s = now_s + (time.monotonic() - now_s) / MAX_SCAN_SHARE
            used_s = sum(self._members[0].cpu_times()[:4])
        except psutil.Error:
            return None
        for member in self._members[1:]:
            with suppress(psutil.Error):
                used_s += sum(member.cpu_times()[:4])
        return float(used_s)


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
