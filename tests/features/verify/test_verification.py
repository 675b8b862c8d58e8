"""What the ranks of a verify wrote is weighed: causes before consequences, software and rounding before the chip."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from support.records import make_plan

from trainmark.features.verify import parity, verdict as verification
from trainmark.features.verify.document import SUM_COUNT, Numbers, StepNumbers, Sums, VerifyDocument, VerifyTelemetry
from trainmark.features.verify.verdict import find_causes, judge
from trainmark.record.errors import UsageError
from trainmark.record.events import BitDifference, Operators
from trainmark.record.store import Store

STEPS = 24


def repeat(rank: int, step: int, stage: str, *layers: str, round_: int = 2) -> BitDifference:
    return BitDifference(kind="repeat", round=round_, rank=rank, step=step, stage=stage, layers=layers)


def replica(rank: int, step: int, stage: str, *layers: str) -> BitDifference:
    return BitDifference(kind="replica", round=2, rank=rank, step=step, stage=stage, layers=layers)


PRODUCT = BitDifference(kind="product", round=1, rank=3, stage="bfloat16", layers=["row 5, column 9"], count=4)
LINK = BitDifference(kind="link", round=1, rank=0, stage="what rank 2 gave", layers=["number 7"], count=1)
OPERATOR = BitDifference(kind="operator", round=0, rank=1, step=1, stage="tanh")


def test_what_an_exchange_carries_to_other_ranks_is_the_first_ones_doing() -> None:
    cause = repeat(1, 3, "gradient", "fc.weight")
    carried = [repeat(rank, 3, "exchanged gradient", "fc.weight") for rank in (0, 2)]
    later = replica(1, 3, "weight", "fc.weight")
    assert find_causes([*carried, cause, later]) == [cause]
    alone = repeat(0, 9, "weight", "a", round_=5)
    assert find_causes([cause, alone]) == [cause, alone]


def test_ranks_that_are_always_wrong_are_named_by_the_others() -> None:
    assert find_causes([replica(2, 1, "weight", "fc.weight")]) == [replica(2, 1, "weight", "fc.weight")]


@pytest.mark.parametrize(
    ("differences", "operators", "verdict"),
    [
        ([], Operators(), "equal"),
        ([repeat(0, 1, "loss")], Operators(steadied=["index_add"]), "wrong"),
        ([repeat(0, 1, "loss")], Operators(unsteady=["index_add"]), "unsettled"),
        ([repeat(0, 1, "loss")], Operators(warned=["index_add"]), "unsettled"),
        ([msgspec.structs.replace(repeat(0, 1, "loss"), never_alike=True)], Operators(), "unsettled"),
        ([PRODUCT], Operators(unsteady=["index_add"]), "wrong"),
        ([replica(1, 1, "weight", "a")], Operators(unsteady=["index_add"]), "wrong"),
    ],
)
def test_software_is_not_called_a_broken_chip_and_a_broken_chip_not_software(
    differences: list[BitDifference], operators: Operators, verdict: str
) -> None:
    assert judge(differences, operators, complete=True) == verdict


def sums(size: float, off: float = 0.0) -> Sums:
    return [size, *(size + off for _ in range(SUM_COUNT))]


def numbers(*, losses: float = 1.0, gradient_off_from: int = STEPS, nan_from: int = STEPS, off: float = 0.1) -> Numbers:
    """A training of two layers, of which one leaves the other's way at a step."""

    def steps(noise: float) -> list[StepNumbers]:
        return [
            StepNumbers(
                loss=None if step >= nan_from else losses * (1 + noise) / (1 + step),
                data={"x": sums(3.0)},
                gradients={
                    "first": sums(1.0, noise),
                    "second": sums(1.0, noise + (off if step >= gradient_off_from else 0)),
                },
                weights={name: sums(5.0 + 0.01 * step, noise * 0.01) for name in ("first", "second")},
            )
            for step in range(STEPS)
        ]

    return Numbers(initial={"first": sums(4.0), "second": sums(4.0)}, steps=steps(0.0), rounded=steps(1e-3))


