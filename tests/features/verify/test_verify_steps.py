"""Scripted faults of the stand-in are found and named by step, rank, stage and layer; where there is none, none is."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tiny import RECIPE, LineFit, PointStream, job
from torch import Tensor, nn

from trainmark.features.verify import verdict as judgement
from trainmark.features.verify.hashed_steps import HashedSteps, RoundLedger, SignedSums
from trainmark.features.verify.worker_task import Verification
from trainmark.platforms import standin
from trainmark.record import events
from trainmark.record.events import BitDifference, EventTail, EventWriter
from trainmark.record.precision import relative_moves, relative_sums
from trainmark.train.loop import Job
from trainmark.train.stepper import Stepper

STEPS = 4
ADDMM, MM = 2, 3
"""Calls of a step: products forward; back, of which the second and third give the gradients of weights."""
FIRST_ADDS, ADDS = 4, 8
"""Calls of `add_` in a round's first step, one a weight, and in a later one: the momentum's, then the weight's."""


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x[:, None])))[:, 0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    return tmp_path


def made(folder: Path, platform: str = "standin", model: nn.Module | None = None) -> Job:
    base = job(folder, platform=platform, data=PointStream(), recipe=replace(RECIPE, steps=1000))
    torch.manual_seed(0)
    workload = LineFit()
    stepper = Stepper(
        model or TwoLayers(),
        optimizer=lambda parameters: workload.optimizer(parameters, base.recipe),
        loss=workload.loss,
        precision=base.stepper.precision,
        device=base.device,
    )
    return replace(base, stepper=stepper)


def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = folder / "script.toml"
    path.write_text(f"latency_us = 0\n{text}", encoding="utf-8")
    monkeypatch.setenv(standin.VARIABLE, str(path))


def flip(operator: str, at: int, **places: int) -> str:
    more = "".join(f"{name} = {value}\n" for name, value in places.items())
    return f'[[flips]]\noperator = "{operator}"\nat = [{at}]\n{more}'


def verified(folder: Path, steps: int = STEPS, model: nn.Module | None = None) -> list[events.Event]:
    log = EventWriter(folder / "rank0.jsonl")
    Verification(made(folder, model=model), steps, log, folder).run(0.0)
    log.close()
    return [event for event in EventTail(folder / "rank0.jsonl").new_events() if isinstance(event, events.Event)]


def found(told: list[events.Event]) -> list[BitDifference]:
    return judgement.find_causes(
        [each for event in told if isinstance(event, events.RoundVerified) for each in event.found]
    )


def operators(told: list[events.Event]) -> events.OperatorsRepeated:
    [one] = [event for event in told if isinstance(event, events.OperatorsRepeated)]
    return one


WALKED = 2
"""Times that an operator of the first step is called before the rounds begin."""
BEFORE_ADDMM = (WALKED + STEPS) * ADDMM
BEFORE_MM = (WALKED + STEPS) * MM + 1
BEFORE_ADD = (WALKED + 1) * FIRST_ADDS + (STEPS - 1) * ADDS
"""Calls before the second round: the first step walked, the first round, and a product of known answer."""


@pytest.mark.parametrize(
    ("script", "stage", "layer", "step"),
    [
        (flip("addmm", BEFORE_ADDMM + 2 * ADDMM + 1), "loss", [], 3),
        (flip("mm", BEFORE_MM + MM + 1), "gradient", ["first.bias", "first.weight"], 2),
        (flip("mm", BEFORE_MM + MM + 2), "gradient", ["second.weight"], 2),
        (flip("mm", BEFORE_MM + MM + 3, bit=0), "gradient", ["first.weight"], 2),
        (flip("add_", BEFORE_ADD + 3), "weight", ["second.weight"], 1),
        (flip("add_", BEFORE_ADD + FIRST_ADDS + 2 * ADDS + 2, bit=31), "weight", ["first.weight"], 4),
    ],
)
def test_a_flipped_bit_is_named_by_step_stage_and_layer(
    script: str, stage: str, layer: list[str], step: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, script)
    told = verified(folder)
    [difference] = found(told)
    assert (difference.kind, difference.round, difference.rank) == ("repeat", 2, 0)
    assert (difference.stage, list(difference.layers), difference.step) == (stage, layer, step)
    assert judgement.judge([difference], operators(told), complete=True) == "wrong"


@pytest.mark.slow
def test_flips_that_come_seldom_are_all_found_and_none_is_invented(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, f'[[flips]]\noperator = "mm"\nevery = {100 * MM}\nbit = 3\n')
    steps, ledger, odd = HashedSteps(made(folder), 10), RoundLedger(), []
    for _ in range(23):
        odd += ledger.add(steps.round())
    hit = [99, 199]  # of 230 steps, counted from 0; in the last product of each
    assert [(each.round - 1) * 10 + each.step for each in odd] == hit
    assert {steps.quantities[each.places[0]] for each in odd} == {("gradient", "first.weight")}


def test_operators_that_differ_from_call_to_call_are_named_with_the_switch_that_steadies_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, 'unsteady_operators = ["tanh"]\n')
    told = verified(folder)
    assert found(told) == [] and list(operators(told).steadied) == ["tanh"]
    assert operators(told).not_deterministic == ()


