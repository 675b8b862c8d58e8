"""A step is counted for what it is: products, bytes, launches and waits, each where it was asked for."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainmark.features.flops import counted_step
from trainmark.features.flops.operator_count import ACCELERATOR, OperatorCount
from trainmark.features.flops.step_count import BACKWARD, FORWARD, StepCount

ROWS, READ, WRITTEN = 5, 8, 4


def operators(count: StepCount, part: str, layer: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for launch, times in count.launches:
        if (launch.part, launch.layer) == (part, layer):
            found[launch.operator] += times
    return found


def test_a_linear_layer_multiplies_once_forward_and_once_for_its_weights() -> None:
    with counted_step.fake_device():
        model = nn.Sequential(nn.Linear(READ, WRITTEN))
        x = torch.empty(ROWS, READ)
        with OperatorCount(model) as counter:
            model(x).sum().backward()
    count = counter.result()
    assert operators(count, FORWARD, "0") == {"addmm": 1}
    assert operators(count, BACKWARD, "0") == {"mm": 1, "sum": 1}  # no gradient is wanted of what it read
    assert count.flops == 2 * 2 * ROWS * READ * WRITTEN
    [product] = [launch for launch, _ in count.launches if launch.operator == "addmm"]
    assert product.bytes == 4 * (WRITTEN + ROWS * READ + READ * WRITTEN + ROWS * WRITTEN)
    assert product.type == "float32"


def test_views_and_fresh_memory_are_no_launches() -> None:
    with counted_step.fake_device(), OperatorCount() as counter:
        x = torch.empty(ROWS, READ)
        x.t().reshape(READ, 1, ROWS)[2:4].unsqueeze(0).expand(3, -1, -1, -1)
        torch.empty_like(x)
    assert counter.result() == StepCount(launches=(), copied_bytes=0, waits=())


def test_what_is_written_in_place_is_read_too_and_what_is_overwritten_is_not() -> None:
    with counted_step.fake_device(), OperatorCount() as counter:
        x, y = torch.empty(100), torch.empty(100)
        x.add_(y)
        x.copy_(y)
        torch.mul(x, y, out=torch.empty(100))
        x.mul_(torch.empty(1).expand(100))  # one number in memory, however often it is used
    moved = [(launch.operator, launch.bytes) for launch, _ in counter.result().launches]
    assert moved == [("add_", 1200), ("copy_", 800), ("mul", 1200), ("mul_", 804)]


def test_the_host_waits_where_it_reads_a_number_and_copies_where_it_gives_one() -> None:
    with counted_step.fake_device(), OperatorCount() as counter:
        x = torch.empty(100)
        assert x.sum().item() == 0.0
        x.to("cpu")
        torch.empty(25, device="cpu").to(ACCELERATOR)
    count = counter.result()
    assert dict(count.waits) == {"_local_scalar_dense": 1, "_to_copy": 1}
    assert count.copied_bytes == 100


def test_work_of_the_host_is_no_launch() -> None:
    with counted_step.fake_tensors(), OperatorCount() as counter:
        torch.empty(100, device="cpu").add_(1)
    assert counter.result().launched == 0


def test_what_is_computed_again_counts_as_the_way_back() -> None:
    with counted_step.fake_device():
        model = nn.Sequential(nn.Linear(READ, WRITTEN), nn.Tanh())
        x = torch.empty(ROWS, READ, requires_grad=True)
        with OperatorCount(model) as counter:
            checkpoint(model, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert operators(counter.result(), FORWARD, "0")["addmm"] == 1
    assert operators(counter.result(), BACKWARD, "0")["addmm"] == 1


def test_counting_changes_nothing_of_a_real_step() -> None:
    def step(counted: bool) -> torch.Tensor:
        torch.manual_seed(1)
        model, x = nn.Linear(READ, WRITTEN), torch.ones(ROWS, READ)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if counted:
            with OperatorCount(device=torch.device("cpu")):
                model(x).square().sum().backward()
                optimizer.step()
        else:
            model(x).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(step(counted=False), step(counted=True))
