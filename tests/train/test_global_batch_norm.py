"""A batch norm over all ranks is the batch norm of their batches put together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support.gloo_ranks import on_ranks
from support.tiny import Points
from torch import Tensor, distributed, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision
from trainmark.train.parallel import DataParallel, GlobalBatchNorm, convert_batch_norms
from trainmark.train.setup import build_stepper
from trainmark.train.stepper import Stepper
from trainmark.workloads.resnet50.workload import RECIPES, WORKLOAD

REFERENCE = RECIPES["reference"]
SMOKE = RECIPES["smoke"]


CHANNELS = 5
SHARES = {2: (2, 5), 3: (1, 4, 2)}
"""How many of seven samples each rank has."""


@dataclass(frozen=True, kw_only=True)
class Case:
    norm: type[nn.BatchNorm1d] | type[nn.BatchNorm2d] = nn.BatchNorm2d
    size: tuple[int, ...] = (6, 4)
    offset: float = 0.5
    spread: float = 2.0
    momentum: float | None = 0.1
    affine: bool = True
    form: torch.memory_format = torch.contiguous_format
    dtype: torch.dtype = torch.float32

    def make(self) -> nn.Module:
        norm = self.norm(CHANNELS, momentum=self.momentum, affine=self.affine)
        if self.affine:
            nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
            nn.init.normal_(norm.bias, generator=torch.Generator().manual_seed(2))
        return norm

    def batches(self) -> tuple[Tensor, Tensor]:
        """Two batches of seven samples: what comes in, and the gradient of what goes out."""
        generator = torch.Generator().manual_seed(3)
        x, of_y = torch.randn(2, 7, CHANNELS, *self.size, generator=generator)
        x = (self.spread * x + self.offset).to(self.dtype).contiguous(memory_format=self.form)
        return x, of_y.to(self.dtype).contiguous(memory_format=self.form)


CASES = {
    "pictures": Case(),
    "pictures with their channels last": Case(form=torch.channels_last),
    "clips": Case(norm=nn.BatchNorm1d, size=(9,)),
    "single numbers": Case(norm=nn.BatchNorm1d, size=()),
    "an average over all batches": Case(momentum=None),
    "neither weight nor bias": Case(affine=False),
    "half of the bits": Case(dtype=torch.bfloat16),
    "a mean a thousand times the spread": Case(offset=100.0, spread=0.1),
}


def _through(norm: nn.Module, x: Tensor, of_y: Tensor) -> dict[str, Any]:
    """Two steps on the same batch, so that the running statistics have a past, and an evaluation."""
    for _ in range(2):
        norm.zero_grad()
        own = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        y = norm(own)
        y.backward(of_y)
    assert own.grad is not None
    return {
        "y": y.detach(),
        "of x": own.grad,
        **{f"of {name}": parameter.grad for name, parameter in norm.named_parameters()},
        **dict(norm.named_buffers()),
        "evaluated": norm.eval()(x).detach(),
    }


def _all_cases() -> dict[str, dict[str, Any]]:
    rank, sizes = distributed.get_rank(), SHARES[distributed.get_world_size()]
    found = {}
    for name, case in CASES.items():
        x, of_y = (batch.split(sizes)[rank] for batch in case.batches())
        found[name] = _through(convert_batch_norms(case.make(), on_cpu=True, exchange=nullcontext), x, of_y)
    found["training"] = _trained(rank, sizes)
    return found


def _trained(rank: int = 0, shares: tuple[int, ...] = (7,)) -> dict[str, Tensor]:
    """The state of a small network after three steps on seven samples."""
    torch.manual_seed(4)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(96, 2))
    )
    x, y = torch.randn(7, 3, 6, 6), torch.randn(7, 2)
    world = len(shares)
    training = Stepper(
        model if world == 1 else convert_batch_norms(model, on_cpu=True, exchange=nullcontext),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        loss=lambda model, batch: (model(batch.x) - batch.y).square().mean(),
        precision=Precision.parse("fp32"),
        device=Platform(files.load("cpu")).open(0),
        parallel=DataParallel(Platform(files.load("cpu")).open(0)) if world > 1 else None,
    )
    mine = Points(x=x.split(shares)[rank], y=y.split(shares)[rank], count=shares[rank], global_count=7)
    for _ in range(3):
        training.step(mine)
    return dict(training.bare_model.state_dict())


@pytest.fixture(scope="module", params=sorted(SHARES))
def ranks(request: pytest.FixtureRequest) -> list[dict[str, dict[str, Any]]]:
    """What every rank found in every case."""
    return on_ranks(request.param, _all_cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_with_unlike_shares_compute_what_one_norm_does_on_all_samples(
    ranks: list[dict[str, dict[str, Any]]], name: str
) -> None:
    case, found = CASES[name], [rank[name] for rank in ranks]
    x, of_y = case.batches()
    exact = _through(case.make().double(), x.double(), of_y.double())
    together = {key: torch.cat([rank[key] for rank in found]) for key in ("y", "of x", "evaluated")}
    # what plain batch norm in float32 is off by itself grows with mean / spread; bfloat16 keeps 8 bits
    tolerance = 0.03 if case.dtype == torch.bfloat16 else 2e-6 * (1 + abs(case.offset) / case.spread)
    for key, value in together.items():
        assert value.dtype == case.dtype
        torch.testing.assert_close(value.double(), exact[key], rtol=tolerance, atol=tolerance)
    for key in set(exact) - set(together):
        if key.startswith("of "):  # a rank has the part of its own samples; exchanging them is not the norm's work
            value = torch.stack([rank[key] for rank in found]).double().sum(0)
            torch.testing.assert_close(value, exact[key], rtol=tolerance, atol=10 * tolerance)
        else:
            for rank in found:
                torch.testing.assert_close(rank[key].double(), exact[key].double(), rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_channels_that_came_last_stay_last(ranks: list[dict[str, dict[str, Any]]]) -> None:
    for rank in ranks:
        for key in ("y", "of x"):
            shape = rank["pictures with their channels last"][key]
            assert shape.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow
def test_a_small_variance_far_from_zero_is_not_lost(ranks: list[dict[str, dict[str, Any]]]) -> None:
    case = CASES["a mean a thousand times the spread"]
    variance = case.batches()[0].double().var((0, 2, 3))
    for rank in ranks:
        found = rank["a mean a thousand times the spread"]["running_var"].double()
        torch.testing.assert_close((found - 0.81) / 0.19, variance, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_network_trained_on_several_ranks_is_the_one_trained_on_one(ranks: list[dict[str, dict[str, Any]]]) -> None:
    alone = _trained()
    for rank in ranks:
        assert list(rank["training"]) == list(alone)
        for name, value in rank["training"].items():
            torch.testing.assert_close(value, alone[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("on_cpu", "kind"), [(True, GlobalBatchNorm), (False, nn.SyncBatchNorm)])
def test_only_batch_norms_are_replaced_and_the_state_stays_what_it_was(on_cpu: bool, kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Sequential(nn.BatchNorm1d(4, eps=0.1, momentum=0.3)))
    model(torch.randn(6, 3))
    before = deepcopy(model.state_dict())
    converted = convert_batch_norms(model.eval(), on_cpu, nullcontext)
    assert [type(module) for module in converted.modules()] == [
        nn.Sequential,
        nn.Linear,
        nn.LayerNorm,
        nn.Sequential,
        kind,
    ]
    norm = converted.get_submodule("2.0")
    assert (norm.eps, norm.momentum, norm.training) == (0.1, 0.3, False)
    torch.testing.assert_close(converted.state_dict(), before, rtol=0, atol=0)


def test_a_batch_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="not a tensor of 1 dimensions"):
        GlobalBatchNorm(3)(torch.zeros(3))


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("recipe", "world", "replaced"), [(SMOKE, 2, True), (SMOKE, 1, False), (REFERENCE, 2, False)])
def test_smoke_on_several_devices_norms_over_all_of_them_and_reference_never_does(
    recipe: Any, world: int, replaced: bool
) -> None:
    device = Platform(files.load("cpu")).open(0)
    opened = build_stepper(WORKLOAD, replace(recipe, width=4), Precision.parse("fp32"), device, world)
    norms = [module for module in opened.bare_model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 53
    assert {isinstance(norm, GlobalBatchNorm) for norm in norms} == {replaced}


def test_micro_batches_and_norms_over_all_devices_do_not_go_together() -> None:
    device = Platform(files.load("cpu")).open(0)
    with pytest.raises(UsageError, match="all-devices does not work with accumulate=2"):
        build_stepper(WORKLOAD, replace(SMOKE, width=4, accumulate=2), Precision.parse("fp32"), device, 2)
