"""The statistics of step times, judged on made series whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import stdtrit

from trainmark.record import numbers
from trainmark.record.statistics import (
    Drift,
    Series,
    detect_drift,
    estimate_steps_needed,
    find_steady_start,
    mean_interval,
    scale_to_mean_items,
)

REPLICATES = 500
SAMPLING_ERROR = 3 * math.sqrt(0.93 * 0.07 / REPLICATES)
"""How far a coverage measured on so few replicates may lie from the true one."""


def correlated(rng: np.random.Generator, n: int, correlation: float, rows: int = REPLICATES) -> Series:
    """Rows of standard normal values, each correlated with its neighbour."""
    values = rng.standard_normal((rows, n))
    for i in range(1, n):
        values[:, i] = correlation * values[:, i - 1] + math.sqrt(1 - correlation**2) * values[:, i]
    return values


def with_spikes(rng: np.random.Generator, steps: Series, rate: float, extra_s: float) -> Series:
    return steps + extra_s * (rng.random(steps.shape) < rate)


def independent(rng: np.random.Generator, n: int) -> tuple[Series, float]:
    return 1 + 0.05 * correlated(rng, n, 0), 1.0


def skewed(rng: np.random.Generator, n: int) -> tuple[Series, float]:
    return np.exp(0.5 * correlated(rng, n, 0)), math.exp(0.125)


def neighbours(correlation: float) -> Callable[[np.random.Generator, int], tuple[Series, float]]:
    return lambda rng, n: (1 + 0.05 * correlated(rng, n, correlation), 1.0)


def skewed_neighbours(rng: np.random.Generator, n: int) -> tuple[Series, float]:
    return np.exp(0.3 * correlated(rng, n, 0.6)), math.exp(0.045)


def spiky(rng: np.random.Generator, n: int) -> tuple[Series, float]:
    return with_spikes(rng, 1 + 0.05 * correlated(rng, n, 0), 0.1, 1.0), 1.1


def spiky_neighbours(rng: np.random.Generator, n: int) -> tuple[Series, float]:
    return with_spikes(rng, 1 + 0.05 * correlated(rng, n, 0.6), 0.1, 1.0), 1.1


KINDS = {
    "independent": independent,
    "skewed": skewed,
    "correlation 0.3": neighbours(0.3),
    "correlation 0.6": neighbours(0.6),
    "correlation 0.8": neighbours(0.8),
    "skewed, correlation 0.6": skewed_neighbours,
    "one spike in ten": spiky,
    "one spike in ten, correlation 0.6": spiky_neighbours,
}


def coverage(rows: Series, truth_s: float, *, cut: bool = False) -> float:
    hits = 0
    for row in rows:
        kept = row[find_steady_start(row) :] if cut else row
        interval = mean_interval(kept, np.ones(len(kept)))
        assert interval is not None
        hits += interval.low <= 1 / truth_s <= interval.high
    return hits / len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_the_95_percent_interval_covers_the_truth_90_to_98_times_in_a_hundred(kind: str, n: int) -> None:
    rows, truth_s = KINDS[kind](np.random.default_rng(n), n)
    assert 0.90 - SAMPLING_ERROR / 2 <= coverage(rows, truth_s) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "skewed", "correlation 0.6", "one spike in ten"])
def test_the_interval_still_covers_after_a_steady_series_went_through_the_warmup_cut(kind: str) -> None:
    rows, truth_s = KINDS[kind](np.random.default_rng(5), 100)
    assert 0.90 - SAMPLING_ERROR / 2 <= coverage(rows, truth_s, cut=True) <= 0.98


def test_what_the_docstring_admits_is_so_rare_spikes_escape_short_series() -> None:
    rng = np.random.default_rng(3)
    short = with_spikes(rng, 1 + 0.05 * correlated(rng, 30, 0), 0.02, 2.0)
    long = with_spikes(rng, 1 + 0.05 * correlated(rng, 400, 0), 0.02, 2.0)
    assert coverage(short, 1.04) < 0.7
    assert coverage(long, 1.04) > 0.9 - SAMPLING_ERROR / 2


@pytest.mark.parametrize(("n", "least", "most"), [(100, 0.68, 0.78), (400, 0.80, 0.90), (1000, 0.84, 0.93)])
def test_what_the_docstring_admits_is_so_a_slow_wander_is_half_seen(n: int, least: float, most: float) -> None:
    rng = np.random.default_rng(5)
    rows = 1 + 0.03 * correlated(rng, n, 0) + 0.01 * correlated(rng, n, 0.98)
    assert least <= coverage(rows, 1.0) <= most


def test_the_interval_covers_a_ratio_whose_items_vary_from_step_to_step() -> None:
    rng = np.random.default_rng(7)
    frames = rng.integers(20_000, 90_000, (REPLICATES, 100)).astype(float)
    seconds = 0.1 + frames / 1e5 * np.exp(0.1 * rng.standard_normal(frames.shape))
    truth = 55_000 / (0.1 + 0.55 * math.exp(0.005))
    hits = 0
    for step_s, items in zip(seconds, frames, strict=True):
        interval = mean_interval(step_s, items)
        assert interval is not None
        assert interval.value == pytest.approx(items.sum() / step_s.sum())
        hits += interval.low <= truth <= interval.high
    assert 0.90 <= hits / REPLICATES <= 0.98


def clips(rng: np.random.Generator, n: int, rows: int = 200, noise: float = 0.02) -> tuple[Series, Series]:
    """Steps of clips of many lengths: a fixed time and one for each frame, both with some unrest."""
    frames = rng.integers(20_000, 90_000, (rows, n)).astype(float)
    return (0.1 + frames / 1e5) * np.exp(noise * rng.standard_normal(frames.shape)), frames


def test_items_that_are_all_alike_change_nothing() -> None:
    step_s = 1 + 0.05 * correlated(np.random.default_rng(1), 60, 0.3, rows=1)[0]
    step_s[0] = 9
    items = np.full(60, 32.0)
    assert scale_to_mean_items(step_s, items) is step_s
    assert find_steady_start(step_s, items) == find_steady_start(step_s) == 1
    one, other = detect_drift(step_s, items), detect_drift(step_s)
    assert one is not None
    assert other is not None
    assert one.rates == pytest.approx([32 * rate for rate in other.rates])


def test_at_the_mean_number_of_items_only_the_unrest_is_left() -> None:
    [step_s], [frames] = clips(np.random.default_rng(2), 400, rows=1)
    level = scale_to_mean_items(step_s, frames)
    assert float(level.mean()) == pytest.approx(float(step_s.mean()))
    assert float(level.std()) < 0.1 * float(step_s.std())


def test_a_hiccup_does_not_bend_what_an_item_takes() -> None:
    [step_s], [frames] = clips(np.random.default_rng(2), 100, rows=1, noise=0.001)
    step_s[[60, int(50 + np.argmax(frames[50:]))]] += 30
    level = scale_to_mean_items(step_s, frames)
    assert float(np.median(np.abs(level - np.median(level)))) < 0.005


def test_the_short_last_batch_of_an_epoch_is_neither_warmup_nor_drift() -> None:
    items = np.where(np.arange(100) % 25 == 24, 5.0, 32.0)
    step_s = 0.02 + items / 100 + 0.001 * np.random.default_rng(0).standard_normal(100)
    trend = detect_drift(step_s, items)
    assert trend is not None
    assert not trend.is_drifting
    assert find_steady_start(step_s, items) == 0


def test_items_that_never_differ_again_are_taken_in_proportion() -> None:
    items = np.where(np.arange(40) == 0, 64.0, 32.0)
    assert find_steady_start(items / 100, items) == 0
    assert scale_to_mean_items(items / 100, items) == pytest.approx(np.full(40, items.mean() / 100))


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 400])
def test_with_varying_items_a_slow_start_and_a_drift_are_found_under_the_items(n: int) -> None:
    seconds, frames = clips(np.random.default_rng(n), n)
    warm = seconds * np.where(np.arange(n) < 3, 1.5, 1.0)
    starts = [find_steady_start(step_s, items) for step_s, items in zip(warm, frames, strict=True)]
    assert np.mean([start >= 3 for start in starts]) > 0.98
    slower = seconds * (1 + 0.2 * np.linspace(0, 1, n))
    trends = [detect_drift(step_s, items) for step_s, items in zip(slower, frames, strict=True)]
    assert np.mean([trend is not None and trend.is_drifting for trend in trends]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 400])
def test_with_varying_items_a_steady_series_is_kept_and_its_interval_covers(n: int) -> None:
    seconds, frames = clips(np.random.default_rng(n), n, rows=REPLICATES)
    truth = 54_999.5 / (0.649995 * math.exp(0.0002))
    hits, alarms, starts = 0, 0, []
    for step_s, items in zip(seconds, frames, strict=True):
        start = find_steady_start(step_s, items)
        interval, trend = mean_interval(step_s[start:], items[start:]), detect_drift(step_s[start:], items[start:])
        assert interval is not None
        hits += interval.low <= truth <= interval.high
        alarms += trend is not None and trend.is_drifting
        starts.append(start)
    assert 0.90 - SAMPLING_ERROR / 2 <= hits / REPLICATES <= 0.98
    assert alarms / REPLICATES <= 0.05
    assert np.mean(starts) < 4


def test_time_that_follows_the_items_exactly_leaves_no_doubt() -> None:
    items = np.random.default_rng(0).integers(1, 100, 50).astype(float)
    interval = mean_interval(items / 250, items)
    assert interval is not None
    assert interval.value == pytest.approx(250)
    assert interval.share < 1e-9


def test_resembling_neighbours_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for correlation in (0.0, 0.8):
        intervals = [mean_interval(1 + 0.05 * r, np.ones(400)) for r in correlated(rng, 400, correlation, rows=100)]
        widths.append(float(np.median([i.half_width for i in intervals if i])))
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.15)  # sqrt((1 + 0.8) / (1 - 0.8)) = 3


def test_seven_steps_are_too_few_for_an_interval_and_eight_are_enough() -> None:
    assert mean_interval(np.linspace(1, 1.1, 7), np.ones(7)) is None
    assert mean_interval(np.linspace(1, 1.1, 8), np.ones(8)) is not None
    assert mean_interval(np.array([]), np.array([])) is None


def test_a_constant_series_is_certain_steady_and_complete() -> None:
    step_s, items = np.full(40, 0.1), np.full(40, 3.0)
    interval, trend = mean_interval(step_s, items), detect_drift(step_s)
    assert interval is not None
    assert interval.low == pytest.approx(30) == interval.high
    assert find_steady_start(step_s) == 0
    assert estimate_steps_needed(step_s, items) == 0
    assert trend is not None
    assert not trend.significant


def test_steps_too_short_for_the_clock_are_no_error() -> None:
    some, none, items = np.tile([0.0, 1e-6], 20), np.zeros(40), np.ones(40)
    assert mean_interval(some, items) is not None
    assert mean_interval(none, items) is None
    assert (find_steady_start(some), find_steady_start(none)) == (0, 0)
    assert estimate_steps_needed(none, items) == 0
    for step_s in (some, none):
        trend = detect_drift(step_s)
        assert trend is not None
        assert not trend.is_drifting


def test_student_quantiles_match_scipy() -> None:
    for degrees in (1, 3, 4, 5, 8, 30):
        for probability in (0.9, 0.975, 0.995):
            assert numbers.quantile(probability, degrees) == pytest.approx(
                float(stdtrit(degrees, probability)), rel=0.005
            )


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_steps_asked_for_bring_the_interval_near_one_percent(correlation: float) -> None:
    rng = np.random.default_rng(11)
    reached = []
    for row in correlated(rng, 4000, correlation, rows=60):
        step_s = 1 + 0.08 * row
        total = 100 + estimate_steps_needed(step_s[:100], np.ones(100))
        assert 100 <= total <= 4000
        interval = mean_interval(step_s[:total], np.ones(total))
        assert interval is not None
        reached.append(interval.share)
    assert 0.008 < float(np.median(reached)) < 0.0125
    assert float(np.quantile(reached, 0.9)) < 0.02


def test_a_precise_series_needs_no_more_steps_and_a_short_one_needs_enough_for_an_interval() -> None:
    step_s = 1 + 0.001 * correlated(np.random.default_rng(0), 100, 0, rows=1)[0]
    assert estimate_steps_needed(step_s, np.ones(100)) == 0
    assert estimate_steps_needed(np.ones(3), np.ones(3)) == 5
    assert estimate_steps_needed(step_s, np.ones(100), 1e-5) > 100


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 400])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_a_steady_series_is_called_drifting_less_than_once_in_twenty(n: int, correlation: float) -> None:
    rows = 1 + 0.1 * correlated(np.random.default_rng(n), n, correlation)
    alarms = [trend.is_drifting for row in rows if (trend := detect_drift(row))]
    assert len(alarms) == REPLICATES
    assert np.mean(alarms) <= 0.05


@pytest.mark.slow
def test_spikes_and_skew_are_not_called_drift() -> None:
    rng = np.random.default_rng(2)
    for rows in (skewed(rng, 100)[0], with_spikes(rng, independent(rng, 100)[0], 0.02, 30.0)):
        assert np.mean([trend.is_drifting for row in rows if (trend := detect_drift(row))]) <= 0.05


@pytest.mark.parametrize("change", [-0.06, 0.06])
def test_a_slow_drift_is_found_with_its_size_and_sign(change: float) -> None:
    rows = 1 + 0.02 * correlated(np.random.default_rng(4), 300, 0.3, rows=100) + change * np.linspace(0, 1, 300)
    trends = [trend for row in rows if (trend := detect_drift(row))]
    assert np.mean([trend.is_drifting for trend in trends]) > 0.95
    assert float(np.median([trend.relative_change for trend in trends])) == pytest.approx(change, abs=0.01)


def test_a_hiccup_does_not_hide_a_drift() -> None:
    step_s = 1 + 0.02 * correlated(np.random.default_rng(4), 300, 0, rows=1)[0] + 0.1 * np.linspace(0, 1, 300)
    step_s[[20, 150]] += 40
    trend = detect_drift(step_s)
    assert trend is not None
    assert trend.is_drifting


def test_a_certain_change_of_one_percent_is_significant_and_still_no_drift() -> None:
    step_s = 1 + 0.001 * correlated(np.random.default_rng(4), 300, 0, rows=1)[0] + 0.01 * np.linspace(0, 1, 300)
    trend = detect_drift(step_s)
    assert trend is not None
    assert trend.significant
    assert not trend.is_drifting


def test_fifteen_steps_are_too_few_to_speak_of_drift() -> None:
    assert detect_drift(np.linspace(1, 2, 15)) is None
    assert detect_drift(np.linspace(1, 2, 16)) is not None


@pytest.mark.parametrize("n", [40, 100, 400])
def test_a_fading_warmup_is_cut_until_little_of_it_is_left(n: int) -> None:
    warmup = np.exp(-np.arange(n) / (n / 30))
    for row in correlated(np.random.default_rng(n), n, 0.3, rows=100):
        start = find_steady_start(1 + 0.02 * row + warmup)
        assert 0.03 * n < start <= n // 2
        assert warmup[start:].mean() < 0.02


@pytest.mark.parametrize("shift", [0.2, 3.0])
@pytest.mark.parametrize("n", [100, 400])
def test_a_slower_first_quarter_is_cut(n: int, shift: float) -> None:
    starts = [
        find_steady_start(1 + 0.02 * row + shift * (np.arange(n) < n // 4))
        for row in correlated(np.random.default_rng(n), n, 0.3, rows=100)
    ]
    assert min(starts) >= n // 4 - 5
    assert float(np.median(starts)) <= n // 4 + 10


@pytest.mark.parametrize("n", [5, 8, 12, 30, 100, 1000])
def test_slow_first_steps_are_cut_and_hardly_more(n: int) -> None:
    starts = []
    for row in correlated(np.random.default_rng(n), n, 0, rows=100):
        step_s = 1 + 0.02 * row
        step_s[:2] += (30, 2)
        starts.append(find_steady_start(step_s))
    assert min(starts) == 2
    assert float(np.median(starts)) == 2


def test_a_slow_third_step_after_two_fast_ones_belongs_to_the_warmup() -> None:
    step_s = np.ones(40)
    step_s[2] = 9
    assert find_steady_start(step_s) == 3


def test_one_hiccup_in_the_middle_is_no_warmup() -> None:
    starts = []
    for row in correlated(np.random.default_rng(8), 100, 0, rows=100):
        step_s = 1 + 0.02 * row
        step_s[35] = 50
        starts.append(find_steady_start(step_s))
    assert np.mean([start > 35 for start in starts]) < 0.05


def test_a_hiccup_late_in_the_run_does_not_hide_a_slow_first_step() -> None:
    step_s = 1 + 0.02 * correlated(np.random.default_rng(8), 100, 0, rows=1)[0]
    step_s[0], step_s[80] = 30, 40
    assert find_steady_start(step_s) == 1


def test_slow_steps_that_keep_coming_are_part_of_the_steady_state() -> None:
    step_s = np.where(np.arange(100) % 5 == 0, 2.0, 1.0)
    assert find_steady_start(step_s) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_series_steady_from_the_start_is_kept_almost_whole(kind: str) -> None:
    rows, _ = KINDS[kind](np.random.default_rng(9), 100)
    assert np.mean([find_steady_start(row) for row in rows[:200]]) < 4


def test_a_series_that_never_stops_becoming_faster_is_cut_to_half_at_most_and_called_drifting() -> None:
    step_s = 1.2 + 0.005 * correlated(np.random.default_rng(8), 400, 0.3, rows=1)[0] - 0.2 * np.linspace(0, 1, 400)
    start = find_steady_start(step_s)
    trend = detect_drift(step_s[start:])
    assert 0 < start <= 200
    assert trend is not None
    assert trend.is_drifting
    assert trend.relative_change < 0


def heavy_tailed(rng: np.random.Generator, n: int, correlation: float, rows: int) -> Series:
    """As `correlated`, with Student's t of 3 degrees behind it: now and then a step lies far off."""
    values = rng.standard_t(3, (rows, n)) / math.sqrt(3)
    for i in range(1, n):
        values[:, i] = correlation * values[:, i - 1] + math.sqrt(1 - correlation**2) * values[:, i]
    return values


