"""LARS steps as its definition says and goes on from a checkpoint; the rate of MLPerf's recipe falls as asked."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from trainmark.record.recipe import deviations
from trainmark.workloads.resnet50.workload import RECIPES, TRUST, WORKLOAD, Lars
from trainmark.workloads.workload import Progress

MLPERF = RECIPES["mlperf"]
REFERENCE = RECIPES["reference"]


def by_definition(
    weight: torch.Tensor, gradients: list[torch.Tensor], rates: list[float], decay: float
) -> torch.Tensor:
    """One tensor after some steps, with a momentum of 0.9."""
    weight, moving = weight.clone(), torch.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        scale = 1.0
        if weight.ndim > 1:
            size, slope = weight.norm(), gradient.norm()
            scale = float(TRUST * size / (slope + decay * size)) if size > 0 and slope > 0 else 1.0
            gradient = gradient + decay * weight
        moving = 0.9 * moving + rate * scale * gradient
        weight = weight - moving
    return weight


def test_every_tensor_moves_as_the_definition_says() -> None:
    torch.manual_seed(1)
    shapes = [(4, 3, 2, 2), (5, 7), (6,), (3, 3)]
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes]
    with torch.no_grad():
        weights[3].zero_()  # of no size yet: it steps by the gradient itself
    started = [weight.detach().clone() for weight in weights]
    optimizer = Lars(weights, lr=0.0, momentum=0.9, weight_decay=5e-5)
    gradients: list[list[torch.Tensor]] = [[] for _ in weights]
    rates = [0.5, 2.0, 7.5]
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        for weight, kept in zip(weights, gradients, strict=True):
            weight.grad = torch.randn_like(weight)
            kept.append(weight.grad.clone())
        optimizer.step()
    for weight, start, kept in zip(weights, started, gradients, strict=True):
        torch.testing.assert_close(weight.detach(), by_definition(start, kept, rates, 5e-5))


def test_a_checkpoint_of_it_goes_on_where_it_was() -> None:
    torch.manual_seed(2)
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    one = Lars(model.parameters(), lr=3.0)
    model(torch.ones(2, 4)).square().sum().backward()
    one.step()
    other.load_state_dict(model.state_dict())
    two = Lars(other.parameters(), lr=3.0)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for net, optimizer in ((model, one), (other, two)):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, other.weight)


def test_the_rate_of_the_mlperf_recipe_rises_for_two_epochs_and_falls_by_the_square_of_what_is_left() -> None:
    def rate(epoch: float) -> float:
        return WORKLOAD.learning_rate(MLPERF, Progress(0, epoch, 37 * 393, 3264))

    assert rate(0) == 0
    assert rate(1) == pytest.approx(5.25)
    assert rate(2) == pytest.approx(10.5)
    assert rate(19.5) == pytest.approx(1e-4 + (10.5 - 1e-4) * 0.25)
    assert rate(37) == pytest.approx(1e-4)


def test_what_the_mlperf_recipe_changes_is_computed() -> None:
    changed = {entry.name for entry in deviations(MLPERF, REFERENCE)}
    assert {"optimizer", "label_smoothing", "schedule", "warmup_epochs", "target", "evaluate_every"} <= changed
    assert isinstance(WORKLOAD.optimizer([nn.Parameter(torch.ones(2, 2))], MLPERF), Lars)
    assert isinstance(
        WORKLOAD.optimizer([nn.Parameter(torch.ones(2, 2))], replace(MLPERF, optimizer="sgd")), torch.optim.SGD
    )
