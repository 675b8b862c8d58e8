"""Charges wall time to named phases; waits for the device only where a phase begins or ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from trainmark.platforms.platform import HostMarks, Marks

MAX_STEPS_IN_FLIGHT = 4
"""How many steps the host may be ahead of the device: enough to hide the host, few enough to bound memory."""

Batch = TypeVar("Batch")


class StepTime(NamedTuple):
    """A step the device has finished."""

    items: int
    wait_ns: int
    compute_ns: int
    exchange_ns: int = 0
    """The part of the computation that was exposed communication with other ranks."""


class Stretch(NamedTuple):
    """One stretch of training by two clocks. The device is idle when it begins and ends."""

    host_ns: int
    device_ns: int
    """Between its first and its last mark."""


class Clock:
    """One rank's clock. Host phases are read from the monotonic clock; steps from marks in the device's queue.

    Inside `training` every instant belongs to a step's wait, a step's computation, or `other`; the three sum to the
    training time on the host's clock to the nanosecond.
    """

    def __init__(
        self,
        marks: Marks,
        synchronize: Callable[[], None],
        *,
        startup_ns: int = 0,
        began_ns: int | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`began_ns` is when the worker began, `startup_ns` the time from its launch to there."""
        self._marks = marks
        self._mark = marks.mark
        self._runs_ahead = not isinstance(marks, HostMarks)
        self._synchronize = synchronize
        self._now_ns = now_ns
        self._edge_ns = now_ns() if began_ns is None else began_ns
        self._launched_ns = self._edge_ns - startup_ns
        self.phases_ns: dict[str, int] = {"startup": startup_ns}
        self._queue: deque[tuple[Any, Any, Any, tuple[tuple[Any, Any], ...], int]] = deque()
        self._done: list[StepTime] = []
        self._ready: Any = None
        self._wait_from: Any = None
        self._exchange_from: Any = None
        self._exchanges: tuple[tuple[Any, Any], ...] = ()
        self._segment_ns = 0
        self.steps = 0
        self.stretch: Stretch | None = None
        """The last one that ended well."""

    def elapsed_ns(self) -> int:
        """End-to-end time so far."""
        return self._now_ns() - self._launched_ns

    def charge(self, phase: str) -> None:
        """Charges all time since the last edge to a phase."""
        now = self._now_ns()
        self.phases_ns[phase] = self.phases_ns.get(phase, 0) + now - self._edge_ns
        self._edge_ns = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A stretch outside of training. What lies between two stretches is `other`."""
        self.charge("other")
        try:
            yield
        finally:
            self._synchronize()
            self.charge(name)

    @contextmanager
    def training(self) -> Iterator[None]:
        """A stretch of steps: the device is idle when it begins and when it ends."""
        self.charge("other")
        self._segment_ns = 0
        begin = self._wait_from = self._mark()
        try:
            yield
        finally:
            end = self._mark()
            self._synchronize()
            self.charge("training")
            self._collect(everything=True)
            host_ns = self.phases_ns.pop("training")
            # what no step accounts for is overhead; not negative, as device events may exceed host time by a tick
            self.phases_ns["other"] += max(0, host_ns - self._segment_ns)
            self.stretch = Stretch(host_ns, self._marks.between_ns(begin, end))

    def waiting_for(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Hands the batches on; the time until each is ready is that step's data wait."""
        mark = self._mark
        for batch in batches:
            self._ready = mark()
            yield batch

    def begin_exchange(self) -> None:
        """Called when only communication is left of a step: its last gradients are ready."""
        self._exchange_from = self._mark()

    def end_exchange(self) -> None:
        """Called when work launched from now on sees what was exchanged; does nothing where no exchange was begun."""
        if self._exchange_from is not None:
            self._exchanges += ((self._exchange_from, self._mark()),)
            self._exchange_from = None

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Around an exchange that no computation overlaps."""
        self.begin_exchange()
        yield
        self.end_exchange()

    def end_step(self, items: int) -> None:
        """Called when a training step is launched; the device finishes it whenever it gets there."""
        end = self._mark()
        self._queue.append((self._wait_from, self._ready, end, self._exchanges, items))
        self._wait_from, self._exchanges = end, ()
        self.steps += 1
        if self._runs_ahead and len(self._queue) > MAX_STEPS_IN_FLIGHT:
            self._marks.wait_for(self._queue[-MAX_STEPS_IN_FLIGHT - 1][2])

    def exclude_own_work(self) -> None:
        """Called after work of the harness between two steps, so that it is not charged to the next data wait."""
        self._wait_from = self._mark()

    def finished_steps(self) -> list[StepTime]:
        """The steps the device has finished since the last call, oldest first. Never waits."""
        self._collect(everything=False)
        done, self._done = self._done, []
        return done

    def _collect(self, *, everything: bool) -> None:
        between = self._marks.between_ns
        while self._queue and (everything or self._marks.is_reached(self._queue[0][2])):
            wait_from, ready, end, exchanges, items = self._queue.popleft()
            exchange_ns = sum(between(*marks) for marks in exchanges) if exchanges else 0
            step = StepTime(items, between(wait_from, ready), between(ready, end), exchange_ns)
            self._segment_ns += step.wait_ns + step.compute_ns
            self._done.append(step)
