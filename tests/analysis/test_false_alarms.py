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

from trainmark.record.errors import UsageError
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


@pytest.mark.parametrize(("count", "splits"), [(4, 3), (5, 15), (6, 10), (8, 35)])
def test_every_way_to_make_two_equal_parts_is_taken_once(count: int, splits: int) -> None:
    found = list(false_alarms.halves(count, 0))
    assert len(found) == splits
    assert len({frozenset(map(frozenset, split)) for split in found}) == splits
    assert all(len(first) == len(second) and not set(first) & set(second) for first, second in found)


def test_of_too_many_ways_random_ones_are_taken_the_same_each_time() -> None:
    found = list(false_alarms.halves(30, 1))
    assert len(found) == false_alarms.MAX_SPLITS
    assert found == list(false_alarms.halves(30, 1))


@pytest.mark.parametrize(("correlation", "between"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.03), (0.7, 0.03)])
def test_drawn_repeats_are_told_apart_at_most_once_in_twenty(correlation: float, between: float) -> None:
    draw = np.random.default_rng(11)
    runs = repeats(draw, 16, steps=60, correlation=correlation, between=between)
    found = false_alarms.measure(make_subject("drawn", runs), threshold=0.03)
    for rate in found.rates:
        # one run each cannot see what changes between runs, beyond the 1 % that is allowed for
        if rate.kind != "one run each" or between <= 0.01:
            assert rate.interval[0] <= false_alarms.PROMISED, rate


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


def test_fewer_than_four_runs_and_published_rows_cannot_be_split() -> None:
    runs = [make_record(run_id=f"r{number}") for number in range(3)]
    with pytest.raises(UsageError, match="3 valid runs of one plan and --repeats needs at least 4"):
        false_alarms.measure(make_subject("r", runs), threshold=0.03)


def test_what_has_no_spread_within_a_run_is_split_into_halves_only(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_record(run_id=f"r{number}") for number in range(4)]
    found = false_alarms.measure(make_subject("r", runs), metric="mem", threshold=0.03)
    assert {rate.kind for rate in found.rates} == {"halves of the runs"}
    false_alarms.show(found)
    assert "halves of the runs, threshold 3 %: 0 of 3, 0.0 %" in capsys.readouterr().out
