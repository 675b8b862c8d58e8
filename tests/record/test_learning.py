"""A training whose loss rose, or that guesses, is told from one that learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.records import make_record

from trainmark.record import doubts
from trainmark.record.doubts import find_chance_level, loss_rise
from trainmark.record.record import Evaluation, Quality, Record
from trainmark.record.workload_facts import CHANCE, CLASSES, QualityFacts, WorkloadFacts


def evaluated(percent: float, samples: int = 400) -> Quality:
    last = Evaluation(step=50, epoch=1.0, values={"acc1": percent}, samples=samples)
    return Quality(name="acc1", unit="%", goal=75.0, better="higher", value=percent, history=(last,))


def said(record: Record, judged: QualityFacts | None = None) -> dict[str, str]:
    if judged:
        facts = WorkloadFacts(name="x", title="X", item="samples", data_set="x", qualities=(judged,))
        record = replace(record, workload_facts=facts)
    return {doubt.code: doubt.text for doubt in doubts.collect_doubts(record, reference_global_batch=256)}


def test_a_loss_that_went_from_7_to_12_rose() -> None:
    loss = [7.46, 7.4, 7.2, 7.9, 8.3, 8.1, 9.0, 9.4, 9.1, 9.9, 10.3, 10.1, 10.8, 11.2, 11.5, 11.4, 11.9, 11.94]
    first, last = loss_rise(loss) or (0, 0)
    assert 7 < first < 8
    assert 11 < last < 12
    assert loss_rise(loss[::-1]) is None


@pytest.mark.parametrize("steps", [12, 26, 100, 1000])
def test_noise_is_no_rise_and_a_rise_is_found_in_noise(steps: int) -> None:
    rng = np.random.default_rng(steps)
    noise = [7 + 0.3 * rng.standard_normal(steps) for _ in range(200)]
    assert sum(loss_rise(list(loss)) is not None for loss in noise) <= 4
    assert all(loss_rise(list(loss - np.linspace(0, 3, steps))) is None for loss in noise)
    assert sum(loss_rise(list(loss + np.linspace(0, 3, steps))) is not None for loss in noise) >= 190


def test_one_bad_step_and_losses_that_are_missing_are_no_rise() -> None:
    assert loss_rise([*[2.0 - step / 100 for step in range(40)], 50.0]) is None
    assert loss_rise([None] * 40) is None
    assert loss_rise([1.0, 2.0, 3.0]) is None


def test_an_accuracy_that_guessing_gives_is_told_by_the_classes_of_the_data() -> None:
    ten = {CLASSES: 10.0, CHANCE: 10.0}

    def chance(percent: float, facts: dict[str, float]) -> float | None:
        return find_chance_level(replace(make_record(), quality=evaluated(percent), data_facts=facts))

    assert chance(10.0, ten) == 10.0
    assert chance(12.5, ten) == 10.0  # 400 samples cannot tell it from 10
    assert chance(14.0, ten) is None
    assert chance(10.0, {CLASSES: 1000.0, CHANCE: 0.1}) is None
    assert chance(10.0, {}) is None


def test_what_did_not_learn_says_so_and_no_note_claims_that_training_works() -> None:
    rising = replace(
        make_record(loss=[7 + step / 10 for step in range(50)]),
        quality=evaluated(10.0),
        data_facts={CLASSES: 10.0, CHANCE: 10.0},
    )
    found = said(rising)
    assert "the loss rose from 7.55 to 11.4" in found["loss-rose"]
    assert "accuracy of 10.00 % is what guessing among 10 classes gives" in found["at-chance"]
    assert found["generated-data"].endswith("accuracy says nothing about the real one")


def test_what_learnt_is_not_doubted_and_what_was_not_evaluated_is_said_to_be_so() -> None:
    falling = replace(make_record(loss=[7 - step / 10 for step in range(50)]), quality=evaluated(60.0))
    found = said(replace(falling, data_facts={CLASSES: 10.0, CHANCE: 10.0}))
    assert not {"loss-rose", "at-chance"} & found.keys()
    assert found["generated-data"].endswith("accuracy only shows that training works")
    unknown = replace(falling, quality=replace(falling.quality, value=None, history=()))
    assert said(unknown)["generated-data"].endswith("accuracy was not evaluated")


@pytest.mark.parametrize(("value", "learnt"), [(8.2, False), (7.0, False), (6.4, True)])
def test_a_network_that_a_simpler_way_equals_has_not_learnt(value: float, learnt: bool) -> None:
    judged = QualityFacts(name="val_nll", unit="nats", better="lower", bar="linear_nll", bar_word="linear prediction")
    quality = Quality(name="val_nll", unit="nats", goal=6.0, better="lower", value=value, history=())
    record = replace(make_record(loss=[9 - step / 50 for step in range(50)]), quality=quality)
    found = said(replace(record, data_facts={"linear_nll": 7.0}), judged)
    assert ("below-bar" in found) is not learnt
    assert found["generated-data"].endswith("val_nll only shows that training works") is learnt
    if not learnt:
        assert found["below-bar"].startswith(f"has not learnt: val_nll of {value:.2f} nats is above linear prediction")
    assert "below-bar" not in said(record, judged)  # where nobody computed the bar
