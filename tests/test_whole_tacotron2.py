"""Tacotron2 through every door: it learns, leaves something to listen to, and speaks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from PIL import Image
from support.short_speech import make_short

from trainmark.data import audio

WIDTHS = ("encoder_width=16", "prenet_width=8", "rnn_width=16", "attention_width=8", "postnet_width=8")
TINY = [
    *("run", "tacotron2", "--recipe", "smoke", "--platform", "cpu", "--quiet", "--json"),
    *(word for width in (*WIDTHS, "batch_per_device=8", "longest_frames=0") for word in ("--set", width)),
]
"""A network so small that a run is mostly start-up."""


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_short(tmp_path_factory.mktemp("speech") / "set", clips=18)


def run(cli: Cli, *words: str | Path, code: int = 0, **changes: str) -> dict[str, Any]:
    ended = cli(*words, **changes)
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout) if ended.stdout else {}


def frames(document: dict[str, Any]) -> int:
    return sum(count * value for rank in document["series"]["ranks"] for count, value in rank["items"])


def real_frames(speech: Path) -> int:
    from trainmark.data import mel
    from trainmark.data.ljspeech import reader

    return sum(mel.frames(audio.length(clip.path)) for clip in reader.open_splits(speech).train)


def test_the_smoke_recipe_learns_to_read_and_leaves_something_to_listen_to(cli: Cli, tmp_path: Path) -> None:
    document = run(
        cli, "run", "tacotron2", "--recipe", "smoke", "--platform", "cpu", "--quiet", "--json", "--epochs", "3"
    )
    assert document["status"] == "valid"
    history = [evaluation["values"] for evaluation in document["quality"]["history"]]
    assert history[-1]["val_loss"] < history[0]["val_loss"] / 5
    assert history[-1]["masked_val_loss"] < history[0]["masked_val_loss"] / 2.5
    assert history[0]["diagonality"] < 0.3 and history[-1]["diagonality"] > 0.7
    assert 0 < document["data_facts"]["padding_share"] < 0.2

    folder = tmp_path / "store" / "runs" / document["run_id"]
    assert [artifact["file"] for artifact in document["artifacts"]] == ["sample.wav", "sample.png"]
    assert audio.length(folder / "sample.wav") > audio.RATE / 2
    with Image.open(folder / "sample.png") as image:
        assert image.width > 400 and image.height > 200
    assert "sample.wav" in cli("show").stdout


def test_two_networks_trained_one_after_the_other_speak_together_and_the_page_plays_it(
    cli: Cli, speech: Path, tmp_path: Path
) -> None:
    reading = run(cli, *TINY, "--data", speech, "--steps", "2", "--set", "leave_sample=false")
    tiny = ("layers=4", "cycles=2", "channels=4", "window=1024", "eval_window=1024", "leave_sample=false")
    words = [word for setting in tiny for word in ("--set", setting)]
    train = ("run", "wavenet", "--recipe", "smoke", "--platform", "cpu", "--steps", "2", "--data", speech)
    vocoding = run(cli, *train, *words, "--quiet", "--json")
    how = ("--vocoder", "last-wavenet", "--set", "most_frames=8", "--set", "gate_threshold=1", "--json")
    spoken = run(cli, "sample", "last-tacotron2", "Dr. Brown has 2 dogs.", *how, "--platform", "cpu")
    assert spoken["facts"]["read"] == "doctor brown has two dogs."
    made_by = [(network["run_id"], network["step"]) for network in spoken["networks"]]
    assert made_by == [(reading["run_id"], 2), (vocoding["run_id"], 2)]
    sound = tmp_path / "store" / "samples" / reading["run_id"] / spoken["files"][0]["file"]
    assert audio.length(sound) == 8 * 256
    assert cli("report", "last-tacotron2", "--html", tmp_path / "page.html").returncode == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:audio/wav;base64,") == 1 and f"Made by {reading['run_id']}" in page


def test_items_are_the_real_frames_of_all_ranks(cli: Cli, speech: Path) -> None:
    alone = run(cli, *TINY, "--data", speech, "--epochs", "1", "--set", "leave_sample=false", "--precision", "amp-fp16")
    together = run(
        cli,
        *TINY,
        "--data",
        speech,
        "--epochs",
        "1",
        "--topology",
        "1x2",
        "--precision",
        "bf16",
        "--set",
        "batch_per_device=4",
    )
    assert frames(alone) == frames(together) == real_frames(speech)
    assert [document["quality"]["history"][-1]["samples"] for document in (alone, together)] == [2, 2]
    assert len(alone["series"]["loss"]) == len(together["series"]["loss"])
    assert not alone["artifacts"] and len(together["artifacts"]) == 2
    assert together["item"] == "mel frames" and together["metrics"]["p_core"]["unit"] == "mel frames/s"


def test_a_resumed_run_goes_on_with_the_clips_that_were_left(cli: Cli, speech: Path) -> None:
    start = (*TINY, "--data", speech, "--set", "leave_sample=false", "--set", "epochs=2")
    whole = run(cli, *start)
    first = run(cli, *start, "--steps", "2")
    second = run(cli, "run", "--resume", "last", "--epochs", "2", "--json", "--quiet")
    assert frames(first) + frames(second) == frames(whole) == 2 * real_frames(speech)


def test_a_corrupt_wav_ends_the_run_by_name_or_is_skipped_and_listed(cli: Cli, speech: Path, tmp_path: Path) -> None:
    from trainmark.data.ljspeech import reader

    folder = tmp_path / "damaged"
    shutil.copytree(speech, folder)
    bad = reader.open_splits(folder).train[0].path
    bad.write_bytes(b"RIFF not a wav")
    words = (*TINY, "--data", folder, "--epochs", "1", "--set", "leave_sample=false")
    ended = cli(*words)
    assert ended.returncode == 4
    assert bad.name in ended.stderr
    document = run(cli, *words, "--skip-bad", "1")
    assert [bad.name in line for line in document["skipped_files"]] == [True]
