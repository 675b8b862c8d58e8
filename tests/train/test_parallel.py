"""Gradients are exchanged while backward computes, and the clock learns when only the exchange is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from support.gloo_ranks import on_ranks
from support.tiny import Points
from torch import Tensor, distributed, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.precision import Precision
from trainmark.train import setup
from trainmark.train.clock import Clock
from trainmark.train.parallel import DataParallel
from trainmark.train.stepper import Stepper

HELD_BACK_S = 0.05


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Log:
    """Is told what the clock would be told."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin_exchange(self) -> None:
        self._log.append("last are ready")

    def end_exchange(self) -> None:
        self._log.append("backward returned")


@pytest.mark.usefixtures("process_group")
def test_the_last_gradients_are_announced_once_a_step_when_all_are_computed() -> None:
    log: list[str] = []
    torch.manual_seed(0)
    # more than the first bucket holds, so that there are several
    model = nn.Sequential(nn.Linear(8, 600), nn.Linear(600, 600), nn.Linear(600, 600), nn.Linear(600, 1))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(lambda name, _: log.append(name), name))
    device = Platform(files.load("cpu")).open(0)
    parallel = DataParallel(device, Log(log)).wrap(model)
    for _ in range(3):
        log.clear()
        parallel(torch.ones(4, 8)).sum().backward()
        log.append("backward returned")
        computed, announced = log[:-2], log[-2:]
        assert sorted(computed) == sorted(name for name, _ in model.named_parameters())
        assert announced == ["last are ready", "backward returned"]


def fit(world: int) -> Stepper:
    device = Platform(files.load("cpu")).open(0)
    torch.manual_seed(0)
    return Stepper(
        nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        loss=lambda model, data: (model(data.x) - data.y).square().mean(),
        precision=Precision.parse("fp32"),
        device=device,
        parallel=DataParallel(device) if world > 1 else None,
    )


def train_share(data: dict[str, Tensor], ends: list[int]) -> dict[str, Any]:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    first, last = ([0, *ends])[rank], ends[rank]
    share = Points(x=data["x"][first:last], y=data["y"][first:last], count=last - first, global_count=ends[-1])
    stepper = fit(world)
    losses = [stepper.step(share) for _ in range(3)]
    return {"losses": torch.stack(losses), "weight": stepper.bare_model.state_dict()["0.weight"]}


@pytest.mark.slow
@pytest.mark.parametrize("ends", [[5, 8], [1, 3, 8]])
def test_ranks_train_as_one_would_on_all_samples_and_the_mean_of_their_losses_is_its_loss(ends: list[int]) -> None:
    x = torch.linspace(-1, 1, 8).unsqueeze(1)
    data = {"x": x, "y": 3 * x + 1}
    alone = fit(1)
    losses = torch.stack([alone.step(Points(x=x, y=3 * x + 1, count=8, global_count=8)) for _ in range(3)])
    found = on_ranks(len(ends), train_share, data, ends)
    torch.testing.assert_close(sum(rank["losses"] for rank in found) / len(ends), losses)
    for rank in found:
        torch.testing.assert_close(rank["weight"], alone.bare_model.state_dict()["0.weight"])


def one_step_with_a_slow_rank() -> int:
    """Rank 1 computes on for a while after rank 0 has told it that its own gradients are ready."""
    store = distributed.distributed_c10d._get_default_store()
    device = Platform(files.load("cpu")).open(0)
    slow = distributed.get_rank() == 1

    class Telling(Clock):
        def begin_exchange(self) -> None:
            super().begin_exchange()
            if not slow:
                store.set("rank 0 waits", "")

    clock = Telling(device.marks, device.synchronize)

    def hold_back(gradient: Tensor) -> None:
        store.get("rank 0 waits")
        time.sleep(HELD_BACK_S)

    parallel = DataParallel(device, clock)
    model = parallel.wrap(nn.Linear(4, 1))
    with clock.training():
        for x in clock.waiting_for([torch.ones(2, 4)]):
            out = model(x)
            if slow:
                out.register_hook(hold_back)
            out.sum().backward()
            parallel.after_backward()
            clock.end_step(len(x))
    [step] = clock.finished_steps()
    assert 0 <= step.exchange_ns <= step.compute_ns
    return step.exchange_ns


@pytest.mark.slow
def test_the_wait_for_a_slow_rank_is_in_the_exchange_of_the_others() -> None:
    waited_ns, _ = on_ranks(2, one_step_with_a_slow_rank)
    assert waited_ns >= 1e9 * HELD_BACK_S


def test_weights_that_are_tied_stay_tied_where_torch_makes_new_parameters() -> None:
    """As Module.to does on every device of a plugin; on a CPU torch has a switch for it."""
    network = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    network["head"].weight = network["table"].weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        before = network["table"].weight
        moved = setup.move_model(network, torch.device("cpu"), torch.contiguous_format)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert moved.get_parameter("table.weight") is not before
    assert moved.get_parameter("head.weight") is moved.get_parameter("table.weight")
