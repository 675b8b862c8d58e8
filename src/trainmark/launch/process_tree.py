"""How much of a machine's processors a process and all under it used, and how much everybody did."""

from __future__ import annotations

import os
import time

LOOK_SHARE = 0.0025
"""Looking through all processes of a machine may take so much of one core."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def busy_s() -> float | None:
    """Processor seconds used by everybody since the machine began, those taken by other guests of the host included."""
    try:
        with open("/proc/stat", "rb") as file:  # noqa: PTH123 - called twice a second, so every microsecond counts
            words = file.readline().split()
    except OSError:
        return None
    user, nice, system, _idle, _waiting, irq, soft_irq, steal = (int(word) for word in words[1:9])
    return (user + nice + system + irq + soft_irq + steal) / _TICKS_PER_S


def cores() -> int:
    return os.cpu_count() or 1


class ProcessTree:
    """A process with all its descendants. New ones are found by a look through all processes, as often as is cheap."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._members = {root}
        self._next_look_s = 0.0

    def used_s(self) -> float | None:
        """Processor seconds of the tree so far: of those that live, and of those that ended and were waited for.

        Only differences mean something. A new process counts from the look that finds it on, with all it has used.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            stats = {pid: _stat(pid) for pid in self._members}
        else:
            stats = self._look()
            self._next_look_s = now_s + (time.monotonic() - now_s) / LOOK_SHARE
        found = [stat[1] for stat in stats.values() if stat is not None]
        return sum(found) / _TICKS_PER_S if stats.get(self._root) is not None else None

    def _look(self) -> dict[int, tuple[int, int] | None]:
        try:
            everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - for its speed
        except OSError:
            return {}
        stats = {pid: stat for pid in everybody if (stat := _stat(pid)) is not None}
        children: dict[int, list[int]] = {}
        for pid, (parent, _) in stats.items():
            children.setdefault(parent, []).append(pid)
        self._members, rest = set(), [self._root]
        while rest:
            pid = rest.pop()
            if pid not in self._members:
                self._members.add(pid)
                rest += children.get(pid, [])
        return {pid: stats.get(pid) for pid in self._members}


def _stat(pid: int) -> tuple[int, int] | None:
    """A process's parent, and the ticks used by it and by the children it has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called for every process of the machine
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(words[1]), sum(int(word) for word in words[11:15])
