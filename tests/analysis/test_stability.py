"""DeepSpark's columns by hand-made numbers: its worked example, and steps whose speeds are known."""

from __future__ import annotations

import pytest
from support.records import make_record

from trainmark.analysis.comparison import compute_stability
from trainmark.record.metrics import Measured, measure
from trainmark.record.timeline import RankTrace, Timeline

MS = 1_000_000


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((77.36, 76.816, 77.116, 76.96, 77.01), 1.0),
        ((100.0, 100.0, 101.0, 99.0, 101.1), 0.8),
        ((0.50, 0.48, 0.52, 0.47, 0.53), 0.2),
        ((100.0, 100.0, 100.0, 100.0), None),
        ((100.0, 100.0, 100.0, 100.0, 100.0, 50.0), 1.0),
    ],
)
def test_each_training_further_than_one_percent_from_the_median_costs_a_fifth(
    values: tuple[float, ...], found: float | None
) -> None:
    assert compute_stability(values) == found


def steps(*speeds: float, warmup: int, steady_from: int) -> Timeline:
    """Steps of 100 items on two ranks, of which each waits 10 ms for data, at so many items a second."""
    series = [int(1e9 * 200 / speed) - 10 * MS for speed in speeds]
    ranks = [
        RankTrace(rank=rank, wait_ns=[10 * MS] * len(series), compute_ns=series, items=[100] * len(series))
        for rank in (0, 1)
    ]
    return Timeline(ranks=tuple(ranks), warmup_steps=warmup, steady_from=steady_from)


def test_performance_is_the_mean_of_the_middle_three_of_five_parts_with_the_wait_for_data() -> None:
    timeline = steps(10, 10, 500, 1000, 1010, 1020, 4000, warmup=0, steady_from=2)
    found = measure(Measured(item="images", timeline=timeline))
    assert found["p_steady"].value == pytest.approx((1000 + 1010 + 1020) / 3)
    assert found["p_steady"].unit == "images/s"
    assert timeline.settling_ns == 2 * int(1e9 * 200 / 10)


def test_a_run_of_fewer_than_five_steady_steps_has_no_performance() -> None:
    found = measure(Measured(item="images", timeline=steps(1, 1, 500, 500, 500, 500, warmup=2, steady_from=2)))
    assert found["p_steady"].value is None
    assert found["p_steady"].unavailable == "fewer than 5 steps were steady"


def test_the_speed_lies_between_that_without_waiting_and_the_slowest() -> None:
    metrics = make_record().metrics
    assert metrics["p_train"].value == pytest.approx(metrics["p_steady"].value, rel=0.01)
    assert (metrics["p_steady"].value or 0) < (metrics["p_core"].value or 0)
