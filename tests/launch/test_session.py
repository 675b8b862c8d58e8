"""How runs share a time budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.records import make_record

from trainmark import api
from trainmark.launch import launcher, preflight, session
from trainmark.launch.options import RunOptions
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Plan


class Hours:
    """Runs that take no time but what the test says, on a clock it moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float = 0.0) -> None:
        self.now_s, self.takes_s = 0.0, takes_s
        self.plans: list[Plan] = []
        monkeypatch.setattr(session.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(session._Session, "get_ready", self._get_ready)
        monkeypatch.setattr(launcher, "run", self._run)
        monkeypatch.setattr(preflight, "check_budget", lambda plan, share_s: None)

    def _get_ready(self, decided: Any) -> None:
        self.now_s += 15  # data was made

    def _run(self, plan: Plan, store: Any, **_: Any) -> launcher.Outcome:
        self.plans.append(plan)
        self.now_s += self.takes_s
        return launcher.Outcome(folder=store.folder, record=make_record())

    @property
    def shares_s(self) -> list[float | None]:
        return [None if plan.limits.wall_s is None else float(plan.limits.wall_s) for plan in self.plans]


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    three = ("resnet50", "tacotron2", "vit")
    return RunOptions(workloads=three, budget_s=180.0, platform="cpu", store=str(tmp_path), quiet=True)


def test_workloads_share_what_is_left_after_the_data_was_made(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = Hours(monkeypatch, takes_s=160 / 3)
    result = session.run(options)
    assert hours.shares_s == [pytest.approx(160 / 3 - 3, abs=0.1)] * 3
    assert hours.now_s == pytest.approx(175)  # the page has the rest of the three minutes
    assert len(result.records) == 3


def test_what_a_run_leaves_goes_to_those_after_it(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch, takes_s=10)
    session.run(options)
    assert hours.shares_s == [pytest.approx(share, abs=0.1) for share in (50.3, 72, 137)]


def test_a_run_gets_a_moment_even_where_the_budget_is_spent(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = Hours(monkeypatch, takes_s=1000)
    session.run(options)
    assert hours.shares_s[1:] == [1, 1]


def test_what_has_no_room_is_left_out_and_said_and_the_others_share_its_time(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = Hours(monkeypatch)
    monkeypatch.setattr(preflight, "check_budget", lambda plan, share_s: "no room." if plan.workload == "vit" else None)
    result = session.run(options)
    assert [plan.workload for plan in hours.plans] == ["resnet50", "tacotron2"]
    assert result.left_out == ("no room.",)
    monkeypatch.setattr(preflight, "check_budget", lambda plan, share_s: f"no room for {plan.workload}.")
    with pytest.raises(NotReadyError, match=r"no room for resnet50\. no room for tacotron2\. no room for vit\."):
        session.run(options)


def test_without_a_budget_nothing_is_limited(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    monkeypatch.setattr(preflight, "check_budget", lambda plan, share_s: pytest.fail("nobody asked"))
    named = RunOptions(platform="cpu", store=options.store, quiet=True, workloads=("vit",))
    session.run(named)
    session.run_plan(hours.plans[0], RunOptions(store=options.store, quiet=True))
    assert hours.shares_s == [None, None]


def test_a_script_gives_a_budget_too(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = Hours(monkeypatch)
    api.run_all(options, budget_s=56.0)
    assert hours.shares_s == [9, 15, 33]
    api.run("vit", platform="cpu", store=options.store, budget_s=63.0)
    assert hours.shares_s[3:] == [40]
