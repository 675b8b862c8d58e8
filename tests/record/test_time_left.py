"""What is left of a run: its steps, with the evaluations and checkpoints to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.records import make_plan

from trainmark.record import events
from trainmark.record.plan import Plan
from trainmark.record.recipe import Limits
from trainmark.record.run_folder import RankLog
from trainmark.record.time_left import count_pauses, time_left_s

S = 1_000_000_000


def log(**saved: Any) -> RankLog:
    """20 steps of a second, an evaluation of 4 s after every ten."""
    found = RankLog(pid=1, steps_per_epoch=10, items_per_step=32.0)
    steps = {"wait_ns": [0] * 20, "compute_ns": [S] * 20, "items": [32] * 20, "loss": [1.0] * 20}
    found.add(events.Steps(first=0, **steps))
    for step, elapsed in ((10, 114), (20, 128)):
        found.add(events.Evaluated(step=step, epoch=step / 10, values={}, samples=8, elapsed_ns=elapsed * S))
    if saved:
        found.add(events.Saved(step=20, phases_ns=saved))
    return found


def plan(**recipe: Any) -> Plan:
    return make_plan(
        recipe={"epochs": 5, "evaluate_every": "never", "checkpoint_every": "never", **recipe}, limits=Limits()
    )


def test_it_holds_the_evaluations_and_checkpoints_to_come() -> None:
    asked = plan(evaluate_every="1 epoch", checkpoint_every="2 epochs")
    assert time_left_s(asked, log(), step=20, elapsed_s=None) == pytest.approx(30 + 3 * 4)
    # by its phases an evaluation takes 6 s and a checkpoint 5: at epochs 4 and 5
    known = log(evaluate=12 * S, checkpoint=5 * S)
    assert time_left_s(asked, known, step=20, elapsed_s=None) == pytest.approx(30 + 3 * 6 + 2 * 5)


@pytest.mark.parametrize(
    ("word", "evaluations"),
    [
        ("1 epoch", 3),
        ("2 epochs", 2),  # epochs 4, and the end
        ("4 epochs from 1", 1),  # after epochs 1 and 5
        ("15 steps", 3),  # steps 30 and 45, and the end
        ("320 items", 3),
        ("end", 1),
        ("never", 0),
        ("when the moon is full", 0),
    ],
)
def test_a_recipe_s_word_says_how_many_evaluations_are_to_come(word: str, evaluations: int) -> None:
    left = time_left_s(plan(evaluate_every=word), log(), step=20, elapsed_s=None)
    assert left == pytest.approx(30 + 4 * evaluations)


def test_a_limit_in_time_is_what_is_left_of_it() -> None:
    limited = replace(plan(), limits=Limits(wall_s=60))
    assert time_left_s(limited, log(), step=20, elapsed_s=50) == 10
    assert time_left_s(replace(plan(), limits=Limits(seconds=25)), log(), step=20, elapsed_s=50) == 5


def test_before_the_first_step_nobody_can_know() -> None:
    assert time_left_s(plan(), RankLog(), step=0, elapsed_s=1.0) is None


@pytest.mark.parametrize(
    ("word", "steps", "times"),
    [
        ("100 steps", 1000, 10),
        ("100 steps", 1050, 11),  # the last at the end
        ("2 epochs", 1000, 10),
        ("8 epochs from 2", 900, 3),  # after epochs 2, 10 and 18
        ("3200 items", 1000, 10),
        ("end", 1000, 1),
        ("end", 0, 0),
        ("never", 1000, 0),
        ("when the moon is full", 1000, None),
        ("", 1000, None),
    ],
)
def test_pauses_are_counted_as_a_run_makes_them(word: str, steps: float, times: int | None) -> None:
    recipe = {"evaluate_every": word}
    assert count_pauses(recipe, "evaluate_every", 0, steps, steps_per_epoch=50, items_per_step=32) == times
    if "epoch" in word:
        assert count_pauses(recipe, "evaluate_every", 0, steps, steps_per_epoch=None, items_per_step=32) is None
