"""Prefetches batches in a thread, for data whose batches take far less time than a step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches prefetched while the trainer computes."""


def prefetch(batches: Iterable[T]) -> Iterator[T]:
    """The same batches, prefetched in a thread; its exceptions are raised here."""
    ready: queue.Queue[T | BaseException | None] = queue.Queue(DEPTH)
    abandoned = threading.Event()

    def make() -> None:
        last: BaseException | None = None
        try:
            for batch in batches:
                ready.put(batch)
                if abandoned.is_set():
                    return
        except BaseException as error:
            last = error
        ready.put(last)

    maker = threading.Thread(target=make, name="batches", daemon=True)
    maker.start()
    try:
        while (made := ready.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            yield made
    finally:
        abandoned.set()
        while not ready.empty():  # unblocks the thread so that it can end
            ready.get_nowait()
        maker.join()
