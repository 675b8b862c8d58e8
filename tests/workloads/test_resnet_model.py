"""The network is the ResNet-50 v1.5 that public checkpoints are for, name by name and shape by shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainmark.view.headline import loss_trend
from trainmark.workloads.resnet50.model import Bottleneck, ResNet
from trainmark.workloads.resnet50.workload import WORKLOAD, ResNet50Recipe

pytestmark = pytest.mark.usefixtures("one_thread")

Shape = tuple[int, ...]
STAGES = ((1, 3), (2, 4), (3, 6), (4, 3))


def expected_entries(width: int = 64, classes: int = 1000) -> dict[str, Shape]:
    """Names and shapes of the state_dict, from the network's published definition."""

    def norm(name: str, channels: int) -> Iterator[tuple[str, Shape]]:
        for entry in ("weight", "bias", "running_mean", "running_var"):
            yield f"{name}.{entry}", (channels,)
        yield f"{name}.num_batches_tracked", ()

    def entries() -> Iterator[tuple[str, Shape]]:
        yield "conv1.weight", (width, 3, 7, 7)
        yield from norm("bn1", width)
        inputs = width
        for stage, blocks in STAGES:
            planes = width << (stage - 1)
            for block in range(blocks):
                prefix = f"layer{stage}.{block}"
                shapes = ((planes, inputs, 1, 1), (planes, planes, 3, 3), (4 * planes, planes, 1, 1))
                for number, shape in enumerate(shapes, start=1):
                    yield f"{prefix}.conv{number}.weight", shape
                    yield from norm(f"{prefix}.bn{number}", shape[0])
                if block == 0:
                    yield f"{prefix}.downsample.0.weight", (4 * planes, inputs, 1, 1)
                    yield from norm(f"{prefix}.downsample.1", 4 * planes)
                inputs = 4 * planes
        yield "fc.weight", (classes, 32 * width)
        yield "fc.bias", (classes,)

    return dict(entries())


@pytest.fixture(scope="module")
def full() -> ResNet:
    torch.manual_seed(0)
    return ResNet()


def test_resnet50_has_the_published_number_of_parameters(full: ResNet) -> None:
    assert sum(parameter.numel() for parameter in full.parameters()) == 25_557_032
    assert len(list(full.parameters())) == 161
    assert len(full.state_dict()) == 320


def test_names_shapes_and_their_order_are_the_published_ones(full: ResNet) -> None:
    found = {name: tuple(value.shape) for name, value in full.state_dict().items()}
    assert list(found.items()) == list(expected_entries().items())


def test_the_3x3_carries_the_stride(full: ResNet) -> None:
    strided = {
        name for name, module in full.named_modules() if isinstance(module, nn.Conv2d) and module.stride == (2, 2)
    }
    assert strided == {
        "conv1",
        *(f"layer{stage}.0.{part}" for stage in (2, 3, 4) for part in ("conv2", "downsample.0")),
    }


def test_convolutions_start_he_normal_by_fan_out(full: ResNet) -> None:
    for name, module in full.named_modules():
        if isinstance(module, nn.Conv2d):
            expected = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            # a sample's spread is known to 1 / sqrt(2 n); five of those never fail by chance
            slack = 5 / math.sqrt(2 * module.weight.numel())
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=slack), name
            assert abs(float(module.weight.detach().mean())) < 5 * expected / math.sqrt(module.weight.numel()), name


def test_norms_start_neutral_and_the_last_layer_uniform(full: ResNet) -> None:
    for module in full.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert torch.equal(module.bias, torch.zeros_like(module.bias))
            assert (module.eps, module.momentum) == (1e-5, 0.1)
    bound = 1 / math.sqrt(2048)
    assert 0.99 * bound < float(full.fc.weight.detach().abs().max()) <= bound
    assert float(full.fc.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_zero_init_residual_makes_every_bottleneck_start_as_its_shortcut() -> None:
    model = ResNet(width=4, classes=3, zero_init_residual=True).eval()
    x = torch.rand(1, 16, 8, 8)
    assert torch.equal(model.layer1[1](x), x)
    for module in model.modules():
        if isinstance(module, Bottleneck):
            assert not module.bn3.weight.any()
            assert module.bn2.weight.all()


def test_memory_layout_changes_no_score_and_every_parameter_learns() -> None:
    torch.manual_seed(0)
    model, images = ResNet(width=4, classes=5), torch.rand(4, 3, 64, 64)
    plain = model(images)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    swapped = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(plain, swapped, rtol=1e-3, atol=1e-4)
    swapped.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.slow
def test_the_quick_recipe_learns_without_leaps_of_the_loss() -> None:
    """At the rate that the linear rule gives to 8 images, the loss of some later steps was far above the first."""
    recipe = WORKLOAD.recipes["quick"]
    assert isinstance(recipe, ResNet50Recipe)
    torch.manual_seed(0)
    model = WORKLOAD.build(recipe)
    optimizer = WORKLOAD.optimizer(model.parameters(), recipe)
    losses = []
    for _ in range(26):
        labels = torch.randint(0, 10, (recipe.batch_per_device,))
        images = torch.randn(len(labels), 3, 32, 32) + torch.linspace(-1, 1, 10)[labels][:, None, None, None]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert max(losses[13:]) < 0.75 * losses[0]
    assert loss_trend(losses) == "fell"
