"""A worker started before its run is planned: it becomes the run's rank where it may, else nothing is left of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from records import make_plan

from trainmark.launch import cluster_env, early_worker
from trainmark.launch.options import RunOptions
from trainmark.launch.workers import Launch, WorkerProcesses
from trainmark.platforms import files
from trainmark.spec.topology import Topology
from trainmark.train.ranks import LAUNCHED

ALONE = cluster_env.alone(Topology.parse("1x1"))
ON_CPU = RunOptions(workloads=("resnet50",), recipe="smoke", platform="cpu")
WAITS = "import os, sys; words = sys.stdin.readline(); open(sys.argv[1], 'w').write(words + os.environ[sys.argv[2]])"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes that stand for workers write what they were told, and when they were started."""
    popen, file = subprocess.Popen, tmp_path / "told"

    def instead(words: list[str], **settings: Any) -> Any:
        return popen([sys.executable, "-c", WAITS, str(file), LAUNCHED], **settings)

    monkeypatch.setattr(early_worker.subprocess, "Popen", instead)
    return file


def ranks(folder: Path, **recipe: str) -> WorkerProcesses:
    plan = make_plan(recipe={"host_settings": "tuned", **recipe}, platform="cpu")
    return WorkerProcesses(plan, ALONE, folder, task="trial")


def launched(folder: Path, **recipe: str) -> WorkerProcesses:
    started = ranks(folder, **recipe)
    started.start(Launch(plan_file=folder / "plan.json", launched_ns=7))
    return started


def test_the_worker_that_waits_becomes_the_rank_and_its_time_counts_from_its_start(told: Path, tmp_path: Path) -> None:
    with early_worker.started(ON_CPU):
        [early] = early_worker._waiting
        started = launched(tmp_path)
        assert started._processes[0] is early.process
        assert early.process.wait(60) == 0
        assert early_worker.waited_s() == 0.0
    words, began_ns = told.read_text().split("\n")
    assert json.loads(words) == [str(tmp_path), str(tmp_path / "plan.json"), "trial"]
    assert int(began_ns) == early.launched_ns == started._launch.launched_ns


def test_a_worker_with_other_variables_than_its_rank_is_ended_and_another_started(told: Path, tmp_path: Path) -> None:
    with early_worker.started(ON_CPU):
        [early] = early_worker._waiting
        started = launched(tmp_path, host_settings="default")
        assert started._processes[0] is not early.process
        assert early.process.returncode == -9
        assert started._launch.launched_ns == 7
        started.end()


def test_a_worker_that_died_meanwhile_is_replaced(told: Path, tmp_path: Path) -> None:
    with early_worker.started(ON_CPU):
        [early] = early_worker._waiting
        early.process.kill()
        early.process.wait()
        started = launched(tmp_path)
        assert started._processes[0] is not early.process
        started.end()


def test_a_worker_that_nobody_needed_is_ended(told: Path) -> None:
    with early_worker.started(ON_CPU):
        [early] = early_worker._waiting
    assert early.process.returncode == -9
    assert not early_worker._waiting


@pytest.mark.parametrize(
    "said",
    [
        {"topology": "1x2"},
        {"sweep": "1x1,1x2"},
        {"hosts": "a"},
        {"resume": "last"},
        {"recipe": "fill"},
        {"platform": "no-such-platform"},
    ],
)
def test_no_worker_is_started_early_where_its_run_may_need_another(said: dict[str, str], told: Path) -> None:
    with early_worker.started(RunOptions(workloads=("resnet50",), **said)):  # type: ignore[arg-type]
        assert not early_worker._waiting


def test_no_worker_is_started_early_for_one_rank_of_several(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with early_worker.started(ON_CPU):
        assert not early_worker._waiting


def test_the_platform_is_guessed_by_what_is_installed(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMARK_PLATFORM", raising=False)
    monkeypatch.setattr(early_worker.shutil, "which", lambda program: None)
    settings = files.load("cpu").host_settings
    with early_worker.started(RunOptions()):
        assert settings.items() <= early_worker._waiting[0].environment.items()
    monkeypatch.setattr(early_worker.shutil, "which", lambda program: f"/usr/bin/{program}")
    with early_worker.started(RunOptions()):
        assert not settings.keys() & early_worker._waiting[0].environment.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code"), [(b"", 0), (b'["nowhere"]\n', 2)])
def test_a_real_worker_waits_for_its_words_and_goes_where_none_come(line: bytes, code: int) -> None:
    worker = [sys.executable, "-m", "trainmark.train.worker", "--early", "resnet50"]
    ended = subprocess.run(worker, input=line, capture_output=True, timeout=120)
    assert ended.returncode == code
    assert (b"the following arguments are required" in ended.stderr) == bool(code)
