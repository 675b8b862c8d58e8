"""A step trains in every precision, and a short batch counts for what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.train.parallel import DataParallel, OneDevice
from trainmark.train.stepper import Stepper


@dataclass(frozen=True, eq=False)
class Batch:
    x: Tensor
    y: Tensor
    count: int = 16
    global_count: int = 16

    def parts(self, count: int) -> list[Batch]:
        cuts = zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True)
        return [Batch(x, y, len(x), self.global_count) for x, y in cuts if len(x)]

    def rows(self, first: int, last: int, global_count: int | None = None) -> Batch:
        return Batch(self.x[first:last], self.y[first:last], last - first, global_count or last - first)


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


class Among(OneDevice):
    """One of several ranks whose gradients somebody else averages."""

    def __init__(self, world: int) -> None:
        super().__init__()
        self.world = world


def stepper(
    word: str,
    model: nn.Module | None = None,
    world: int = 1,
    *,
    clip_gradient_norm: float = 0.0,
    accumulate: int = 1,
    parallel: OneDevice | None = None,
) -> Stepper:
    return Stepper(
        model or network(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        loss=loss,
        precision=Precision.parse(word),
        device=Platform(files.load("cpu")).open(0),
        parallel=parallel or Among(world),
        clip_gradient_norm=clip_gradient_norm,
        accumulate=accumulate,
    )


RUNS_ON_A_CPU = [name for name in PRECISIONS if name != "tf32"]


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2))


@pytest.mark.parametrize("word", RUNS_ON_A_CPU)
def test_the_loss_falls_in_every_precision(word: str) -> None:
    training, data = stepper(word, two_layers() if PRECISIONS[word].scaled else None), batch()
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
    before = training.state()["master_weights"][0].clone()
    training.step(batch())
    assert not torch.equal(training.state()["master_weights"][0], before)


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
        torch.manual_seed(3)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
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
    assert [-float(wide) for wide in training.state()["master_weights"]] == pytest.approx(
        [weight, bias] if word == "bf16" else [], rel=1e-5
    )


def test_an_overflowing_step_is_skipped_with_clipping_too() -> None:
    training, data = stepper("amp-fp16", clip_gradient_norm=1.0), batch()
    training.step(data)
    before = [parameter.clone() for parameter in training.bare_model.parameters()]
    training.step(Batch(data.x * 1e6, data.y))
    assert all(torch.equal(a, b) for a, b in zip(before, training.bare_model.parameters(), strict=True))


def classifier() -> nn.Module:
    """Without batch norm, by which a sample's gradient would depend on the samples beside it."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Tanh(), nn.Linear(6, 2))


def update(
    data: Batch, word: str = "fp32", *, world: int = 1, clip_gradient_norm: float = 0.0, accumulate: int = 1
) -> tuple[Tensor, Tensor]:
    """A batch's loss, and what one step on it takes from all weights."""
    model = classifier()
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    training = stepper(word, model, world, clip_gradient_norm=clip_gradient_norm, accumulate=accumulate)
    loss = training.step(data)
    return loss, before - nn.utils.parameters_to_vector(model.parameters()).detach()


def test_ranks_of_unlike_shares_cut_into_micro_batches_make_the_step_of_all_samples() -> None:
    """Two ranks with 7 and 3 of 10 samples in micro-batches, averaged as DDP does."""
    data = batch()
    shares = (data.rows(0, 7, 10), data.rows(7, 10, 10))
    (loss, one), (other_loss, other) = (update(rows, world=2, accumulate=2) for rows in shares)
    whole_loss, whole = update(data.rows(0, 10))
    torch.testing.assert_close((one + other) / 2, whole)
    torch.testing.assert_close((loss + other_loss) / 2, whole_loss)


class Exchanging(OneDevice):
    """Writes down the micro-batches whose gradients would be exchanged, and those whose gradients stay here."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.word = "exchanged"

    def wrap(self, model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(self._note)
        return model

    def _note(self, model: nn.Module, inputs: tuple[Tensor]) -> None:
        inputs[0].register_hook(lambda gradient: self.log.append(f"backward {self.word}"))
        self.log.append(f"forward {self.word}")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.word = "kept"
        yield
        self.word = "exchanged"


@pytest.mark.parametrize(("samples", "accumulate", "kept"), [(8, 1, 0), (8, 2, 1), (7, 4, 3), (1, 4, 0)])
def test_only_the_last_micro_batch_exchanges_gradients(samples: int, accumulate: int, kept: int) -> None:
    parallel = Exchanging()

    def watched(model: nn.Module, data: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(data.x.clone().requires_grad_()), data.y)

    training = Stepper(
        classifier(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        loss=watched,
        precision=Precision.parse("fp32"),
        device=Platform(files.load("cpu")).open(0),
        parallel=parallel,
        accumulate=accumulate,
    )
    training.step(batch().rows(0, samples))
    assert parallel.log == ["forward kept", "backward kept"] * kept + ["forward exchanged", "backward exchanged"]


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ddp_exchanges_the_sum_of_all_micro_batches_once_a_step() -> None:
    log: list[str] = []

    class Timer:
        def begin_exchange(self) -> None:
            log.append("ready")

        def end_exchange(self) -> None:
            log.append("backward returned")

    data, plain = batch().rows(0, 7), stepper("fp32", classifier())
    parallel = DataParallel(Platform(files.load("cpu")).open(0), Timer())
    training = stepper("fp32", classifier(), accumulate=3, parallel=parallel)
    for _ in range(2):
        torch.testing.assert_close(training.step(data), plain.step(data))
        assert log == ["backward returned", "backward returned", "ready", "backward returned"]
        log.clear()
    for ours, theirs in zip(training.bare_model.parameters(), plain.bare_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_whoever_shares_the_work_may_change_the_weights_before_the_optimizer_sees_them_and_clips_and_saves() -> None:
    """What a way that shards weights needs, and plain replicas do not show."""

    class Halving(OneDevice):
        def wrap(self, model: nn.Module) -> nn.Module:
            linear = model.get_submodule("2")
            linear.weight = nn.Parameter(linear.weight.detach()[:1].clone())
            linear.bias = nn.Parameter(linear.bias.detach()[:1].clone())
            return model

        def clip_gradients(self, parameters: Iterable[Tensor], norm: float) -> None:
            clipped.extend(tuple(parameter.shape) for parameter in parameters)

        def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
            return {**super().state(model, optimizer), "whole": True}

    clipped: list[tuple[int, ...]] = []
    model = nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(192, 2))
    training = Stepper(
        model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        loss=lambda model, data: model(data.x).square().mean(),
        precision=Precision.parse("fp32"),
        device=Platform(files.load("cpu")).open(0),
        parallel=Halving(),
        clip_gradient_norm=1.0,
    )
    before = training.state()["model"]["2.weight"].clone()
    training.step(batch())
    assert clipped == [(1, 192), (1,)]
    assert training.state()["whole"]
    assert not torch.equal(training.state()["model"]["2.weight"], before)
