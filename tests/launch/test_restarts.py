"""Ranks start again where that is allowed and could help, on all nodes or on none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmark.launch import launcher
from trainmark.launch.coordinator import Coordinator, Heartbeat, RestartDecision
from trainmark.launch.launcher import Restarts
from trainmark.launch.workers import WorkerProcesses


class Meeting:
    """What launchers decide together, without a network between them."""

    def __init__(self) -> None:
        self.decided: dict[int, RestartDecision] = {}

    def decide_restart(self, restarts: int, wish: RestartDecision) -> RestartDecision:
        return self.decided.setdefault(restarts, wish)


def ranks(*, allowed: int = 1, restarts: int = 0, failed: str = "", pointless: bool = False) -> WorkerProcesses:
    """Of one launcher: they `died`, `raised` or only `lost another`, or nothing happened."""
    told = SimpleNamespace(consequence=failed == "lost another")
    return cast(
        WorkerProcesses,
        SimpleNamespace(
            plan=SimpleNamespace(max_restarts=allowed),
            restarts=restarts,
            failed=bool(failed),
            deaths=["one"] if failed == "died" else [],
            failures=[("log", told)] if failed in ("raised", "lost another") else [],
            may_restart=restarts < allowed and not pointless,
        ),
    )


def on(workers: WorkerProcesses, meeting: Meeting, *, heard: int = 0) -> Restarts:
    heartbeat = SimpleNamespace(restarts=heard, fault=False)
    return Restarts(workers, cast(Coordinator, meeting), cast(Heartbeat, heartbeat))


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, False),
        ({"failed": "died"}, True),
        ({"failed": "raised"}, True),
        ({"failed": "died", "allowed": 0}, False),
        ({"failed": "died", "restarts": 1}, False),
        ({"failed": "raised", "pointless": True}, False),
    ],
)
def test_on_one_machine_a_failure_is_tried_again_as_often_as_allowed(changes: dict[str, Any], due: bool) -> None:
    assert Restarts(ranks(**changes)).is_due(ended=bool(changes)) is due


def test_what_the_first_launcher_decides_holds_for_all() -> None:
    meeting = Meeting()
    assert on(ranks(failed="died"), meeting).is_due(ended=False)
    assert on(ranks(), meeting, heard=1).is_due(ended=False), "whose ranks did not notice yet"
    assert on(ranks(), meeting).is_due(ended=True), "whose ranks had all ended well"
    assert not on(ranks(restarts=1), meeting, heard=1).is_due(ended=False), "once each time"


def test_ranks_do_not_start_again_after_others_have_ended_well() -> None:
    meeting = Meeting()
    assert not on(ranks(), meeting).is_due(ended=True)
    late = on(ranks(failed="died"), meeting)
    assert not late.is_due(ended=False)
    assert not late.is_due(ended=True)


def test_a_failure_that_would_come_again_is_not_tried_again_by_those_who_only_noticed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other launcher's word comes while this one waits for it."""
    meeting = Meeting()

    def hear(seconds: float) -> None:
        assert not on(ranks(failed="raised", pointless=True), meeting).is_due(ended=True)
        heartbeat.fault = True

    heartbeat = SimpleNamespace(restarts=0, fault=False)
    monkeypatch.setattr(launcher.time, "sleep", hear)
    noticed = Restarts(ranks(failed="lost another"), cast(Coordinator, meeting), cast(Heartbeat, heartbeat))
    assert not noticed.is_due(ended=True)


def test_where_nobody_knows_what_happened_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "NEWS_TIMEOUT_S", 0)
    assert on(ranks(failed="lost another"), Meeting()).is_due(ended=True)
