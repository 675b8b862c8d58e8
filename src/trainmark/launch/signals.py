"""Ctrl-C and being asked to end: noted, for code that decides itself what these mean, or raised, for all other code."""

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
    """Takes the secret from standard input, and from then on sends this process SIGTERM when the input ends."""
    secret = _read_first_line()
    threading.Thread(target=_watch, name="stdin", daemon=True).start()
    return secret


def _read_first_line() -> str:
    said = b""
    while not said.endswith(b"\n") and len(said) < MAX_LINE_BYTES:
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


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever cleans up after Ctrl-C does so now too."""


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """SIGTERM ends what goes on as Ctrl-C does, by an exception, so that nothing is left behind."""
    usual = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not usual:  # whoever set another meaning keeps it
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
    """The signals that came, in order; none outside the main thread, where Python cannot listen for them."""
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
