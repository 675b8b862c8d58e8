"""A run in plain words."""

from __future__ import annotations

import dataclasses

import pytest
from support.records import make_quality, make_record, make_timeline, renamed

from trainmark.analysis import published_library as library
from trainmark.analysis.beside import list_speeds
from trainmark.record.language import translator
from trainmark.record.metrics import Quantity
from trainmark.record.recipe import Limits
from trainmark.record.record import Record
from trainmark.view.headline import format_times, loss_trend, write_headline, write_headlines

SAY = translator("en")
PUBLISHED = list_speeds(library.load_rows())
FULL_SIZE = {"flops": {"per_item": 24.5e9}, "device": {"name": "AMD EPYC"}}


def with_rate(value: float | None, half_percent: float | None, **changes: object) -> Record:
    interval = None
    if value is not None and half_percent is not None:
        interval = (value / (1 + half_percent / 100), value * (1 + half_percent / 100))
    record = make_record(environment=FULL_SIZE, **changes)
    rate = Quantity(value=value, unit="images/s", interval=interval)
    return dataclasses.replace(record, metrics={**record.metrics, "p_core": rate, "p_train": rate})


def told(record: Record) -> str:
    return write_headline(record, PUBLISHED, SAY, where="this machine")


def test_a_run_is_one_plain_sentence() -> None:
    assert told(with_rate(3.6, 4.5)) == (
        "ResNet-50 trains at 3.60 images/s ±4.5 % on this machine, 220 times slower than a published A100 "
        "(p_core, a row the audit calls doubtful); loss fell, accuracy not evaluated."
    )


def test_a_hand_written_backward_pass_is_not_set_silently_beside_a_plain_one() -> None:
    fast = told(with_rate(3.6, 4.5, plan={"recipe": {"implementation": "fast"}}))
    assert "doubtful; ours has hand-written gradients, the published one is plain)" in fast
    assert "hand-written" not in told(with_rate(3.6, 4.5, plan={"recipe": {"implementation": "plain"}}))


def test_a_run_that_was_held_to_its_target_says_what_became_of_it() -> None:
    full = {"limits": Limits()}
    reached = with_rate(900.0, 0.2, plan=full, quality=make_quality(value=76.1, reached=True))
    assert told(reached).endswith("loss fell, accuracy 76.10 %, target ≥ 75.5 % reached.")
    assert "1.1 times faster than a published A100" in told(reached)
    assert told(with_rate(800.0, 0.2, plan=full)).endswith("accuracy 0.3125 %, target ≥ 75.5 % missed.")
    assert "about as fast as a published A100" in told(with_rate(800.0, 0.2))


@pytest.mark.parametrize(
    ("record", "begins"),
    [
        (with_rate(3.6, None), "ResNet-50 trains at about 3.60 images/s on this machine, from too few steps"),
        (with_rate(3.6, 69.0), "ResNet-50 trains at about 3.60 images/s on this machine, which is too noisy"),
        (with_rate(None, None), "ResNet-50 was trained on this machine, but no step was counted"),
        (
            with_rate(3.6, 4.0, status="incomplete", ended="interrupted"),
            "ResNet-50 was interrupted on this machine after 60 steps, at 3.60 images/s until then.",
        ),
        (
            with_rate(None, None, status="incomplete", ended="terminated", timeline=make_timeline(steps=0)),
            "ResNet-50 was interrupted on this machine before its speed was known.",
        ),
        (
            with_rate(3.6, 4.0, status="incomplete", ended="rank 0 was killed"),
            "ResNet-50 did not finish on this machine: rank 0 was killed.",
        ),
        (
            with_rate(None, None, status="invalid", ended="the loss is not finite"),
            "ResNet-50 gave no valid result on this machine: the loss is not finite.",
        ),
    ],
)
def test_a_run_without_a_sure_number_says_so(record: Record, begins: str) -> None:
    assert told(record).startswith(begins)


def test_a_small_network_is_named_by_its_recipe_and_not_set_beside_published_ones() -> None:
    small = make_record(plan={"recipe_name": "smoke"}, environment={"flops": {"per_item": 1.0e7}})
    assert told(small).startswith("ResNet-50 (smoke) trains at 5.78 images/s ±0.39 % on this machine; loss fell")


def test_repeats_are_told_once_by_the_one_in_their_middle() -> None:
    repeats = [renamed(with_rate(rate, 1.0), f"run-{rate}") for rate in (3.0, 5.0, 4.0)]
    (said,) = write_headlines(repeats, library.load_rows())
    assert "at 4.00 images/s ±1.0 % on this machine" in said
    other = with_rate(2.0, 1.0, plan={"topology": "2x1"})
    assert [text.partition(" images/s")[0] for text in write_headlines([*repeats, other], library.load_rows())] == [
        "ResNet-50 trains at 4.00", "ResNet-50 trains at 2.00",
    ]  # fmt: skip
    assert "on these 2 machines" in write_headlines([other], library.load_rows())[0]


@pytest.mark.parametrize(
    ("loss", "trend"),
    [
        ([7.0, 6.9, 6.5, 6.1, 5.9], "fell"),
        ([7.5, 8.0, None, 9.0, 11.9], "rose"),
        ([7.0, 7.01, 6.99, 7.0], "level"),
        ([7.0, 6.0], None),
        ([], None),
    ],
)
def test_where_the_loss_went(loss: list[float | None], trend: str | None) -> None:
    assert loss_trend(loss) == trend


@pytest.mark.parametrize(("other", "times"), [(799, "220"), (4.7, "1.3"), (36, "10"), (36_000, "10 000"), (3.6, "1.0")])
def test_how_many_times(other: float, times: str) -> None:
    assert format_times(3.6, other) == format_times(other, 3.6) == times
