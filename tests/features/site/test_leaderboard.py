"""The check that docs/leaderboard.md shows does what the page says, on pull requests as people would send them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.clean_records import QUICK

from trainmark.view.publish import make_publishable

PAGE = Path(__file__).parents[3] / "docs" / "leaderboard.md"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("git") is None, reason="no git on this machine")]


def git(folder: Path, *words: str) -> None:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, env={**os.environ, **who})


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `report --publish --format json` writes of a run."""
    made = QUICK.leave(tmp_path_factory.mktemp("store"))
    return json.dumps([entry.to_json() for entry in make_publishable([made]).records], allow_nan=False) + "\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Its main branch, with the check as the page gives it, and a branch to send from."""
    [script] = re.findall(r"^```bash\n(#!/usr/bin/env bash\n# check\.sh .*?)```", PAGE.read_text(), re.M | re.DOTALL)
    place = tmp_path / "repository"
    (place / "results").mkdir(parents=True)
    (place / "check.sh").write_text(script)
    (place / "results" / "README.md").write_text("Send one JSON.\n")
    command = tmp_path / "bin" / "trainmark"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trainmark "$@"\n')
    command.chmod(0o755)
    git(place, "init", "-q", "-b", "main")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "begin")
    git(place, "checkout", "-qb", "sent")
    return place


def run_check(repository: Path) -> subprocess.CompletedProcess[str]:
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a result")
    path = f"{repository.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "check.sh", "main"], cwd=repository, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )


def test_an_honest_record_is_accepted(repository: Path, record: str) -> None:
    (repository / "results" / "a.json").write_text(record)
    ended = run_check(repository)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " 0 failed" in ended.stdout


def test_a_record_that_was_made_better_is_not(repository: Path, record: str) -> None:
    [document] = json.loads(record)
    document["metrics"]["p_core"]["value"] *= 1.1
    (repository / "results" / "a.json").write_text(json.dumps([document]) + "\n")
    ended = run_check(repository)
    assert ended.returncode == 5, ended.stdout + ended.stderr
    assert "p_core" in ended.stdout


def test_a_copy_that_tells_too_much_is_not(repository: Path, record: str) -> None:
    (repository / "results" / "a.json").write_text(record.replace("host-1", "secret-box.example"))
    ended = run_check(repository)
    assert ended.returncode == 1 and "is not a copy made by" in ended.stderr


def test_two_files_or_another_place_are_not(repository: Path, record: str) -> None:
    (repository / "elsewhere.json").write_text(record)
    assert "is not results/*.json" in run_check(repository).stderr
    (repository / "results" / "a.json").write_text(record)
    assert "send one new file" in run_check(repository).stderr
