"""Settings are strict: a wrong word is refused with the nearest right one, and every change is on the record."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trainmark.spec.errors import UsageError
from trainmark.spec.recipe import Limits, Recipe, deviations, fix_hp, from_values, knob, to_values, with_settings


@dataclass(frozen=True, kw_only=True)
class Dough(Recipe):
    yeast: str = knob("dry", words=("dry", "fresh"))


REFERENCE = Dough(batch_per_device=32, learning_rate=0.1, weight_decay=1e-4, epochs=100, target=75.5)


def test_settings_are_parsed_by_the_type_of_their_field() -> None:
    changed = with_settings(REFERENCE, ["learning_rate=1", "epochs=3", "evaluate_first=true", "yeast=fresh"])
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
        ("learning_rate", "--set 'learning_rate' is not key=value; try '--set learning_rate=0.8'"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        with_settings(REFERENCE, [setting])
    assert str(refused.value) == sentence
    assert refused.value.exit_code == 2


def test_what_differs_from_the_reference_is_computed_and_shown_as_fix_hp() -> None:
    filled = with_settings(REFERENCE, ["batch_per_device=256", "learning_rate=0.8"])
    assert fix_hp(deviations(filled, REFERENCE)) == "bs=256,lr=0.8"
    assert fix_hp(deviations(REFERENCE, REFERENCE)) == "/"
    assert fix_hp(deviations(filled, REFERENCE), most=1) == "bs=256,+1 more"


def test_a_recipe_survives_the_way_through_plain_values() -> None:
    assert from_values(Dough, to_values(REFERENCE)) == REFERENCE


def test_a_run_without_limits_of_steps_or_seconds_is_a_full_run() -> None:
    assert Limits().full
    assert Limits(epochs=2).full
    assert not Limits(steps=10).full
    assert not Limits(half_width=0.02, seconds=60).full