NOISES = {"normal": correlated, "heavy-tailed": heavy_tailed}
TRIES = 100


def found_drift(step_s: Series) -> Drift | None:
    """As a record would tell it: of the steps that count."""
    found = detect_drift(step_s[find_steady_start(step_s) :])
    return found if found is not None and found.is_drifting else None


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("begins", [0.3, 0.4, 0.5])
@pytest.mark.parametrize("slower", [1.05, 1.3, 4.9])
def test_a_slowdown_in_the_first_half_is_drift_95_times_in_a_hundred(slower: float, begins: float, noise: str) -> None:
    n = 100
    times = np.where(np.arange(n) < begins * n, 1.0, slower)
    rows = times * (1 + 0.01 * NOISES[noise](np.random.default_rng(7), n, 0.5, TRIES))
    found = [trend for row in rows if (trend := found_drift(row))]
    assert len(found) >= 95
    assert all(trend.relative_change > 0 for trend in found)
    assert float(np.median([trend.rates[0] / trend.rates[1] for trend in found])) == pytest.approx(slower, rel=0.01)
    assert float(np.median([abs((trend.at or 0) - begins * n) for trend in found])) <= 2


@pytest.mark.parametrize("slower", [1.1, 4.9])
def test_a_slowdown_is_found_in_a_run_of_forty_steps(slower: float) -> None:
    times = np.where(np.arange(40) < 16, 1.0, slower)
    rows = times * (1 + 0.01 * correlated(np.random.default_rng(7), 40, 0.5, TRIES))
    assert sum(found_drift(row) is not None for row in rows) >= 95


