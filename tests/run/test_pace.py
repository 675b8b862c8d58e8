"""When a run stops, and what it writes down on the way."""

from __future__ import annotations

from pathlib import Path

import torch
from standin import HandClock, StandIn

from trainmark.run import pace
from trainmark.run.agreement import Alone
from trainmark.run.clock import Clock
from trainmark.run.events import EventTail, EventWriter
from trainmark.run.losses import MOST_KEPT, QueuedLosses
from trainmark.spec.recipe import Limits

MS = 1_000_000


class Course:
    """A training stretch on the stand-in device, with the pace's clock moved by the same hand."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.hand = HandClock()
        self.device = StandIn(self.hand)
        self.clock = Clock(self.device, self.device.synchronize, now_ns=self.hand)
        self.path = folder / "rank0.jsonl"
        self.pace = pace.Pace(
            clock=self.clock,
            events=EventWriter(self.path),
            limits=limits,
            agreement=Alone(),
            losses=QueuedLosses(torch.zeros(MOST_KEPT)),
            now_s=lambda: self.hand.ns / 1e9,
        )
        self.looks = 0

    def run(self, step_ms: list[int], items: list[int] | None = None) -> tuple[int, int]:
        """Trains steps of these lengths; returns how many were made, and the reason to stop."""
        with self.clock.training():
            for length, held in self.clock.waiting_for(zip(step_ms, items or [8] * len(step_ms), strict=True)):
                with self.clock.step(held):
                    self.device.launch(length * MS)
                    self.pace.note(torch.tensor(0.5))
                if reason := self.pace.stop():
                    break
        self.pace.write_down()
        return self.clock.steps, reason

    def lines(self) -> int:
        return len(list(EventTail(self.path).new_events()))


def test_steps_are_written_in_lots_not_one_by_one(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits())
    assert course.run([1] * 10_000) == (10_000, 0)
    # ten seconds of training, looked at about twice a second, after the first few
    assert course.lines() < 60


def test_seconds_end_a_run_within_a_look(tmp_path: Path) -> None:
    steps, reason = Course(tmp_path, Limits(seconds=5)).run([10] * 10_000)
    assert reason == pace.SECONDS
    assert 500 <= steps <= 500 + 60


def test_a_slow_device_is_not_left_alone_for_long(tmp_path: Path) -> None:
    steps, reason = Course(tmp_path, Limits(seconds=5)).run([3000] * 100)
    assert reason == pace.SECONDS
    assert steps <= 8  # the host is a few steps ahead of the device when the time is over


def test_a_run_settles_when_the_interval_is_narrow_and_not_before(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    noisy = (1000 + 150 * torch.randn(2000, generator=generator)).int().tolist()
    few, reason = Course(tmp_path, Limits(half_width=0.02)).run([1000] * 100)
    assert reason == pace.SETTLED
    many, reason = Course(tmp_path, Limits(half_width=0.02)).run(noisy)
    assert reason == pace.SETTLED
    assert pace.FEWEST_STEPS_FOR_INTERVAL <= few < 40 < many


def test_steps_that_take_longer_because_they_hold_more_settle_as_soon(tmp_path: Path) -> None:
    frames = torch.randint(200, 900, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    steps, reason = Course(tmp_path, Limits(half_width=0.02)).run([2 * count for count in frames], frames)
    assert reason == pace.SETTLED
    assert steps < 40


def test_a_loss_that_is_not_finite_outranks_every_other_reason(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits(steps=1))
    course.pace.wish = pace.INTERRUPTED
    with course.clock.training():
        for _ in course.clock.waiting_for([1]):
            with course.clock.step(1):
                course.pace.note(torch.tensor(float("inf")))
            reason = course.pace.stop()
    assert reason == pace.NOT_FINITE