def document(told: Numbers | None, *, precision: str = "fp32", **changes: object) -> VerifyDocument:
    plan = make_plan(precision=precision)
    base = VerifyDocument(
        verify_id="v1", created="2026-01-01T00:00:00Z", trainmark="0", plan=plan.to_json(), device="a device",
        torch="2", hosts=["a", "b"], rounds=2, steps=STEPS, hashed=9, verdict="equal", sentence="", numbers=told,
    )  # fmt: skip
    found = msgspec.structs.replace(base, **changes)
    return msgspec.structs.replace(found, sentence=verification.describe(found))


def test_two_chips_that_differ_by_no_more_than_rounding_train_the_same() -> None:
    near = numbers(losses=1.001, gradient_off_from=0, off=1e-3)
    found = parity.compare_verifies(document(near), document(numbers()))
    assert (found.verdict, found.first) == ("agrees", None)
    assert found.loss_apart == pytest.approx(0.001)


def test_the_first_step_and_layer_that_leave_the_tolerance_are_named() -> None:
    assert numbers().rounded  # by which a tenth is too much
    found = parity.compare_verifies(document(numbers(gradient_off_from=7)), document(numbers()))
    assert found.verdict == "differs" and found.first is not None
    assert (found.first.step, found.first.quantity) == (8, "gradient of second")
    assert found.first.difference == pytest.approx(0.1)
    assert "from step 8 on: gradient of second is off by 10 %" in found.sentence


def test_losses_that_drift_apart_break_the_published_rule() -> None:
    def apart(own: list[float | None], other: list[float | None]) -> float | None:
        return parity.compare_losses(*([StepNumbers(loss=loss) for loss in losses] for losses in (own, other)))

    assert apart([1.0] * 20 + [1.03] * 4, [1.0] * 24) == pytest.approx(0.03)
    assert apart([1.0] * 20, [2.0] * 20) is None
    assert apart([1.0] * 20 + [None], [1.0] * 21) == math.inf


def test_what_rounding_alone_does_in_any_later_step_is_not_held_against_a_chip() -> None:
    plain = numbers()
    switched = [*plain.rounded[:-1], msgspec.structs.replace(plain.rounded[-1], gradients={"second": sums(1.0, 0.1)})]
    chaotic = msgspec.structs.replace(plain, rounded=switched)
    late = numbers(gradient_off_from=7)
    assert parity.compare_verifies(document(late), document(chaotic)).verdict == "agrees"
    first = parity.compare_verifies(document(numbers(gradient_off_from=0)), document(chaotic)).first
    assert first is not None and (first.step, first.quantity) == (1, "gradient of second")


def test_a_loss_that_is_not_finite_on_one_chip_alone_is_a_difference() -> None:
    found = parity.compare_verifies(document(numbers(nan_from=3)), document(numbers()))
    assert found.first is not None and (found.first.step, found.first.quantity) == (4, "loss")
    assert found.first.difference is None
    assert parity.compare_verifies(document(numbers(nan_from=3)), document(numbers(nan_from=3))).verdict == "agrees"


def test_a_gradient_that_is_nothing_on_one_chip_alone_is_not_called_infinite() -> None:
    nothing = numbers()
    steps = [msgspec.structs.replace(step, gradients={"second": sums(0.0)}) for step in nothing.steps]
    nothing = msgspec.structs.replace(nothing, steps=steps, rounded=steps)
    found = parity.compare_verifies(document(numbers()), document(nothing))
    assert "gradient of second is zero or not finite on one chip alone" in found.sentence


