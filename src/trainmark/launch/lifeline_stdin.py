"""Ends a process with its standard input: how a run on another host learns that whoever started it is gone.

The first line of that input is the run's secret, which on a command line or in a variable set by one all could read.
"""

from __future__ import annotations

import os
import signal
import threading

from trainmark.record.errors import NotReadyError

VARIABLE = "TRAINMARK_END_WITH_STDIN"
LONGEST_LINE = 200


def is_wanted() -> bool:
    return os.environ.get(VARIABLE) == "1"


def end_with_stdin() -> str:
    """Takes the secret from standard input, and from then on sends this process SIGTERM when the input ends."""
    secret = _first_line()
    threading.Thread(target=_watch, name="stdin", daemon=True).start()
    return secret


def _first_line() -> str:
    said = b""
    while not said.endswith(b"\n") and len(said) < LONGEST_LINE:
        if not (more := os.read(0, 1)):
            raise NotReadyError("whoever started this run was gone before it said how to find the others")
        said += more
    return said.decode(errors="replace").strip()


def _watch() -> None:
    try:
        # not sys.stdin, whose lock a thread waiting in it would hold when the interpreter ends
        while os.read(0, 4096):
            pass
    except OSError:  # closed: nobody is there either
        pass
    os.kill(os.getpid(), signal.SIGTERM)
