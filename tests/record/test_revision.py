"""The source that runs is named by its revision where it is a checkout, and by nothing where it is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainmark.launch.launcher import read_revision


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed_since(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert read_revision(tmp_path) == commit
    (tmp_path / "pyproject.toml").write_text("a = 2\n")
    assert read_revision(tmp_path) == f"{commit}-dirty"


def test_without_a_checkout_or_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_revision(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("")
    assert read_revision(tmp_path) is None
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert read_revision(tmp_path) is None
