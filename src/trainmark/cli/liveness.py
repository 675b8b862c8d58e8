"""Whether anybody still works on a run: its ranks, or the launcher before they have spoken."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.record.run_folder import RunFolder

RECENT_S = 120.0
"""A run of which only the files are seen is taken to go on if they changed so recently."""
CLOCK_S = 2.0
"""How much later than its first file a process may seem to have begun."""


def seen(path: Path) -> RunFolder:
    """A run's folder as it is now."""
    from trainmark.record.run_folder import RunFolder

    folder = RunFolder(path)
    folder.update()
    return folder


def is_worked_on(folder: RunFolder) -> bool | None:
    """True if a process of the run is there, False if all were of this machine and are gone, None if nobody knows."""
    from trainmark.record.run_folder import HEAD_FILE
    from trainmark.train.ranks import read_host_name

    processes: list[tuple[str, int, float | None]]
    processes = [(log.host, log.pid, None) for log in folder.logs if log.pid is not None]
    head = folder.head
    if head and head.launcher_pid is not None:
        processes.append((head.launcher_host, head.launcher_pid, _changed_s(folder.path / HEAD_FILE)))
    own = read_host_name(os.environ)
    alive = [_is_alive(pid, by_s) for host, pid, by_s in processes if host == own]
    if any(alive):
        return True
    return False if alive and len(alive) == len(processes) else None


def goes_on(folder: RunFolder) -> bool:
    """What is most likely of a run without a record."""
    worked_on = is_worked_on(folder)
    if worked_on is not None:
        return worked_on
    return time.time() - last_change_s([folder.path, *folder.path.glob("*.jsonl")]) < RECENT_S


def last_change_s(paths: list[Path]) -> float:
    return max(map(_changed_s, paths), default=0.0)


def _changed_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _is_alive(pid: int, by_s: float | None) -> bool:
    """Whether a process is there; where `by_s` is known, one that had begun by then and did not only get its number."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # only its parent has not noticed yet
            return False
        return by_s is None or process.create_time() <= by_s + CLOCK_S
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError):  # somebody else's, or no number of a process
        return True
