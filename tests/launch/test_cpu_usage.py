"""What others use of the machine is said before a run and while it goes on."""

from __future__ import annotations

import pytest
from support.records import make_plan

from trainmark.cli.progress import ProgressLine
from trainmark.launch import cpu_usage, preflight
from trainmark.launch.cpu_usage import WINDOW_S, ForeignLoad, track_foreign_load
from trainmark.record.run_folder import RankLog


class Machine:
    """Four cores by a hand-moved clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.busy_s = self.own_s = 100.0
        monkeypatch.setattr(cpu_usage, "count_cores", lambda: 4)

    def goes_on(self, seconds: float, *, own: float, others: float) -> None:
        self.now_s += seconds
        self.own_s += own * seconds
        self.busy_s += (own + others) * seconds

    def load(self) -> ForeignLoad:
        return ForeignLoad(lambda: self.own_s, lambda: self.busy_s, lambda: self.now_s)


def test_what_others_use_is_a_mean_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine(monkeypatch)
    load = here.load()
    assert load.share() is None
    here.goes_on(2, own=1, others=3)
    assert load.share() == pytest.approx(0.75)
    for _ in range(int(2 * WINDOW_S)):
        here.goes_on(1, own=4, others=0)
        load.share()
    assert load.share() == pytest.approx(0)
    here.goes_on(WINDOW_S, own=1, others=1)
    assert load.share() == pytest.approx(0.25, abs=0.03)


def test_a_machine_that_does_not_say_it_is_no_error() -> None:
    assert ForeignLoad(lambda: None).share() is None
    assert track_foreign_load().share() is None  # a moment is too short


def test_the_sentence_before_a_run_is_said_of_a_busy_machine_only() -> None:
    assert preflight.describe_foreign_load(None) is None
    assert preflight.describe_foreign_load(0.05) is None
    assert str(preflight.describe_foreign_load(0.8)).startswith("other processes use 80 % of this machine: ")


def test_the_line_of_a_run_says_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    shares = iter([0.8, 0.02])
    line = ProgressLine(make_plan(), "images", "acc1", quiet=False, others=lambda: next(shares))
    for phase in ("train", "evaluate"):
        log = RankLog()
        log.phase = phase
        line.show([log])
    busy, quiet = capsys.readouterr().err.splitlines()
    assert "others use 80 % of this machine" in busy
    assert "others" not in quiet
