"""Writes the finished steps to the event file about twice a second, and decides when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from trainmark.record import endings, statistics
from trainmark.record.errors import WorkloadError
from trainmark.record.events import Alive, EventWriter, Steps
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.schedule import Position, Schedule
from trainmark.train.transfers import MAX_PENDING_LOSSES, Losses

CHECK_EVERY_S = 0.5
MIN_STEPS_FOR_INTERVAL = 12

STEPS, ITEMS, SETTLED, SECONDS, BUDGET, INTERRUPTED, TERMINATED, NOT_FINITE = range(1, 9)
"""Reasons to stop before the recipe does; where ranks differ, the largest wins."""
LIMITS = (STEPS, ITEMS, SETTLED, SECONDS, BUDGET)
"""Those that a user requested beforehand."""

REASONS = {
    STEPS: endings.STEPS,
    ITEMS: endings.ITEMS,
    SETTLED: endings.SETTLED,
    SECONDS: endings.SECONDS,
    BUDGET: endings.BUDGET,
    INTERRUPTED: endings.INTERRUPTED,
    TERMINATED: endings.TERMINATED,
    NOT_FINITE: endings.NOT_FINITE,
}


class Monitor:
    """Between checks a step costs one comparison; a check comes about twice a second, at a step all ranks agree on."""

    def __init__(
        self,
        *,
        clock: Clock,
        events: EventWriter,
        schedule: Schedule,
        collectives: Collectives,
        losses: Losses,
        position: Position,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """After a restart, limits count from where the run began, including the seconds trained before."""
        self._clock = clock
        self._events = events
        self._limits = schedule.limits
        most_steps = schedule.limits.most_steps(schedule.items_per_step)
        self._last_step = None if most_steps is None else position.began_step + most_steps
        self._at_last_step = STEPS if most_steps == schedule.limits.steps else ITEMS
        self._collectives = collectives
        self._now_s = now_s
        self._losses = losses
        self._step = self._written = self._first_step = self._checked_step = position.step
        self._next_check = position.step + 1
        self._checked_at_s = now_s()
        self._began_s = self._checked_at_s - position.trained_s
        self._reported = ("", -math.inf)
        self._compute_s: list[float] = []
        self._items: list[int] = []
        self._settled_check = MIN_STEPS_FOR_INTERVAL
        self.stop_request = 0
        """Set by a signal handler: INTERRUPTED or TERMINATED."""
        self.bad_step: int | None = None
        self.first_items = 0
        """Of the first step."""

    def trained_s(self) -> float:
        """What the limit in seconds is compared with."""
        return self._now_s() - self._began_s

    def note(self, loss: torch.Tensor) -> None:
        """Keeps a step's loss without waiting for the device."""
        self._losses.note(loss)
        self._step += 1

    def stop(self) -> int:
        """After every step: 0 to continue, else one of the reasons above, the same on all ranks."""
        return 0 if self._step < self._next_check else self._check()

    def write_steps(self) -> None:
        """Appends the finished steps to the event file."""
        done = self._clock.finished_steps()
        if not done:
            return
        self.first_items = self.first_items or done[0].items
        if self.first_items < 1:
            raise WorkloadError(
                f"the workload's items(batch) is {self.first_items} for its first batch, so that no throughput can be "
                "counted; return how many items the batch holds"
            )
        first, self._written = self._written, self._written + len(done)
        losses = self._losses.take(len(done))
        if self._limits.half_width is not None:
            self._compute_s.extend(step.compute_ns / 1e9 for step in done)
            self._items.extend(step.items for step in done)
        if self.bad_step is None:
            self.bad_step = next((first + i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
        self._events.write(
            Steps(
                first=first,
                wait_ns=[step.wait_ns for step in done],
                compute_ns=[step.compute_ns for step in done],
                exchange_ns=() if self._collectives.world == 1 else [step.exchange_ns for step in done],
                items=[step.items for step in done],
                loss=[float(f"{loss:.7g}") if math.isfinite(loss) else None for loss in losses],
            )
        )

    def report_alive(self, phase: str, samples: int) -> None:
        """Writes about twice a second that something other than a step makes progress, so that it is no hang."""
        now = self._now_s()
        reported, reported_at_s = self._reported
        if phase != reported or now - reported_at_s >= CHECK_EVERY_S:
            self._reported = (phase, now)
            self._events.write(Alive(phase=phase, samples=samples))

    def _check(self) -> int:
        self.write_steps()
        now = self._now_s()
        rate = (self._step - self._checked_step) / max(now - self._checked_at_s, 1e-9)
        self._checked_at_s, self._checked_step = now, self._step
        reason, rate = self._collectives.reduce_max(self._local_reason(now, 1 / rate), rate)
        # at most doubled, so that a fast start does not delay later checks; the ring of losses must not wrap around
        stride = min(max(1, int(rate * CHECK_EVERY_S)), self._step - self._first_step, MAX_PENDING_LOSSES // 4)
        self._next_check = self._step + stride
        if self._last_step is not None:
            self._next_check = min(self._next_check, max(self._last_step, self._step + 1))
        self._clock.exclude_own_work()
        return int(reason)

    def _local_reason(self, now: float, step_s: float) -> int:
        if self.bad_step is not None:
            return NOT_FINITE
        if self.stop_request:
            return self.stop_request
        if self._limits.wall_s is not None and self._clock.elapsed_ns() / 1e9 + step_s >= self._limits.wall_s:
            return BUDGET  # another step would end too late
        if self._limits.seconds is not None and now - self._began_s >= self._limits.seconds:
            return SECONDS
        if self._last_step is not None and self._step >= self._last_step:
            return self._at_last_step
        if (
            self._limits.half_width is not None
            and self._collectives.rank == 0
            and self._is_settled(self._limits.half_width)
        ):
            return SETTLED
        return 0

    def _is_settled(self, half_width: float) -> bool:
        if len(self._compute_s) < self._settled_check:
            return False
        self._settled_check = math.ceil(len(self._compute_s) * 1.1)
        compute_s, items = np.asarray(self._compute_s), np.asarray(self._items, dtype=np.float64)
        start = statistics.find_steady_start(compute_s, items)
        found = statistics.mean_interval(compute_s[start:], items[start:])
        return found is not None and found.share <= half_width
