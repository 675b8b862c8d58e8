"""The rate at which repeats of one plan are told apart, measured by splitting them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.records import make_record
from support.simulated import repeats

from trainmark.record.events import EventTail, Steps
from trainmark.record.recipe import Limits
from trainmark.record.record import Record
from trainmark.record.statistics import find_steady_start
from trainmark.record.store import make_subject
from trainmark.record.timeline import RankTrace, Timeline
from trainmark.train import loop
from trainmark.train.schedule import Position


def the_benchmark() -> Any:
    path = Path(__file__).parents[2] / "bench" / "false_alarms.py"
    spec = importlib.util.spec_from_file_location("false_alarms", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


false_alarms = the_benchmark()


def test_runs_that_truly_differ_are_told_apart_often() -> None:
    """So that a rate of 0 is not what a blind test gives."""
    draw = np.random.default_rng(12)
    runs = repeats(draw, 4, "a", noise=0.002) + repeats(draw, 4, "b", noise=0.002, speed=1.5)
    found = false_alarms.measure(make_subject("drawn", runs), threshold=0.03)
    single = next(rate for rate in found.rates if rate.kind == "one run each" and rate.threshold)
    assert single.alarms == 16  # each of one kind against each of the other, of 28 pairs
    assert single.interval[0] > false_alarms.PROMISED


def trained(folder: Path, run_id: str) -> Record:
    """A real training of the smallest network, timed by the clock that every run uses."""
    folder.mkdir()
    recipe = replace(tiny.RECIPE, target=-1.0, epochs=100)
    loop.train(tiny.job(folder, recipe=recipe, limits=Limits(steps=150)), Position())
    written = [event for event in EventTail(folder / "rank0.jsonl").new_events() if isinstance(event, Steps)]
    series = {
        name: [value for event in written for value in getattr(event, name)]
        for name in ("wait_ns", "compute_ns", "items")
    }
    start = find_steady_start(np.array(series["compute_ns"]) / 1e9, np.array(series["items"]))
    timeline = Timeline(ranks=(RankTrace(rank=0, **series),), warmup_steps=start, steady_from=start)
    return make_record(run_id=run_id, timeline=timeline)


@pytest.mark.slow
def test_real_repeats_are_told_apart_at_most_once_in_twenty(tmp_path: Path) -> None:
    runs = [trained(tmp_path / str(number), f"real-{number}") for number in range(10)]
    found = false_alarms.measure(make_subject("real", runs), threshold=0.03)
    of_halves = [rate for rate in found.rates if rate.kind == "halves of the runs"]
    assert [rate.comparisons for rate in of_halves] == [126, 126]
    for rate in of_halves:
        assert rate.interval[0] <= false_alarms.PROMISED, found.rates
