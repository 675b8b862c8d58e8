"""SIGINT and SIGTERM: caught, for code that handles them itself, or raised, for all other code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from trainmark.record.errors import NotReadyError

VARIABLE = "TRAINMARK_END_WITH_STDIN"
MAX_LINE_BYTES = 200


def is_bound_to_stdin() -> bool:
    return os.environ.get(VARIABLE) == "1"


def end_with_stdin() -> str:
    """Reads the secret from standard input; from then on, the end of the input sends SIGTERM to this process."""
    secret = _read_first_line()
    threading.Thread(target=_watch, name="stdin", daemon=True).start()
    return secret


def _read_first_line() -> str:
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
        if not (more := os.read(0, 1)):
            raise NotReadyError("standard input was closed before it had a secret")
        line += more
    return line.decode(errors="replace").strip()


def _watch() -> None:
    try:
        # not sys.stdin, whose lock a thread waiting in it would hold when the interpreter ends
        while os.read(0, 4096):
            pass
    except OSError:  # closed
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is handled like Ctrl-C."""


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """SIGTERM raises an exception, as Ctrl-C does, so that everything is cleaned up."""
    is_default = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if not is_default:  # keep a handler that was set before
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """The received signals, in order; none outside the main thread, where Python cannot handle them."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
