"""Makes batches in a thread ahead of the trainer, for data of which a batch takes far less time than its step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches made ready while the trainer computes."""


def prefetch(batches: Iterable[T]) -> Iterator[T]:
    """The same batches, made in a thread while those before are in use; what goes wrong there is raised here."""
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
        while not ready.empty():  # room for what the maker is about to hand over, so that it can end
            ready.get_nowait()
        maker.join()
