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


def rate_of_verdicts(
    draw: np.random.Generator, a: tuple[int, float], b: tuple[int, float], *wanted: str, **options: float
) -> tuple[float, float]:
    """How often sides of so many runs, which vary so much, get one of these verdicts."""
    speed, threshold = options.get("speed", 1.0), options.get("threshold", 0.0)

    def outcome() -> str:
        first, second = (drawn_group(draw, a[0], between=a[1]), drawn_group(draw, b[0], between=b[1], speed=speed))
        return judge(first, second, threshold=threshold).outcome

    return rate_of(outcome, wanted, int(options.get("tries", 600)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((count, between), (count, between)) for count in (2, 5) for between in (0.002, 0.05)),
        *(((few, 0.03), (many, 0.002)) for few, many in ((2, 5), (3, 8))),
        *(((1, 0.03), (others, 0.03)) for others in (3, 6)),
    ],
)
def test_runs_of_equal_speed_are_told_apart_at_most_once_in_twenty(a: tuple[int, float], b: tuple[int, float]) -> None:
    assert rate_of_verdicts(np.random.default_rng(b[0]), a, b, "above", "below")[0] <= 0.05


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


@pytest.mark.parametrize(("speed", "verdict"), [(0.94, "below"), (1.0, "same")])
def test_five_repeats_of_a_steady_machine_tell_twice_the_threshold_from_nothing(speed: float, verdict: str) -> None:
    draw, side = np.random.default_rng(3), (5, 0.01)
    assert rate_of_verdicts(draw, side, side, verdict, speed=speed, threshold=0.03, tries=300)[0] > 0.9


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
    low, high = rate_of_verdicts(draw, (6, 0.01), (6, 0.01), "above", speed=1 + typical, tries=400)
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
