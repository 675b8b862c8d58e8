"""Whether a run is still alive, by the processes of its ranks and its launcher."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.record.run_folder import RunFolder

RECENT_S = 120.0
"""A run on another host counts as running if its files changed this recently."""
CLOCK_S = 2.0
"""How much later than its first file a process may seem to have started."""


def read_run_folder(path: Path) -> RunFolder:
    """A run's folder as of now."""
    from trainmark.record.run_folder import RunFolder

    folder = RunFolder(path)
    folder.update()
    return folder


def has_processes(folder: RunFolder) -> bool | None:
    """True if a process of the run is alive, False if all ran here and are gone, None if unknown."""
    from trainmark.record.run_folder import HEAD_FILE
    from trainmark.train.ranks import read_host_name

    processes: list[tuple[str, int, float | None]]
    processes = [(log.host, log.pid, None) for log in folder.logs if log.pid is not None]
    head = folder.head
    if head and head.launcher_pid is not None:
        processes.append((head.launcher_host, head.launcher_pid, _modified_s(folder.path / HEAD_FILE)))
    own = read_host_name(os.environ)
    alive = [_is_alive(pid, by_s) for host, pid, by_s in processes if host == own]
    if any(alive):
        return True
    return False if alive and len(alive) == len(processes) else None


def is_running(folder: RunFolder, recent_s: float = RECENT_S) -> bool:
    """Whether a run without a record is most likely still running; on another host, by its files."""
    alive = has_processes(folder)
    if alive is not None:
        return alive
    return time.time() - last_modified_s([folder.path, *folder.path.glob("*.jsonl")]) < recent_s


def last_modified_s(paths: list[Path]) -> float:
    return max(map(_modified_s, paths), default=0.0)


def _modified_s(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _is_alive(pid: int, by_s: float | None) -> bool:
    """Whether a process is alive; with `by_s`, one that had started by then rather than reused its pid."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, but not yet waited for
            return False
        return by_s is None or process.create_time() <= by_s + CLOCK_S
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OverflowError, ValueError):  # another user's, or not a pid
        return True
