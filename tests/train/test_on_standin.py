"""The loop on a device whose work ends later than its launch: the same training, and every wait is where it must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import job

from trainmark.platforms import files, standin
from trainmark.platforms.platform import Platform
from trainmark.platforms.standin_device import QueueEvent, StandInDevice
from trainmark.train import loop, transfers
from trainmark.train.schedule import Position
from trainmark.train.transfers import Losses, make_losses

SLOW_US = 20_000


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device that is far behind its host."""
    path = tmp_path / "script.toml"
    path.write_text(f"latency_us = {SLOW_US}\n", encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(path))
    return path


def trained(folder: Path, platform: str, precision: str = "fp32") -> tuple[loop.Job, list[dict[str, Any]]]:
    folder.mkdir()
    made = job(folder, platform=platform, precision=precision)
    loop.train(made, Position())
    lines = (folder / "rank0.jsonl").read_text(encoding="utf-8").splitlines()
    return made, [json.loads(line) for line in lines]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [loss for event in events if event["event"] == "steps" for loss in event["loss"]]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "amp-bf16"])
def test_the_stand_in_trains_as_the_processor_under_it_does(tmp_path: Path, precision: str) -> None:
    there, there_events = trained(tmp_path / "there", "standin", precision)
    here, here_events = trained(tmp_path / "here", "cpu", precision)
    assert losses(there_events) == losses(here_events)
    assert len(losses(there_events)) == 15
    for mine, other in zip(there.stepper.model.parameters(), here.stepper.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    values = [event["values"] for event in there_events if event["event"] == "evaluation"]
    assert values == [event["values"] for event in here_events if event["event"] == "evaluation"]


def test_a_mark_that_says_too_early_that_it_is_reached_shows_in_the_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueEvent, "query", lambda self: True)
    monkeypatch.setattr(QueueEvent, "synchronize", lambda self: None)
    monkeypatch.setattr(StandInDevice, "synchronize", lambda self, device=None: None)
    _, events = trained(tmp_path / "there", "standin")
    assert 0.0 in losses(events)  # read before the device had written it


def test_a_loss_is_read_when_its_step_is_done_and_never_before(tmp_path: Path) -> None:
    device = Platform(files.load("standin")).open(0)
    kept = make_losses(device)
    assert isinstance(kept, Losses)
    kept.note(torch.tensor(0.5))
    kept.note(torch.tensor(0.25))
    device.synchronize()
    assert kept.take(2) == [0.5, 0.25]
    kept.note(torch.tensor(0.125))
    assert kept.take(1) == [0.0]


def test_batches_are_copied_to_the_device(tmp_path: Path) -> None:
    made = job(tmp_path, platform="standin")
    [first, *_] = given = list(made.data.train(0, 0))
    [moved, *_] = transfers.move_batches(given, made.device)
    assert torch.equal(moved.x, first.x)
    assert moved.x.data_ptr() != first.x.data_ptr()
    assert moved.count == first.count
