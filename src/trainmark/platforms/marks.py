"""Points in time that work on a device passes, taken without making anyone wait."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Marks(Protocol):
    """How one kind of device takes and compares marks. A mark is reached when all work launched before it is done."""

    def mark(self) -> Any: ...

    def reached(self, mark: Any) -> bool: ...

    def wait_for(self, mark: Any) -> None: ...

    def between_ns(self, earlier: Any, later: Any) -> int:
        """Both marks must have been reached."""


class HostMarks:
    """For devices whose work is done when the call returns: a mark is a reading of the monotonic clock."""

    mark = staticmethod(time.perf_counter_ns)

    def reached(self, mark: int) -> bool:
        return True

    def wait_for(self, mark: int) -> None:
        pass

    def between_ns(self, earlier: int, later: int) -> int:
        return later - earlier


class EventMarks:
    """For devices with a queue: a mark is an event in that queue, so that taking it costs the device nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def reached(self, mark: torch.Event) -> bool:
        return bool(mark.query())

    def wait_for(self, mark: torch.Event) -> None:
        mark.synchronize()

    def between_ns(self, earlier: torch.Event, later: torch.Event) -> int:
        return 0 if earlier is later else round(earlier.elapsed_time(later) * 1e6)
