"""Ctrl-C and being asked to end: noted, for code that decides itself what these mean, or raised, for all other code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever cleans up after Ctrl-C does so now too."""


@contextmanager
def raising_on_sigterm() -> Iterator[None]:
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
def catching_signals() -> Iterator[list[int]]:
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
