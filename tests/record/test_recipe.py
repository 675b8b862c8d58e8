"""Settings are strict: a wrong word is refused with the nearest right one, and every change is on the record."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trainmark.record.errors import UsageError
from trainmark.record.recipe import (
    Limits,
    Recipe,
    Span,
    apply_settings,
    deviations,
    fix_hp,
    from_values,
    knob,
    to_values,
)


@dataclass(frozen=True, kw_only=True)
class Dough(Recipe):
    yeast: str = knob("dry", words=("dry", "fresh"))


REFERENCE = Dough(batch_per_device=32, learning_rate=0.1, weight_decay=1e-4, epochs=100, target=75.5)


def test_settings_are_parsed_by_the_type_of_their_field() -> None:
    changed = apply_settings(REFERENCE, ["learning_rate=1", "epochs=3", "evaluate_first=true", "yeast=fresh"])
    assert (changed.learning_rate, changed.epochs, changed.evaluate_first, changed.yeast) == (1.0, 3, True, "fresh")
    assert isinstance(changed.learning_rate, float)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("learning_rat=1", "setting 'learning_rat' is not known; did you mean 'learning_rate'?"),
        ("bs=8", "setting 'bs' is not known; did you mean 'batch_per_device'?"),
        ("batch_per_device=1.5", "setting batch_per_device must be a whole number, not '1.5'"),
        ("batch_per_device=0", "setting batch_per_device must be at least 1, not 0"),
        ("learning_rate=nan", "setting learning_rate must be a finite number, not nan"),
        ("learning_rate=fast", "setting learning_rate must be a number, not 'fast'"),
        ("evaluate_first=perhaps", "setting evaluate_first must be true or false, not 'perhaps'"),
        ("yeast=frsh", "setting yeast must be one of dry, fresh, not 'frsh'; did you mean 'fresh'?"),
        (
            "evaluate_every=often",
            "setting evaluate_every must be end or a length: 'often' is not a length of training; try '1 epoch', "
            "'500 steps' or '1e6 items'",
        ),
        ("evaluate_every_epochs=2", "setting 'evaluate_every_epochs' is not known; did you mean 'evaluate_every'?"),
        ("learning_rate", "--set 'learning_rate' is not key=value; try '--set learning_rate=0.8'"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        apply_settings(REFERENCE, [setting])
    assert str(refused.value) == sentence
    assert refused.value.exit_code == 2


def test_what_differs_from_the_reference_is_computed_and_shown_as_fix_hp() -> None:
    filled = apply_settings(REFERENCE, ["batch_per_device=256", "learning_rate=0.8"])
    assert fix_hp(deviations(filled, REFERENCE)) == "bs=256,lr=0.8"
    assert fix_hp(deviations(REFERENCE, REFERENCE)) == "/"
    assert fix_hp(deviations(filled, REFERENCE), most=1) == "bs=256,+1 more"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("1 epoch", "1 epoch"),
        ("1 epochs", "1 epoch"),
        ("16000 steps", "16000 steps"),
        ("1e9items", "1e+09 items"),
        ("4 epochs from 3", "4 epochs from 3"),
        ("4 epochs from 0", "4 epochs"),
    ],
)
def test_a_length_of_training_is_said_in_steps_epochs_or_items(said: str, meant: str) -> None:
    assert str(Span.parse(said)) == meant
    assert Span.parse(meant) == Span.parse(said)
    changed = apply_settings(REFERENCE, [f"evaluate_every={said}", f"checkpoint_every={said}"])
    assert (changed.evaluate_every, changed.checkpoint_every) == (meant, meant)


@pytest.mark.parametrize("said", ["", "0 steps", "1.5 epochs", "-1 steps", "1.2.3 items", "1e999 items", "3 nights"])
def test_what_is_not_a_length_of_training_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match="is not a length of training"):
        Span.parse(said)


@pytest.mark.parametrize("said", ["4 epochs from 4", "100 steps from 1", "1e6 items from 2"])
def test_lengths_begin_later_only_by_epochs_and_by_less_than_one(said: str) -> None:
    with pytest.raises(UsageError, match="begins too late"):
        Span.parse(said)


def test_a_length_said_otherwise_is_no_deviation() -> None:
    assert deviations(apply_settings(REFERENCE, ["evaluate_every=1 epochs"]), REFERENCE) == ()


def test_a_recipe_survives_the_way_through_plain_values() -> None:
    assert from_values(Dough, to_values(REFERENCE)) == REFERENCE


def test_a_run_without_limits_of_steps_or_seconds_is_a_full_run() -> None:
    assert Limits().full
    assert Limits(epochs=2).full
    assert not Limits(steps=10).full
    assert not Limits(items=10**9).full
    assert not Limits(half_width=0.02, seconds=60).full