def test_what_no_switch_steadies_is_not_called_a_broken_chip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(folder, monkeypatch, 'ever_unsteady_operators = ["tanh"]\n')
    told = verified(folder)
    assert list(operators(told).unsteady) == ["tanh"]
    [difference] = found(told)
    assert difference.never_alike and difference.step == 1
    assert judgement.judge([difference], operators(told), complete=True) == "unsettled"


def test_an_operator_that_differs_once_is_no_habit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(folder, monkeypatch, flip("tanh", 2))
    told = verified(folder)
    [difference] = found(told)
    assert (difference.kind, difference.stage) == ("operator", "tanh")
    assert judgement.judge([difference], operators(told), complete=True) == "wrong"


def test_a_product_with_a_wrong_answer_is_found_between_the_rounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, flip("mm", BEFORE_MM, place=5 * 512 + 9, bit=30))
    [difference] = found(verified(folder))
    assert (difference.kind, difference.round, difference.stage) == ("product", 1, "float32")
    assert list(difference.layers) == ["row 5, column 9"]


class Drops(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.dropout(x, 0.5, training=True))


def test_a_step_that_draws_is_made_without_its_draws_so_that_every_chip_can_make_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, "")
    torch.manual_seed(0)
    told = verified(folder, model=Drops())
    assert found(told) == []
    assert all(event.draws for event in told if isinstance(event, events.RoundVerified))


def test_the_numbers_of_a_chip_are_another_chips_and_say_what_rounding_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, "")
    here = HashedSteps(made(folder, "cpu"), STEPS).numbers()
    there = HashedSteps(made(folder), STEPS).numbers()
    assert here == there
    last, rounded = here.steps[-1], here.rounded[-1]
    assert last.loss is not None and rounded.loss is not None
    assert 0 < abs(last.loss - rounded.loss) / last.loss < 1e-4
    assert 0 < relative_sums(rounded.gradients["first.weight"], last.gradients["first.weight"]) < 1e-4
    assert sorted(last.weights) == sorted(here.initial)


def test_sums_with_signs_tell_how_far_two_tensors_lie_apart() -> None:
    lot = torch.Generator().manual_seed(3)
    one, other, start = (torch.randn(100_000, generator=lot) for _ in range(3))
    sums = SignedSums()
    found_share = relative_sums(sums(one + 1e-3 * other), sums(one))
    assert 5e-4 < found_share < 2e-3
    moved = relative_moves(sums(start + 1.1e-4 * one), sums(start), sums(start + 1e-4 * one), sums(start))
    assert math.isclose(moved, 0.1, rel_tol=1e-2)
    assert sums(one * math.nan) == [] and relative_sums([], sums(one)) == math.inf


class Ranks:
    """Collectives of three ranks, of which the third always computes one weight otherwise."""

    rank, world = 0, 3

    def __init__(self, odd: int) -> None:
        self._odd = odd

    def gather(self, data: bytes) -> list[bytes]:
        changed = array("q", data)
        changed[self._odd % len(changed)] += 1
        return [data, data, changed.tobytes()]


def test_a_rank_that_is_wrong_in_every_round_is_named_by_the_majority(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(folder, monkeypatch, "")
    one = made(folder)
    verification = Verification(one, STEPS, one.events, folder)
    steps = verification._steps.round()
    weights = [layer for stage, layer in verification._steps.quantities if stage == "weight"]
    verification._job = replace(one, collectives=Ranks(odd=1))  # type: ignore[arg-type]
    [difference] = verification._compare_replicas(2, steps)
    assert (difference.kind, difference.rank, difference.step) == ("replica", 2, 2)
    assert (difference.stage, list(difference.layers)) == ("weight", [weights[1]])
