"""Points in time that work on a device passes, taken without making anyone wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


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


class DeviceEvent(Protocol):
    """The part of torch.Event that is used here; a device of ours that torch does not know brings its own."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Any, /) -> float:
        """In milliseconds."""


class EventMarks:
    """For devices with a queue: a mark is an event in that queue, so that taking it costs the device nothing."""

    def __init__(self, new_event: Callable[[], DeviceEvent]) -> None:
        self._new_event = new_event

    def mark(self) -> DeviceEvent:
        event = self._new_event()
        event.record()
        return event

    def reached(self, mark: DeviceEvent) -> bool:
        return bool(mark.query())

    def wait_for(self, mark: DeviceEvent) -> None:
        mark.synchronize()

    def between_ns(self, earlier: DeviceEvent, later: DeviceEvent) -> int:
        return 0 if earlier is later else round(earlier.elapsed_time(later) * 1e6)