@pytest.mark.parametrize("noise", NOISES)
def test_a_slowdown_after_a_true_warmup_leaves_both_where_they_are(noise: str) -> None:
    n = 100
    fading = 1 + 2 * np.exp(-np.arange(n) / 3)
    rows = (
        fading
        * np.where(np.arange(n) < 40, 1.0, 1.5)
        * (1 + 0.01 * NOISES[noise](np.random.default_rng(7), n, 0.5, 100))
    )
    starts = [find_steady_start(row) for row in rows]
    assert sum(found_drift(row) is not None for row in rows) >= 95
    assert sum(5 <= start <= 25 for start in starts) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("n", [30, 60, 100, 400])
def test_a_clean_series_is_accused_of_drift_twice_in_a_hundred_at_most(n: int, noise: str) -> None:
    rng = np.random.default_rng(n)
    shapes = (np.ones(n), 1 + np.exp(-np.arange(n) * 30 / n), 1 + 20.0 * (np.arange(n) < 2))
    for scale in (0.01, 0.05):
        noises = [np.maximum(0.05, 1 + scale * NOISES[noise](rng, n, 0.5, TRIES)) for _ in shapes]
        rows = np.concatenate([shape * times for shape, times in zip(shapes, noises, strict=True)])
        assert sum(found_drift(row) is not None for row in rows) <= 0.02 * len(rows)