def test_weights_in_a_narrow_precision_may_part_as_far_as_the_signs_that_rounding_turns() -> None:
    def moved(off: float) -> Numbers:
        told = numbers()
        steps, rounded = (
            [msgspec.structs.replace(step, weights={"first": sums(5.0, off)}) for step in each]
            for each in (told.steps, told.rounded)
        )
        return msgspec.structs.replace(told, steps=steps, rounded=rounded)

    # rounding changes the gradients by a thousandth and, as it was drawn, the weights by next to nothing
    for precision, off, verdict in [
        ("fp32", 0.1, "differs"),
        ("amp-bf16", 0.1, "agrees"),
        ("amp-bf16", 0.3, "differs"),
    ]:
        found = parity.compare_verifies(document(moved(off), precision=precision), document(moved(0.0)))
        assert found.verdict == verdict, (precision, off, found.sentence)


def test_steps_on_other_samples_or_from_other_weights_say_nothing() -> None:
    here, there = numbers(), numbers()
    other = msgspec.structs.replace(there.steps[4], data={"x": sums(3.1)})
    moved = msgspec.structs.replace(there, steps=[*there.steps[:4], other, *there.steps[5:]])
    found = parity.compare_verifies(document(here), document(moved))
    assert (found.verdict, found.sentence) == (
        "unknown",
        "nothing can be compared: the samples of step 5 differ: x",
    )
    begun = msgspec.structs.replace(there, initial={"first": sums(9.0)})
    assert "the initial weights differ" in parity.compare_verifies(document(here), document(begun)).sentence
    rounded = msgspec.structs.replace(there, initial={"first": sums(4.01), "second": sums(4.0)})
    assert parity.compare_verifies(document(here), document(rounded)).verdict == "unknown"
    # weights that are held in bfloat16 begin as it rounds them
    assert parity.compare_verifies(document(here), document(rounded, precision="bf16")).verdict == "agrees"
    assert parity.compare_verifies(document(None), document(here)).verdict == "unknown"


def test_another_recipe_is_refused_by_the_field_that_differs() -> None:
    plan = make_plan()
    other = make_plan(recipe={**plan.recipe, "learning_rate": 0.5})
    with pytest.raises(UsageError, match="differ in learning_rate"):
        parity.compare_verifies(document(numbers()), msgspec.structs.replace(document(numbers()), plan=other.to_json()))


def test_a_verify_is_found_by_last_by_its_id_and_by_its_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(UsageError, match="'trainmark verify' makes one"):
        verification.load_document("last", store)
    kept = document(numbers())
    path = verification.save_document(kept, store)
    for word in ("last", "v1", str(path)):
        assert verification.load_document(word, store).numbers == kept.numbers
    (tmp_path / "else.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a verify's document"):
        verification.load_document(str(tmp_path / "else.json"), store)


def test_a_soak_that_was_cut_off_says_how_far_it_came() -> None:
    cut = document(None, verdict="incomplete", rounds=5)
    assert cut.sentence == "it was interrupted after 5 rounds of 24 steps on 2 ranks, which came out alike"
    assert "before two of them could be" in document(None, verdict="incomplete", rounds=1).sentence


def test_the_screen_says_what_differs() -> None:
    broken = document(
        numbers(gradient_off_from=7),
        verdict="wrong",
        differences=[repeat(1, 3, "gradient", "fc.weight"), replica(0, 2, "weight", "a"), PRODUCT, LINK, OPERATOR],
        operators=Operators(steadied=["index_add"], unsteady=["cumsum"], warned=["put_"]),
        switches={"ORDERED_SUMS": "1"},
        draws=True,
        telemetry=VerifyTelemetry(temperature_c=71.0, power_w=300.0, throttled=["thermal"], ecc_errors=3.0),
    )
    found = parity.compare_verifies(broken, document(numbers(), precision="amp-bf16"))
    said = verification.render_text(broken, found, width=200)
    assert "the arithmetic is wrong: 5 differences in 2 rounds of 24 steps on 2 ranks" in said
    assert "round 2, step 3, rank 1 on b: gradient of fc.weight is not what the other rounds gave" in said
    assert "round 1, rank 3: 4 known answers of a matmul in bfloat16 wrong, the first at row 5, column 9" in said
    assert "torch.use_deterministic_algorithms(True) made them so here" in said and "71 °C" in said
