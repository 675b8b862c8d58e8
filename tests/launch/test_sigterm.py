"""SIGTERM does what Ctrl-C does, in every phase: real processes, real signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.background import Started
from support.records import make_plan, make_record

from trainmark.cli.main import main
from trainmark.launch import launcher, session
from trainmark.launch.options import RunOptions
from trainmark.launch.signals import Terminated, catch_signals, raise_on_sigterm
from trainmark.record import gather
from trainmark.record.store import Store


def wait_until(there: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_is_raised_as_ctrl_c_is_and_means_what_it_meant_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as caught, raise_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    assert isinstance(caught.value, Terminated)
    assert signal.getsignal(signal.SIGTERM) == before


def test_who_set_another_meaning_keeps_it() -> None:
    with catch_signals() as signals, raise_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: signals, 5)
    assert signals == [signal.SIGTERM]


def test_a_command_ended_by_sigterm_says_so_and_exits_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def checks(*words: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr(session, "run", checks)
    assert main(["run", "--store", str(tmp_path)]) == 143
    assert capsys.readouterr().err == "trainmark: ended by SIGTERM\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_step_keeps_the_record_and_ends_what_would_follow(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the record is made."""
    runs: list[Path] = []

    def execute(plan: Any, folder: Path, *more: Any) -> launcher.Outcome:
        runs.append(folder)
        return launcher.Outcome(folder=folder)

    def record(folder: Path) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        return replace(make_record(), run_id=folder.name, ended="60 steps were done")

    monkeypatch.setattr(launcher, "execute", execute)
    monkeypatch.setattr(gather, "gather_record", record)
    store = Store(tmp_path)
    asked = session._Session(
        RunOptions(repeat=3, store=str(tmp_path), quiet=True), lambda text: None, session._no_watcher
    )
    result = asked.run_all([make_plan()])
    assert result.exit_code == 128 + number
    assert len(runs) == 1
    assert [row.status for row in store.rows()] == ["valid"]
    assert f"{number.name} came when the run was over (60 steps were done); its record is valid" in result.complaints[0]


@pytest.mark.slow
def test_sigterm_while_data_is_made_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    cache = Path(environment["TRAINMARK_CACHE"])
    run = Started(environment, "run", "resnet50", "--recipe", "smoke", "--platform", "cpu")
    wait_until(lambda: any(path.is_file() for path in cache.rglob("*")))
    run.process.send_signal(signal.SIGTERM)
    out, err = run.process.communicate(60)
    assert run.process.returncode == 143, (out, err)
    assert "ended by SIGTERM" in err
    assert "resource_tracker" not in err and "Traceback" not in err
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert [path.name for folder in cache.iterdir() for path in folder.iterdir() if path.name.startswith(".")] == []
