"""Whole runs through every door, as a user starts them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN, Cli

from trainmark.record.record import Record
from trainmark.record.store import Store

NEVER = ("--set", "target=101")
"""A target that no run reaches."""


def items(document: dict[str, Any], rank: int = 0) -> int:
    return sum(count * value for count, value in document["series"]["ranks"][rank]["items"])


def test_a_run_prints_one_json_record_and_keeps_it(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    said = ("--tag", "driver=550.54", "--note", "after the update")
    ended = cli(*TINY_RUN, "--data", pictures, "--epochs", "2", *NEVER, *said, "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    record = Record.from_json(document)
    assert Store(tmp_path / "store").record() == record
    assert record.status == "valid"
    assert (record.tags, record.note) == ({"driver": "550.54"}, "after the update")
    assert record.ended == "the epochs asked for are done"
    assert items(document) == 2 * 48
    assert [evaluation.samples for evaluation in record.quality.history] == [12, 12]
    found = {alias: quantity.value for alias, quantity in record.metrics.items()}
    assert 0 < found["p_whole"] <= found["p_train"] <= found["p_core"]  # type: ignore[operator]
    assert found["e2e_time"] == pytest.approx(sum(document["phases"].values()))
    assert record.environment.threads >= 1
    assert "GOMP_SPINCOUNT" in record.environment.variables
    assert {"generated-data", "target-missed"} <= {doubt.code for doubt in record.doubts}

    shown = cli("show")
    assert "synthetic data" in shown.stdout
    listed = cli("runs", "--since", "1d", "--tag", "driver=550.54")
    assert "resnet50" in listed.stdout


def test_a_resumed_run_continues_the_loss_curve_of_an_unbroken_one(cli: Cli, pictures: Path) -> None:
    def losses(*words: str | Path) -> list[float]:
        ended = cli(*words, "--json", "--quiet")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)["series"]["loss"]  # type: ignore[no-any-return]

    start = (*TINY_RUN, "--data", pictures, *NEVER, "--set", "epochs=2")
    whole = losses(*start)
    first = losses(*start, "--steps", "4")  # in the middle of an epoch
    second = losses("run", "--resume", "last", "--epochs", "2")
    assert len(whole) == 12
    assert first + second == whole
    again = cli("run", "--resume", "last")
    assert again.returncode == 2
    assert "is complete: the recipe's cap of epochs is reached; give --epochs, --steps or --items" in again.stderr


def test_two_ranks_train_on_every_sample_once_and_evaluate_each_once(cli: Cli, pictures: Path) -> None:
    ended = cli(*TINY_RUN, "--data", pictures, "--epochs", "1", *NEVER, "--topology", "1x2", "--json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert items(document, 0) + items(document, 1) == 48
    assert [evaluation["samples"] for evaluation in document["quality"]["history"]] == [12]
    losses = document["series"]["loss"]
    assert len(losses) == 3
    assert all(loss is not None for loss in losses)


def test_repeats_are_a_group_with_a_spread(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    ended = cli(*TINY_RUN, "--data", pictures, "--steps", "10", "--repeat", "2")
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 completed; spread" in ended.stdout
    rows = Store(tmp_path / "store").rows()
    assert len({row.group for row in rows}) == 1
    assert len({row.fingerprint for row in rows}) == 1
    assert len(rows) == 2


def test_strict_refuses_a_missed_target_and_keeps_the_record(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    ended = cli(*TINY_RUN, "--data", pictures, "--epochs", "1", *NEVER, "--strict")
    assert ended.returncode == 5
    assert "not valid under --strict: target missed" in ended.stderr
    assert len(Store(tmp_path / "store").rows()) == 1


def test_old_locales_and_unusual_paths_work(process: Cli, pictures: Path, tmp_path: Path) -> None:
    store = tmp_path / "a store 结果"
    ended = process(*TINY_RUN, "--data", pictures, "--steps", "3", "--store", store, LC_ALL="C", PYTHONUTF8="0")
    assert ended.returncode == 0, ended.stderr
    assert "p_core" in ended.stdout
    assert len(Store(store).rows()) == 1


def test_a_set_that_is_not_whole_is_refused_with_the_counts(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.mkdir()
    for entry in pictures.iterdir():
        (part / entry.name).symlink_to(entry)
    (part / "train").unlink()
    for image in pictures.glob("train/*/*.JPEG"):
        (part / image.relative_to(pictures)).parent.mkdir(parents=True, exist_ok=True)
        (part / image.relative_to(pictures)).symlink_to(image)
    next(part.glob("train/*/*.JPEG")).unlink()
    ended = cli(*TINY_RUN, "--data", part)
    assert ended.returncode == 3
    assert "expected 3 classes, 48 train and 12 val files, found 3 classes, 47 train" in ended.stderr


def test_a_terminal_shows_live_progress_and_no_colour_where_none_is_wanted(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "trainmark", *TINY_RUN, "--data", str(pictures), "--steps", "3"],
            env={**environment, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"},
            stdin=theirs,
            stdout=out,
            stderr=theirs,
        )
    os.close(theirs)
    said = b""
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        said += some
    assert run.wait(60) == 0
    assert b"resnet50 train" in said or b"resnet50 evaluate" in said or b"resnet50 end" in said
    assert b"\x1b[3" not in said
    printed = (tmp_path / "out").read_text(encoding="utf-8")
    assert "p_core" in printed
    assert "\x1b" not in printed


def test_the_smoke_recipe_learns_the_embedded_images(cli: Cli, tmp_path: Path) -> None:
    """What a new user runs first: nothing given, the set is made, and accuracy passes 90 % by learning alone."""
    ended = cli("run", "resnet50", "--recipe", "smoke", "--platform", "cpu", "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    record = Record.from_json(json.loads(ended.stdout))
    assert record.status == "valid"
    assert record.ended == "the target is reached"
    assert record.quality.value is not None
    assert record.quality.value > 90
    assert record.quality.history[0].values["acc1"] < 60
    assert record.metrics["p_core"].interval is not None
    assert list((tmp_path / "cache").iterdir())


def test_devices_that_are_not_there_are_counted_before_the_start(cli: Cli, pictures: Path) -> None:
    ended = cli(
        "run", "resnet50", "--recipe", "reference", "--topology", "1x8", "--platform", "nvidia", "--data", pictures
    )
    assert ended.returncode == 3
    assert (
        "topology 1x8 needs 8 devices of platform nvidia on this machine, 0 are visible; try --platform cpu"
        in ended.stderr
    )
