"""When a run stops, and what it writes down on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.standin import HandClock, StandIn
from support.tiny import RECIPE

from trainmark.record.events import EventTail, EventWriter
from trainmark.record.recipe import Limits
from trainmark.train import monitor
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.schedule import Position, Schedule
from trainmark.train.transfers import MAX_PENDING_LOSSES, Losses

MS = 1_000_000


class Several(Collectives):
    """Two ranks of which the other always agrees."""

    world = 2


class Course:
    """A training stretch on the stand-in device, with the monitor's clock moved by the same hand."""

    def __init__(self, folder: Path, limits: Limits, *, world: int = 1, **begun: Any) -> None:
        self.hand = HandClock()
        self.device = StandIn(self.hand)
        self.clock = Clock(self.device, self.device.synchronize, now_ns=self.hand)
        self.path = folder / "rank0.jsonl" if folder.is_dir() else folder
        self.monitor = monitor.Monitor(
            clock=self.clock,
            events=EventWriter(self.path),
            schedule=Schedule(recipe=RECIPE, limits=limits, steps_per_epoch=3, items_per_step=8),
            collectives=Several() if world > 1 else Collectives(),
            losses=Losses(torch.zeros(MAX_PENDING_LOSSES)),
            position=Position(**begun),
            now_s=lambda: self.hand.ns / 1e9,
        )
        self.world = world

    def run(self, step_ms: list[int], items: list[int] | None = None) -> tuple[int, int]:
        """Trains steps of these lengths; returns how many were made, and the reason to stop."""
        with self.clock.training():
            for length, held in self.clock.waiting_for(zip(step_ms, items or [8] * len(step_ms), strict=True)):
                self.device.launch(length * MS)
                if self.world > 1:
                    self.clock.begin_exchange()
                    self.device.launch(MS)
                    self.clock.end_exchange()
                self.monitor.note(torch.tensor(0.5))
                self.clock.end_step(held)
                if reason := self.monitor.stop():
                    break
        self.monitor.write_steps()
        return self.clock.steps, reason

    def lines(self) -> int:
        return len(self.events())

    def events(self) -> list[Any]:
        return list(EventTail(self.path).new_events())


@pytest.mark.slow
def test_steps_are_written_in_lots_not_one_by_one(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits())
    assert course.run([1] * 10_000) == (10_000, 0)
    # ten seconds of training, looked at about twice a second, after the first few
    assert course.lines() < 60


def test_seconds_end_a_run_within_a_look(tmp_path: Path) -> None:
    steps, reason = Course(tmp_path, Limits(seconds=5)).run([10] * 10_000)
    assert reason == monitor.SECONDS
    assert 500 <= steps <= 500 + 60


def test_a_share_of_a_budget_counts_from_the_launch_and_no_step_begins_that_would_end_beyond_it(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits(wall_s=10))
    course.hand.ns += 4_000 * MS  # what it took to start
    steps, reason = course.run([700] * 100)
    assert reason == monitor.BUDGET
    assert 4 + 0.7 * (steps - 4) <= 10 < 4 + 0.7 * (steps + 1)  # the host is a few steps ahead of the device
    late = Course(tmp_path / "late.jsonl", Limits(wall_s=10))
    late.hand.ns += 20_000 * MS
    assert late.run([700] * 100) == (1, monitor.BUDGET)


def test_a_slow_device_is_not_left_alone_for_long(tmp_path: Path) -> None:
    steps, reason = Course(tmp_path, Limits(seconds=5)).run([3000] * 100)
    assert reason == monitor.SECONDS
    assert steps <= 8  # the host is a few steps ahead of the device when the time is over


def test_a_run_settles_when_the_interval_is_narrow_and_not_before(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    noisy = (1000 + 150 * torch.randn(2000, generator=generator)).int().tolist()
    few, reason = Course(tmp_path, Limits(half_width=0.02)).run([1000] * 100)
    assert reason == monitor.SETTLED
    many, reason = Course(tmp_path, Limits(half_width=0.02)).run(noisy)
    assert reason == monitor.SETTLED
    assert monitor.MIN_STEPS_FOR_INTERVAL <= few < 40 < many


def test_a_loss_that_is_not_finite_outranks_every_other_reason(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits(steps=1))
    course.monitor.stop_request = monitor.INTERRUPTED
    with course.clock.training():
        for _ in course.clock.waiting_for([1]):
            course.monitor.note(torch.tensor(float("inf")))
            course.clock.end_step(1)
            reason = course.monitor.stop()
    assert reason == monitor.NOT_FINITE


def test_the_exchange_of_each_step_is_written_down_where_there_are_several_ranks(tmp_path: Path) -> None:
    course = Course(tmp_path, Limits(), world=2)
    course.run([4] * 3)
    assert [ns for event in course.events() for ns in event.exchange_ns] == [MS] * 3
    (tmp_path / "alone").mkdir()
    alone = Course(tmp_path / "alone", Limits())
    alone.run([4] * 3)
    assert all(b"exchange_ns" not in line for line in alone.path.read_bytes().splitlines())


def test_a_limit_of_items_ends_a_run_at_the_step_that_reaches_them(tmp_path: Path) -> None:
    for number, (limits, expected) in enumerate(
        [
            (Limits(items=80), (10, monitor.ITEMS)),
            (Limits(items=81), (11, monitor.ITEMS)),
            (Limits(items=80, steps=9), (9, monitor.STEPS)),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        assert Course(tmp_path / str(number), limits).run([10] * 100) == expected


def test_after_a_restart_the_limits_count_what_was_done_before_it(tmp_path: Path) -> None:
    (tmp_path / "resumed").mkdir()
    begun = {"step": 140, "began_step": 100}
    assert Course(tmp_path, Limits(steps=60), **begun).run([10] * 100) == (20, monitor.STEPS)
    # a run that resumed another one's checkpoint begins there, and has all of its own steps before it
    assert Course(tmp_path / "resumed", Limits(steps=60), step=140, began_step=140).run([10] * 100) == (
        60,
        monitor.STEPS,
    )
