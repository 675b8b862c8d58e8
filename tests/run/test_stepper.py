"""A step trains in every precision, and a short batch counts for what it holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.run.stepper import Stepper
from trainmark.spec.precision import PRECISIONS, Precision


@dataclass(frozen=True, eq=False)
class Batch:
    x: Tensor
    y: Tensor
    count: int = 16
    global_count: int = 16


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, 8, 8, generator=generator)
    return Batch(x, (x.mean((1, 2, 3)) > 0).long())


def loss(model: nn.Module, data: Batch) -> Tensor:
    x = data.x.to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(x).float(), data.y)


def stepper(word: str, model: nn.Module | None = None, world: int = 1, *, clip_gradient_norm: float = 0.0) -> Stepper:
    return Stepper(
        model or network(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        loss=loss,
        precision=Precision.parse(word),
        device=Platform(files.load("cpu")).open(0),
        world=world,
        clip_gradient_norm=clip_gradient_norm,
    )


RUNS_ON_A_CPU = [name for name in PRECISIONS if name != "tf32"]


@pytest.mark.parametrize("word", RUNS_ON_A_CPU)
def test_the_loss_falls_in_every_precision(word: str) -> None:
    training, data = stepper(word), batch()
    losses = [float(training.step(data)) for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("word", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_narrow_weights_keep_norms_and_updates_in_float32(word: str, dtype: torch.dtype) -> None:
    training = stepper(word)
    kinds = {name: parameter.dtype for name, parameter in training.bare_model.named_parameters()}
    assert kinds["0.weight"] == kinds["4.weight"] == dtype
    assert kinds["1.weight"] == torch.float32
    # an update far below the type's resolution must add up over steps instead of being lost each time
    for group in training.optimizer.param_groups:
        group["lr"] = 1e-5
    before = training.state()["wide_weights"][0].clone()
    training.step(batch())
    assert not torch.equal(training.state()["wide_weights"][0], before)


def test_plain_weights_stay_float32_under_autocast() -> None:
    training = stepper("amp-bf16")
    training.step(batch())
    assert {parameter.dtype for parameter in training.bare_model.parameters()} == {torch.float32}


def test_an_overflowing_float16_step_is_skipped_and_the_scale_lowered() -> None:
    training, data = stepper("amp-fp16"), batch()
    training.step(data)
    before = [parameter.clone() for parameter in training.bare_model.parameters()]
    scale = training.scaler.get_scale()
    training.step(Batch(data.x * 1e6, data.y))
    assert all(torch.equal(a, b) for a, b in zip(before, training.bare_model.parameters(), strict=True))
    assert training.scaler.get_scale() < scale


def test_a_rank_with_a_short_batch_counts_for_its_samples() -> None:
    """Two ranks with 3 of 4 and 1 of 4 samples, averaged as DDP does, give the gradient of all 4."""
    data = batch()

    def gradient(rows: slice, world: int) -> Tensor:
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
        torch.manual_seed(3)
        nn.init.normal_(model[1].weight)  # type: ignore[arg-type]
        training = stepper("fp32", model, world)
        before = model[1].weight.detach().clone()  # type: ignore[operator]
        x, y = data.x[:4][rows], data.y[:4][rows]
        training.step(Batch(x, y, count=len(x), global_count=4))
        return before - model[1].weight.detach()  # type: ignore[operator, no-any-return]

    both = (gradient(slice(0, 3), 2) + gradient(slice(3, 4), 2)) / 2
    torch.testing.assert_close(both, gradient(slice(0, 4), 1))


@pytest.mark.parametrize("word", ["fp32", "bf16", "amp-fp16"])
def test_a_loaded_state_goes_on_exactly(word: str) -> None:
    data, whole, broken = batch(), stepper(word), stepper(word)
    for _ in range(2):
        whole.step(data)
        broken.step(data)
    resumed = stepper(word)
    resumed.load_state(broken.state())
    assert [float(whole.step(data)) for _ in range(3)] == [float(resumed.step(data)) for _ in range(3)]


@pytest.mark.parametrize("word", ["fp32", "bf16", "amp-fp16"])
@pytest.mark.parametrize(("limit", "weight", "bias"), [(0.0625, 0.0375, 0.05), (1.0, 0.09375, 0.125)])
def test_gradients_are_clipped_to_a_norm_over_all_of_them(word: str, limit: float, weight: float, bias: float) -> None:
    """Gradients of 0.09375 and 0.125 have the norm 0.15625, so a limit of 0.0625 leaves two fifths of each."""
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    training = Stepper(
        model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        loss=lambda model, data: 0.125 * model(data.x.to(next(model.parameters()).dtype)).float().sum(),
        precision=Precision.parse(word),
        device=Platform(files.load("cpu")).open(0),
        clip_gradient_norm=limit,
    )
    training.step(Batch(torch.tensor([[0.75]]), torch.zeros(1)))
    assert [-parameter.item() for parameter in model.parameters()] == pytest.approx([weight, bias], rel=4e-3)
    assert [-float(wide) for wide in training.state()["wide_weights"]] == pytest.approx(
        [weight, bias] if word == "bf16" else [], rel=1e-5
    )


def test_an_overflowing_step_is_skipped_with_clipping_too() -> None:
    training, data = stepper("amp-fp16", clip_gradient_norm=1.0), batch()
    training.step(data)
    before = [parameter.clone() for parameter in training.bare_model.parameters()]
    training.step(Batch(data.x * 1e6, data.y))
    assert all(torch.equal(a, b) for a, b in zip(before, training.bare_model.parameters(), strict=True))
