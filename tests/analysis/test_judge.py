"""What a comparison concludes from numbers whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binomtest
from support.simulated import repeats

from trainmark.analysis import quantities
from trainmark.analysis.comparison import collect_values
from trainmark.analysis.judge import RunValues, Spread, judge, own_interval, place_interval

P_CORE = quantities.find_compared("p_core", ())


def group(*values: float) -> RunValues:
    return RunValues(values=values, spreads=(None,) * len(values))


def single(value: float, error: float | None = 0.001, disturbed: float = 0.0) -> RunValues:
    spread = None if error is None else Spread(error=error, degrees=6, steps=100, disturbed=disturbed)
    return RunValues(values=(value,), spreads=(spread,))


def drawn_group(draw: np.random.Generator, count: int, *, between: float, speed: float = 1.0) -> RunValues:
    return group(*(100 * speed * np.exp(draw.normal(0, between, count))))


def rate_of(outcome: Callable[[], str], wanted: tuple[str, ...], tries: int) -> tuple[float, float]:
    hits = sum(outcome() in wanted for _ in range(tries))
    found = binomtest(hits, tries).proportion_ci()
    return found.low, found.high


@pytest.mark.parametrize("more", [(), (103.2, 102.8, 104)])
def test_welch_gives_the_interval_that_books_give(more: tuple[float, ...]) -> None:
    a, b = group(100, 101, 99, 100.5), group(103, 104.5, 102, *more)
    found = judge(a, b, threshold=0)
    assert found.interval is not None
    from scipy.stats import ttest_ind

    book = ttest_ind(np.log(b.values), np.log(a.values), equal_var=False).confidence_interval(0.95)
    assert found.interval == pytest.approx((math.exp(book.low), math.exp(book.high)), rel=1e-5)
    assert found.outcome == "above"


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        ((1.04, 1.06), "above"),
        ((0.94, 0.96), "below"),
        ((0.98, 1.02), "same"),
        ((1.01, 1.02), "same"),
        ((1.01, 1.05), "inconclusive"),
        ((0.90, 1.10), "inconclusive"),
    ],
)
def test_the_interval_beside_the_threshold_decides(interval: tuple[float, float], outcome: str) -> None:
    assert place_interval(interval, 0.03) == outcome


def test_with_threshold_0_any_significant_difference_counts_and_nothing_is_the_same() -> None:
    assert place_interval((1.001, 1.002), 0) == "above"
    assert place_interval((0.999, 1.001), 0) == "inconclusive"
    assert place_interval((1.0, 1.0), 0) == "inconclusive"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("between", [0.002, 0.05])
def test_repeats_of_equal_speed_are_told_apart_at_most_once_in_twenty(count: int, between: float) -> None:
    draw = np.random.default_rng(count)
    low, _ = rate_of(
        lambda: (
            judge(
                drawn_group(draw, count, between=between), drawn_group(draw, count, between=between), threshold=0
            ).outcome
        ),
        ("above", "below"),
        600,
    )
    assert low <= 0.05


@pytest.mark.parametrize(("few", "many"), [(2, 5), (3, 8)])
def test_repeats_that_vary_unlike_much_are_told_apart_at_most_once_in_twenty(few: int, many: int) -> None:
    draw = np.random.default_rng(few)
    low, _ = rate_of(
        lambda: (
            judge(drawn_group(draw, few, between=0.03), drawn_group(draw, many, between=0.002), threshold=0).outcome
        ),
        ("above", "below"),
        600,
    )
    assert low <= 0.05


@pytest.mark.parametrize("others", [3, 6])
def test_one_run_beside_repeats_is_told_apart_at_most_once_in_twenty(others: int) -> None:
    draw = np.random.default_rng(others)
    low, _ = rate_of(
        lambda: judge(drawn_group(draw, 1, between=0.03), drawn_group(draw, others, between=0.03), threshold=0).outcome,
        ("above", "below"),
        600,
    )
    assert low <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "between"), [(0.0, 0.0), (0.6, 0.0), (0.8, 0.0), (0.0, 0.01), (0.6, 0.01)])
def test_single_runs_of_equal_speed_are_told_apart_at_most_once_in_twenty(correlation: float, between: float) -> None:
    draw = np.random.default_rng(7)
    runs = repeats(draw, 200, steps=60, noise=0.05, correlation=correlation, between=between)
    sides = [collect_values([record], P_CORE) for record in runs]
    alarms = sum(
        judge(a, b, threshold=0).outcome in ("above", "below") for a, b in zip(sides[::2], sides[1::2], strict=True)
    )
    assert binomtest(alarms, len(runs) // 2).proportion_ci().low <= 0.05


def test_a_change_of_twice_the_threshold_is_found_by_five_repeats_of_a_steady_machine() -> None:
    draw = np.random.default_rng(3)
    low, _ = rate_of(
        lambda: (
            judge(
                drawn_group(draw, 5, between=0.01), drawn_group(draw, 5, between=0.01, speed=0.94), threshold=0.03
            ).outcome
        ),
        ("below",),
        300,
    )
    assert low > 0.9


def test_equal_speed_is_called_the_same_by_five_repeats_of_a_steady_machine() -> None:
    draw = np.random.default_rng(4)
    low, _ = rate_of(
        lambda: judge(drawn_group(draw, 5, between=0.01), drawn_group(draw, 5, between=0.01), threshold=0.03).outcome,
        ("same",),
        300,
    )
    assert low > 0.9


def test_the_interval_holds_the_true_ratio_nineteen_times_in_twenty() -> None:
    draw = np.random.default_rng(5)

    def holds() -> str:
        a, b = drawn_group(draw, 4, between=0.02), drawn_group(draw, 4, between=0.02, speed=1.5)
        low, high = judge(a, b, threshold=0).interval or (0, 0)
        return "holds" if low <= 1.5 <= high else "misses"

    low, high = rate_of(holds, ("holds",), 600)
    assert low <= 0.96
    assert high >= 0.94


def test_the_smallest_difference_is_found_four_times_in_five() -> None:
    draw = np.random.default_rng(6)
    smallest = [
        judge(drawn_group(draw, 6, between=0.01), drawn_group(draw, 6, between=0.01), threshold=0).smallest_difference
        for _ in range(200)
    ]
    typical = float(np.median([value for value in smallest if value is not None]))
    low, high = rate_of(
        lambda: (
            judge(
                drawn_group(draw, 6, between=0.01), drawn_group(draw, 6, between=0.01, speed=1 + typical), threshold=0
            ).outcome
        ),
        ("above",),
        400,
    )
    assert 0.7 < (low + high) / 2 < 0.9


def test_one_run_each_never_claims_less_than_what_changes_between_processes() -> None:
    found = judge(single(100, error=0.0), single(101.5, error=0.0), threshold=0)
    assert found.outcome == "inconclusive"
    assert found.interval == pytest.approx((0.9873, 1.0435), abs=0.001)
    assert "changes between processes" in found.basis_in(str)


def test_a_run_beside_which_others_used_the_machine_may_be_off_by_as_much() -> None:
    assert judge(single(100), single(150), threshold=0.03).outcome == "above"
    found = judge(single(100), single(150, disturbed=0.4), threshold=0.03)
    assert found.outcome == "inconclusive"
    assert "the 40 % of the machine that others used" in found.basis_in(str)
    assert judge(group(100, 101, 99), single(150), threshold=0.03).outcome == "above"
    assert judge(group(100, 101, 99), single(150, disturbed=0.4), threshold=0.03).outcome == "inconclusive"


def test_one_run_each_without_any_spread_is_inconclusive_and_asks_for_repeats() -> None:
    found = judge(single(100, error=None), single(150, error=None), threshold=0.03)
    assert (found.outcome, found.interval) == ("inconclusive", None)
    assert found.more is not None
    assert found.more.repeats == 5


def test_repeats_that_do_not_vary_at_all_differ_by_what_they_differ() -> None:
    found = judge(group(2.0, 2.0, 2.0), group(2.5, 2.5), threshold=0.03)
    assert found.outcome == "above"
    assert found.interval == pytest.approx((1.25, 1.25))


def test_a_published_figure_decides_nothing() -> None:
    published = RunValues(values=(799,), spreads=(None,), published=True)
    found = judge(published, group(80, 81, 82), threshold=0.03)
    assert (found.outcome, found.interval, found.more) == ("inconclusive", None, None)
    assert found.ratio == pytest.approx(0.1014, rel=0.01)


def test_the_repeats_said_to_decide_do_decide_if_all_stays_as_it_is() -> None:
    draw = np.random.default_rng(8)
    a, b = group(98, 100, 102), group(105, 107, 109)
    found = judge(a, b, threshold=0.03)
    assert found.outcome == "inconclusive"
    assert found.more is not None
    assert found.more.repeats is not None
    assert 3 < found.more.repeats <= 100

    def as_before(side: RunValues, count: int) -> RunValues:
        """So many runs with the same mean and spread."""
        unrest = draw.normal(0, 1, count)
        unrest = (unrest - unrest.mean()) / unrest.std(ddof=1)
        logs = np.log(side.values)
        return group(*np.exp(logs.mean() + logs.std(ddof=1) * unrest))

    enough = found.more.repeats
    assert judge(as_before(a, enough), as_before(b, enough), threshold=0.03).outcome == "above"
    assert judge(as_before(a, enough - 1), as_before(b, enough - 1), threshold=0.03).outcome == "inconclusive"


def test_noisy_steps_of_one_run_each_are_asked_for_more_steps() -> None:
    found = judge(single(100, error=0.04), single(112, error=0.04), threshold=0.03)
    assert found.outcome == "inconclusive"
    assert found.more is not None
    assert found.more.steps is not None
    assert 10 < found.more.steps < 400


def test_a_ratio_on_the_threshold_is_asked_for_nothing() -> None:
    found = judge(group(100, 101, 99), group(103, 104, 102), threshold=0.03)
    assert found.outcome == "inconclusive"
    assert found.more is None


def test_a_side_carries_its_own_interval() -> None:
    low, high = own_interval(group(99, 100, 101)) or (0, 0)
    assert low < 97.6 < 102.4 < high
    assert own_interval(single(100, error=None)) is None
