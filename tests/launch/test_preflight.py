"""Data that a recipe cannot be trained on is found in seconds, and leaves nothing of a run behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import TINY_RUN

from trainmark.cli.main import main
from trainmark.data.ljspeech import make
from trainmark.launch import preflight

SPEECH_RUN = ("run", "tacotron2", "--recipe", "smoke", "--platform", "cpu")


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "set"
    make.make(folder, clips=24)
    return folder


def refusal(words: tuple[str, ...], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a folder that is refused with exit code 3 before a run begins."""
    assert main([*words, "--data", str(folder)]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    return said


def test_more_classes_than_the_network_has_are_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal((*TINY_RUN, "--set", "classes=2"), pictures, tmp_path, capsys)
    assert f"{pictures} has 3 classes, the recipe's network 2; try --set classes=3" in said


def test_a_folder_that_is_no_picture_set_is_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "train cannot be listed" in refusal(TINY_RUN, pictures / "train", tmp_path, capsys)
    shutil.copytree(pictures, tmp_path / "set")
    (tmp_path / "set/val/stranger").mkdir()
    assert "the first is 'stranger'" in refusal(TINY_RUN, tmp_path / "set", tmp_path, capsys)


def test_too_few_short_clips_for_one_step_are_refused(
    speech: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal((*SPEECH_RUN, "--set", "longest_frames=10"), speech, tmp_path, capsys)
    assert "0 of 18 training clips are as short as longest_frames=10, and a step takes 8" in said
    assert "--set longest_frames=0 takes all of them" in said
    words = (*SPEECH_RUN, "--set", "longest_frames=100000", "--set", "batch_per_device=10", "--topology", "1x2")
    said = refusal(words, speech, tmp_path, capsys)
    assert "18 of 18 training clips are as short as longest_frames=100000, and a step takes 20" in said


def test_a_folder_that_is_no_speech_set_is_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no metadata.csv" in refusal(SPEECH_RUN, pictures, tmp_path, capsys)


def test_the_sentence_before_a_run_is_said_of_a_busy_machine_only() -> None:
    assert preflight.describe_foreign_load(0.05) is None
    assert str(preflight.describe_foreign_load(0.8)).startswith("other processes use 80 % of this machine: ")
