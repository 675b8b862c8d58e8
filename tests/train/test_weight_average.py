"""The average of weights over steps: its rule, who is judged by it, and that it goes on where it stood."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train.stepper import Stepper, WeightAverage


@dataclass(frozen=True, eq=False)
class Rows:
    x: Tensor
    count: int = 8
    global_count: int = 8


def test_the_average_forgets_the_first_weights_soon_and_then_keeps_to_its_decay() -> None:
    weight, average = torch.zeros(1), 0.0
    kept = WeightAverage([("w", weight)], decay=0.5)
    for step in range(20):
        weight.fill_(step + 1)
        kept.update()
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * (step + 1)
        assert kept.state()["average"]["w"].item() == pytest.approx(average, rel=1e-6)
    assert kept.state()["averaged_steps"] == 20


def stepper(precision: str, decay: float = 0.9) -> Stepper:
    torch.manual_seed(0)

    def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    return Stepper(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
        optimizer=optimizer,
        loss=lambda model, rows: model(rows.x.to(next(model.parameters()).dtype)).float().square().mean(),
        precision=Precision.parse(precision),
        device=Platform(files.load("cpu")).open(0),
        average_decay=decay,
    )


def trained(found: Stepper, steps: int) -> Stepper:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        found.step(Rows(torch.randn(8, 4, generator=generator)))
    return found


def weights(model: nn.Module) -> list[Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_is_judged_by_the_average_and_trained_by_its_own_weights(precision: str) -> None:
    found = trained(stepper(precision), 3)
    own = weights(found.bare_model)
    with found.use_evaluation_weights():
        judged = weights(found.bare_model)
    assert all(torch.equal(a, b) for a, b in zip(own, weights(found.bare_model), strict=True))
    averages = found.state()["average"].values()
    assert all(average.dtype == torch.float32 for average in averages)
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(judged, averages, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(own, judged, strict=True))


def test_without_a_decay_there_is_no_average() -> None:
    found = trained(stepper("fp32", decay=0.0), 1)
    own = weights(found.bare_model)
    with found.use_evaluation_weights():
        assert all(torch.equal(a, b) for a, b in zip(own, weights(found.bare_model), strict=True))
    assert "average" not in found.state()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_goes_on_with_the_average_it_was_left_with(precision: str) -> None:
    left = trained(stepper(precision), 3)
    resumed = stepper(precision)
    resumed.load_state(copy.deepcopy(left.state()))
    states = [trained(found, 2).state() for found in (left, resumed)]
    assert states[0]["averaged_steps"] == states[1]["averaged_steps"] == 5
    for name, average in states[0]["average"].items():
        assert torch.equal(average, states[1]["average"][name])
