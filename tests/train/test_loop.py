"""The loop ends where it should, counts every item, and writes down each step once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from support.tiny import RECIPE, LineFit, PointData, Points, PointStream, job

from trainmark.record import endings
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.events import Event, EventTail, Steps
from trainmark.record.recipe import Limits
from trainmark.train import loop, monitor
from trainmark.train.schedule import Position

AnyKind = TypeVar("AnyKind", bound=Event)


def events(folder: Path, kind: type[AnyKind]) -> list[AnyKind]:
    return [event for event in EventTail(folder / "rank0.jsonl").new_events() if isinstance(event, kind)]


def steps(folder: Path, name: str) -> list[Any]:
    return [value for event in events(folder, Steps) for value in getattr(event, name)]


def test_training_ends_at_the_target(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=200)
    position = Position()
    assert loop.train(job(tmp_path, recipe=recipe), position) == endings.TARGET
    assert position.epoch < 200
    assert position.history[-1].values["error"] <= recipe.target < position.history[-2].values["error"]


def test_training_ends_at_the_cap_when_the_target_is_out_of_reach(tmp_path: Path) -> None:
    position = Position()
    assert loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0)), position) == endings.CAP
    assert (position.epoch, position.step) == (5, 15)
    assert [evaluation.epoch for evaluation in position.history] == [1, 2, 3, 4, 5]


def test_items_are_what_was_trained_on_short_last_batches_included(tmp_path: Path) -> None:
    loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0)), Position())
    assert steps(tmp_path, "items") == [4, 4, 2] * 5


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_limit_of_steps_is_kept_exactly(tmp_path: Path, limit: int) -> None:
    position = Position()
    reason = loop.train(job(tmp_path, limits=Limits(steps=limit)), position)
    assert (reason, position.step) == (monitor.REASONS[monitor.STEPS], limit)
    assert len(steps(tmp_path, "compute_ns")) == len(steps(tmp_path, "loss")) == limit


def test_a_limit_of_epochs_is_kept_and_evaluated_at_its_end(tmp_path: Path) -> None:
    position = Position()
    loop.train(job(tmp_path, recipe=replace(RECIPE, target=-1.0), limits=Limits(epochs=2)), position)
    assert (position.epoch, [evaluation.epoch for evaluation in position.history]) == (2, [1, 2])


def test_a_limit_of_seconds_ends_the_run(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=10**6, target=-1.0)
    assert (
        loop.train(job(tmp_path, recipe=recipe, limits=Limits(seconds=0.05)), Position())
        == monitor.REASONS[monitor.SECONDS]
    )


def test_a_share_of_a_budget_ends_the_run_and_so_does_the_target(tmp_path: Path) -> None:
    endless = replace(RECIPE, epochs=10**6, target=-1.0)
    assert loop.train(job(tmp_path, recipe=endless, limits=Limits(wall_s=0.05)), Position()) == endings.BUDGET
    recipe = replace(RECIPE, epochs=200)
    assert loop.train(job(tmp_path, recipe=recipe, limits=Limits(wall_s=1e6)), Position()) == endings.TARGET


@pytest.mark.parametrize("poison_at", [0, 2])
def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(tmp_path: Path, poison_at: int) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    ready = job(tmp_path, data=PointData(poison_at=poison_at), saved=saved)
    position = Position()
    assert loop.train(ready, position) == monitor.REASONS[monitor.NOT_FINITE]
    assert ready.monitor.bad_step == poison_at
    assert position.history == []
    assert saved == []


def test_an_interruption_finishes_the_step_and_saves(tmp_path: Path) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    ready = job(tmp_path, recipe=replace(RECIPE, epochs=1000, target=-1.0), saved=saved)
    ready.monitor.stop_request = monitor.INTERRUPTED
    position = Position()
    assert loop.train(ready, position) == monitor.REASONS[monitor.INTERRUPTED]
    assert [step for step, _ in saved] == [position.step]


def test_a_resumed_run_goes_on_with_the_loss_curve_of_an_unbroken_one(tmp_path: Path) -> None:
    recipe = replace(RECIPE, target=-1.0)
    for name in ("whole", "first", "second"):
        (tmp_path / name).mkdir()
    loop.train(job(tmp_path / "whole", recipe=recipe), Position())

    saved: list[tuple[int, dict[str, Any]]] = []
    position = Position()
    loop.train(job(tmp_path / "first", recipe=recipe, limits=Limits(steps=7), saved=saved), position)
    resumed = job(tmp_path / "second", recipe=recipe, position=position)
    resumed.stepper.load_state(saved[-1][1])
    loop.train(resumed, position)

    broken = steps(tmp_path / "first", "loss") + steps(tmp_path / "second", "loss")
    assert broken == steps(tmp_path / "whole", "loss")
    assert events(tmp_path / "second", Steps)[0].first == 7


def test_the_recipe_says_when_to_evaluate_and_to_save(tmp_path: Path) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    recipe = replace(RECIPE, target=-1.0, evaluate_first=True, evaluate_every="2 epochs", checkpoint_every="2 epochs")
    position = Position()
    loop.train(job(tmp_path, recipe=recipe, saved=saved), position)
    assert [evaluation.epoch for evaluation in position.history] == [0, 2, 4, 5]
    assert [step for step, _ in saved] == [6, 12, 15]


STREAM = replace(RECIPE, epochs=0, steps=20, target=-1.0, evaluate_every="6 steps", checkpoint_every="4 steps")


def test_an_endless_stream_is_evaluated_and_saved_every_so_many_steps_and_ends_at_the_cap(tmp_path: Path) -> None:
    saved: list[tuple[int, dict[str, Any]]] = []
    position = Position()
    ready = job(tmp_path, recipe=STREAM, data=PointStream(), saved=saved)
    assert loop.train(ready, position) == endings.CAP_OF_STEPS
    assert [(evaluation.step, evaluation.epoch) for evaluation in position.history] == [
        (step, None) for step in (6, 12, 18, 20)
    ]
    assert [step for step, _ in saved] == [4, 8, 12, 16, 20]
    assert len(steps(tmp_path, "loss")) == 20


def test_pauses_change_nothing_in_what_is_trained(tmp_path: Path) -> None:
    recipes = {
        "stream": (STREAM, PointStream),
        "through": (replace(STREAM, evaluate_every="end", checkpoint_every="never"), PointStream),
        "set": (replace(RECIPE, target=-1.0, evaluate_every="2 steps", checkpoint_every="5 steps"), PointData),
        "whole": (replace(RECIPE, target=-1.0), PointData),
    }
    for name, (recipe, kind) in recipes.items():
        (tmp_path / name).mkdir()
        loop.train(job(tmp_path / name, recipe=recipe, data=kind()), Position())
    assert steps(tmp_path / "stream", "loss") == steps(tmp_path / "through", "loss")
    assert steps(tmp_path / "set", "loss") == steps(tmp_path / "whole", "loss")


def test_a_set_may_be_evaluated_within_its_epochs_and_once_where_both_fall_together(tmp_path: Path) -> None:
    position = Position()
    saved: list[tuple[int, dict[str, Any]]] = []
    recipe = replace(RECIPE, epochs=2, target=-1.0, evaluate_every="1 steps", checkpoint_every="1 epoch")
    assert loop.train(job(tmp_path, recipe=recipe, saved=saved), position) == endings.CAP
    assert [evaluation.step for evaluation in position.history] == [1, 2, 3, 4, 5, 6]
    assert [evaluation.epoch for evaluation in position.history][2:4] == [1, pytest.approx(4 / 3)]
    assert [step for step, _ in saved] == [3, 6]


def test_a_resumed_stream_goes_on_at_the_step_where_it_stood(tmp_path: Path) -> None:
    for name in ("whole", "first", "second"):
        (tmp_path / name).mkdir()
    loop.train(job(tmp_path / "whole", recipe=STREAM, data=PointStream()), Position())
    saved: list[tuple[int, dict[str, Any]]] = []
    position = Position()
    first = job(tmp_path / "first", recipe=STREAM, data=PointStream(), limits=Limits(steps=7), saved=saved)
    loop.train(first, position)
    data = PointStream()
    resumed = job(tmp_path / "second", recipe=STREAM, data=data, position=position)
    resumed.stepper.load_state(saved[-1][1])
    loop.train(resumed, position)
    assert data.asked_from[0] == 7
    assert steps(tmp_path / "first", "loss") + steps(tmp_path / "second", "loss") == steps(tmp_path / "whole", "loss")
    assert [evaluation.step for evaluation in position.history] == [6, 12, 18, 20]


def test_the_learning_rate_is_a_function_of_progress(tmp_path: Path) -> None:
    seen: list[tuple[float, float, float]] = []

    class Decayed(LineFit):
        def learning_rate(self, recipe: Any, progress: Any) -> float:
            seen.append((progress.fraction, progress.epoch, progress.items))
            return float(recipe.learning_rate * (1 - progress.fraction))

    ready = replace(job(tmp_path, recipe=replace(STREAM, steps=4), data=PointStream()), workload=Decayed())
    loop.train(ready, Position())
    assert seen == [(0, 0, 0), (0.25, 0, 4), (0.5, 0, 8), (0.75, 0, 12)]
    assert ready.stepper.optimizer.param_groups[0]["lr"] == pytest.approx(RECIPE.learning_rate / 4)
    seen.clear()
    recipe = replace(RECIPE, target=-1.0, epochs=2)
    loop.train(replace(job(tmp_path, recipe=recipe), workload=Decayed()), Position())
    assert [epoch for _, epoch, _ in seen] == [0, 1 / 3, 2 / 3, 1, 1 + 1 / 3, 1 + 2 / 3]
    assert [fraction for fraction, _, _ in seen] == [step / 6 for step in range(6)]


def test_a_recipe_that_never_ends_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an endless stream has no epochs, and the recipe has no other end"):
        job(tmp_path, recipe=replace(STREAM, epochs=3, steps=0), data=PointStream())


def test_a_stream_that_ends_all_the_same_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="the endless stream of training data ended at step 3"):
        loop.train(job(tmp_path, recipe=STREAM, data=PointData(steps_per_epoch=None)), Position())


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
    loop.train(ready, Position())
    assert used == {"loss": {True}, "score": {autocast}}
