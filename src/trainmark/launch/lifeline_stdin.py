"""Ends a process with its standard input: how a run on another host learns that whoever started it is gone."""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "TRAINMARK_END_WITH_STDIN"


def is_wanted() -> bool:
    return os.environ.get(VARIABLE) == "1"


def end_with_stdin() -> None:
    """Sends this process SIGTERM when its standard input reaches its end; what comes before the end is ignored."""
    threading.Thread(target=_watch, name="stdin", daemon=True).start()


def _watch() -> None:
    try:
        # not sys.stdin, whose lock a thread waiting in it would hold when the interpreter ends
        while os.read(0, 4096):
            pass
    except OSError:  # closed: nobody is there either
        pass
    os.kill(os.getpid(), signal.SIGTERM)