@pytest.mark.parametrize("noise", NOISES)
def test_a_slow_stretch_in_the_middle_is_no_warmup_but_drift_with_its_end(noise: str) -> None:
    rows = 1 + 0.01 * NOISES[noise](np.random.default_rng(8), 100, 0.5, TRIES)
    rows[:, 30:60] *= 1.1
    found = [trend for row in rows if (trend := found_drift(row))]
    assert len(found) >= 95
    assert sum(find_steady_start(row) == 0 for row in rows) >= 95
    ends = [(trend.at, trend.until) for trend in found]
    assert float(np.median([abs((at or 0) - 30) + abs((until or 0) - 60) for at, until in ends])) <= 3


@settings(deadline=None, max_examples=150)
@given(st.lists(st.floats(1e-6, 1e6), max_size=60))
def test_any_series_of_positive_times_gets_an_answer_that_makes_sense(times: list[float]) -> None:
    step_s, items = np.array(times), np.ones(len(times))
    assert 0 <= find_steady_start(step_s) <= len(times) // 2
    assert estimate_steps_needed(step_s, items) >= 0
    trend, interval = detect_drift(step_s), mean_interval(step_s, items)
    # times may serve as items: the answers are about any two rows of numbers
    assert 0 <= find_steady_start(items, step_s) <= len(times) // 2
    assert np.isfinite(scale_to_mean_items(items, step_s)).all()
    assert trend is None or math.isfinite(trend.relative_change)
    if interval is not None:
        assert 0 <= interval.low <= interval.value <= interval.high


def test_a_very_long_series_gives_the_interval_a_formula_predicts() -> None:
    row = correlated(np.random.default_rng(0), 100_000, 0.6, rows=1)[0]
    interval = mean_interval(1 + 0.05 * row, np.ones(100_000))
    assert interval is not None
    # deviation 0.05 and (1 + r) / (1 - r) = 4 times the independent variance
    assert interval.share == pytest.approx(1.96 * 0.05 * 2 / math.sqrt(100_000), rel=0.35)
