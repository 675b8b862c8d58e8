"""The line that is shown while a run goes on."""

from __future__ import annotations

import io

import pytest
from support.records import make_plan

from trainmark.cli import progress
from trainmark.record.recipe import Limits
from trainmark.record.run_folder import RankLog


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_that_is_left_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress.ProgressLine(make_plan(), "images", "acc1") as line:
        line.show([RankLog()])
    assert "left" in screen.getvalue()


def test_the_bar_of_a_run_with_a_share_of_a_budget_measures_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plan = make_plan(limits=Limits(half_width=0.02, wall_s=50))
    line = progress.ProgressLine(plan, "images", "acc1")
    now[0] = 120.0
    assert line._length(RankLog()) == (50, 20)
    now[0] = 190.0
    assert line._length(RankLog()) == (50, 50)


def test_what_is_left_is_reckoned_as_watch_reckons_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    log = RankLog(wait_ns=[0] * 20, compute_ns=[2_000_000_000] * 20, items=[32] * 20, loss=[1.0] * 20)
    with progress.ProgressLine(make_plan(limits=Limits(steps=60)), "images", "acc1") as line:
        line.show([log])
    assert "left 0:01:20" in screen.getvalue()
