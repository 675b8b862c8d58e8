"""A run gives the same numbers however many devices share its global batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN, Cli

ROUNDING = 2e-4
"""What float32's rounding may grow to in a dozen steps; batch norms over each rank's own samples differ by 1e-2."""


def start(pictures: Path, topology: str, batch_per_device: int) -> tuple[str | Path, ...]:
    """Words of a run of two epochs that learns slowly: at the recipe's own rate an activation that rounding lifts over
    zero changes the next steps so much that no two sums in different order would agree for long."""
    settings = (f"batch_per_device={batch_per_device}", "learning_rate=0.01", "target=101", "epochs=2")
    set_words = [word for setting in settings for word in ("--set", setting)]
    return (*TINY_RUN, "--data", pictures, "--topology", topology, *set_words)


def document(cli: Cli, *words: str | Path) -> dict[str, Any]:
    ended = cli(*words, "--json", "--quiet")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def items(document: dict[str, Any]) -> int:
    return sum(count * value for rank in document["series"]["ranks"] for count, value in rank["items"])


def test_two_ranks_train_and_evaluate_as_one_does_on_the_same_global_batch(cli: Cli, pictures: Path) -> None:
    one = document(cli, *start(pictures, "1x1", 8))
    two = document(cli, *start(pictures, "1x2", 4))
    assert items(one) == items(two) == 2 * 48
    assert len(one["series"]["loss"]) == 12
    assert two["series"]["loss"] == pytest.approx(one["series"]["loss"], rel=ROUNDING)
    for alone, together in zip(one["quality"]["history"], two["quality"]["history"], strict=True):
        assert (together["samples"], together["step"]) == (alone["samples"], alone["step"])
        assert together["values"] == pytest.approx(alone["values"], rel=ROUNDING)


def test_two_ranks_with_unlike_shares_stop_and_resume_as_one_would_have_gone_on(cli: Cli, pictures: Path) -> None:
    """Of 48 pictures in batches of 22 the last two have 13 each: six for one rank, seven for the other."""
    averaged = ("--set", "average_decay=0.7")  # its average of weights must be stopped and go on likewise
    unbroken = document(cli, *start(pictures, "1x1", 22), *averaged)
    first = document(cli, *start(pictures, "1x2", 11), *averaged, "--steps", "2")["series"]["loss"]
    resumed = document(cli, "run", "--resume", "last", "--epochs", "2")
    second = resumed["series"]["loss"]
    assert (len(first), len(second)) == (2, 4)
    assert first + second == pytest.approx(unbroken["series"]["loss"], rel=ROUNDING)
    alone, together = (run["quality"]["history"][-1]["values"] for run in (unbroken, resumed))
    assert together == pytest.approx(alone, rel=ROUNDING)
