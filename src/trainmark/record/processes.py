"""Ties the life of a process to that of its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int | None = None) -> None:
    """Asks the kernel to kill this process when the thread that started it is gone.

    Give the parent's pid where it is known: it may have gone before we could ask.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)
