"""Rounds that agree settle what is right; one that leaves them is named with the step and the place."""

from __future__ import annotations

from trainmark.features.verify.hashed_steps import MAX_ROUNDS, OddRound, RoundLedger

RIGHT = [(step, 10 * step, 7) for step in range(5)]


def flawed(step: int, place: int, by: int = 1) -> list[tuple[int, ...]]:
    """A flip at a step, which changes everything after it."""
    wrong = [list(hashes) for hashes in RIGHT]
    wrong[step][place] += by
    for later in wrong[step + 1 :]:
        later[:] = [value + 100 + by for value in later]
    return [tuple(hashes) for hashes in wrong]


def test_two_equal_rounds_settle_it() -> None:
    ledger = RoundLedger()
    assert ledger.add(RIGHT) == [] and not ledger.settled
    assert ledger.add(RIGHT) == [] and ledger.settled


def test_a_later_round_that_differs_is_odd_at_its_first_difference() -> None:
    ledger = RoundLedger()
    ledger.add(RIGHT), ledger.add(RIGHT)
    assert ledger.add(flawed(2, 1)) == [OddRound(round=3, step=2, places=(1,))]
    assert ledger.add(RIGHT) == []


def test_a_third_round_decides_which_of_two_was_wrong_even_the_first() -> None:
    for first, second, odd in ((flawed(3, 0), RIGHT, 1), (RIGHT, flawed(3, 0), 2)):
        ledger = RoundLedger()
        assert ledger.add(first) == [] and ledger.add(second) == []
        assert not ledger.settled
        assert ledger.add(RIGHT) == [OddRound(round=odd, step=3, places=(0,))]
        assert ledger.settled


def test_rounds_that_are_all_wrong_somewhere_are_each_named() -> None:
    ledger = RoundLedger()
    for steps in (flawed(3, 2), flawed(1, 0), flawed(4, 1)):
        assert ledger.add(steps) == []
    found = ledger.add(RIGHT)
    assert not ledger.settled and found == []  # the last step has one voice for each of two answers
    found = ledger.add(RIGHT)
    assert ledger.settled
    assert sorted((odd.round, odd.step, odd.places) for odd in found) == [(1, 3, (2,)), (2, 1, (0,)), (3, 4, (1,))]


def test_steps_that_are_another_each_time_are_given_up() -> None:
    ledger = RoundLedger()
    for number in range(MAX_ROUNDS - 1):
        assert ledger.add(flawed(1, 2, by=1 + number)) == [] and not ledger.is_hopeless
    [odd] = ledger.add(flawed(1, 2, by=50))
    assert ledger.is_hopeless and odd == OddRound(round=MAX_ROUNDS, step=1, places=(2,), never_alike=True)
