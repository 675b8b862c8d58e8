"""The loop ends where it should, counts every item, and writes down each step once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import RECIPE, PointData, Points, job

from trainmark.spec.events import EventTail
from trainmark.spec.precision import PRECISIONS, Precision
from trainmark.spec.recipe import Limits
from trainmark.train import loop, monitor


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in EventTail(folder / "rank0.jsonl").new_events() if event["event"] == kind]


def steps(folder: Path, name: str) -> list[Any]:
    return [value for event in events(folder, "steps") for value in event[name]]


def test_training_ends_at_the_target(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=200)
    position = loop.Position()
    assert loop.train(job(tmp_path, recipe=recipe), position) == loop.TARGET
    assert position.epoch < 200
    assert position.history[-1].values["error"] <= recipe.target < position.history[-2].values["error"]


def test_training_ends_at_the_cap_when_the_target_is_out_of_reach(tmp_path: Path) -> None:
    position = loop.Position()
    assert loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0)), position) == loop.CAP
    assert (position.epoch, position.step) == (5, 15)
    assert [evaluation.epoch for evaluation in position.history] == [1, 2, 3, 4, 5]


def test_items_are_what_was_trained_on_short_last_batches_included(tmp_path: Path) -> None:
    loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0)), loop.Position())
    assert steps(tmp_path, "items") == [4, 4, 2] * 5


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_limit_of_steps_is_kept_exactly(tmp_path: Path, limit: int) -> None:
    position = loop.Position()
    reason = loop.train(job(tmp_path, limits=Limits(steps=limit)), position)
    assert (reason, position.step) == (monitor.REASONS[monitor.STEPS], limit)
    assert len(steps(tmp_path, "compute_ns")) == len(steps(tmp_path, "loss")) == limit


def test_a_limit_of_epochs_is_kept_and_evaluated_at_its_end(tmp_path: Path) -> None:
    position = loop.Position()
    loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0), limits=Limits(epochs=2)), position)
    assert (position.epoch, [evaluation.epoch for evaluation in position.history]) == (2, [1, 2])


def test_a_limit_of_seconds_ends_the_run(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=10**6, target=-1.0)
    assert (
        loop.train(job(tmp_path, recipe=recipe, limits=Limits(seconds=0.05)), loop.Position())
        == monitor.REASONS[monitor.SECONDS]
    )


@pytest.mark.parametrize("poison_at", [0, 2])
def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(tmp_path: Path, poison_at: int) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    ready = job(tmp_path, data=PointData(poison_at=poison_at), saved=saved)
    position = loop.Position()
    assert loop.train(ready, position) == monitor.REASONS[monitor.NOT_FINITE]
    assert ready.pace.bad_step == poison_at
    assert position.history == []
    assert saved == []


def test_an_interruption_finishes_the_step_and_saves(tmp_path: Path) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    ready = job(tmp_path, recipe=replace(RECIPE, epochs=1000, target=-1.0), saved=saved)
    ready.pace.wish = monitor.INTERRUPTED
    position = loop.Position()
    assert loop.train(ready, position) == monitor.REASONS[monitor.INTERRUPTED]
    assert [step for step, _ in saved] == [position.step]


def test_a_resumed_run_goes_on_with_the_loss_curve_of_an_unbroken_one(tmp_path: Path) -> None:
    recipe = replace(RECIPE, target=-1.0)
    for name in ("whole", "first", "second"):
        (tmp_path / name).mkdir()
    loop.train(job(tmp_path / "whole", recipe=recipe), loop.Position())

    saved: list[tuple[int, dict[str, Any]]] = []
    position = loop.Position()
    loop.train(job(tmp_path / "first", recipe=recipe, limits=Limits(steps=7), saved=saved), position)
    resumed = job(tmp_path / "second", recipe=recipe, position=position)
    resumed.stepper.load_state(saved[-1][1])
    loop.train(resumed, position)

    broken = steps(tmp_path / "first", "loss") + steps(tmp_path / "second", "loss")
    assert broken == steps(tmp_path / "whole", "loss")
    assert events(tmp_path / "second", "steps")[0]["first"] == 7


def test_the_recipe_says_when_to_evaluate_and_to_save(tmp_path: Path) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    recipe = replace(RECIPE, target=-1.0, evaluate_first=True, evaluate_every_epochs=2, checkpoint_every_epochs=2)
    position = loop.Position()
    loop.train(job(tmp_path, recipe=recipe, saved=saved), position)
    assert [evaluation.epoch for evaluation in position.history] == [0, 2, 4, 5]
    assert [step for step, _ in saved] == [6, 12, 15]


def test_accumulated_micro_batches_train_like_whole_batches(tmp_path: Path) -> None:
    recipe = replace(RECIPE, target=-1.0)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    loop.train(job(tmp_path / "whole", recipe=recipe), loop.Position())
    loop.train(job(tmp_path / "parts", recipe=replace(recipe, accumulate=3)), loop.Position())
    assert steps(tmp_path / "parts", "loss") == pytest.approx(steps(tmp_path / "whole", "loss"), rel=1e-5)
    assert steps(tmp_path / "parts", "items") == steps(tmp_path / "whole", "items")


@pytest.mark.parametrize(("evaluate_in", "autocast"), [("same", True), ("fp32", False)])
def test_evaluation_leaves_autocast_where_the_recipe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate_in: str, autocast: bool
) -> None:
    ready = job(tmp_path, recipe=replace(RECIPE, epochs=1, evaluate_in=evaluate_in), precision="amp-bf16")
    used: dict[str, set[bool]] = {"loss": set(), "score": set()}
    for name in used:
        plain = getattr(ready.workload, name)

        def watched(model: torch.nn.Module, batch: Points, name: str = name, plain: Any = plain) -> Any:
            used[name].add(torch.is_autocast_enabled("cpu"))
            return plain(model, batch)

        monkeypatch.setattr(ready.workload, name, watched)
        if name == "loss":
            monkeypatch.setattr(ready.stepper, "_loss", watched)
    loop.train(ready, loop.Position())
    assert used == {"loss": {True}, "score": {autocast}}


@pytest.mark.parametrize("word", PRECISIONS)
def test_only_autocast_is_left_for_evaluation_in_fp32(word: str) -> None:
    training = Precision.parse(word)
    assert loop.evaluation_precision(RECIPE, training) == training
    expected = "fp32" if word.startswith("amp-") else word
    assert loop.evaluation_precision(replace(RECIPE, evaluate_in="fp32"), training).name == expected
