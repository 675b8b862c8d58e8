"""ResNet-50 on ImageNet-1k, with the recipe of the published tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, optim

from trainmark.record.errors import UsageError
from trainmark.record.recipe import knob
from trainmark.workloads.resnet50.model import ResNet
from trainmark.workloads.vision import ImageClassifier, VisionRecipe, sgd
from trainmark.workloads.workload import KnownWorkload, Progress

TRUST = 0.001
"""Trust coefficient: norm of a step relative to its weights, at a learning rate of 1."""


class Lars(optim.Optimizer):
    """LARS as in MLPerf's ResNet-50 reference: no epsilon; biases and norms use plain momentum without decay."""

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """All tensors at once, without a device sync."""
        for group in self.param_groups:
            with_gradient = [weight for weight in group["params"] if weight.grad is not None]
            layers = [weight for weight in with_gradient if weight.ndim > 1]
            if layers:
                self._move(layers, self._scale_gradients(layers, group), group["momentum"])
            others = [weight for weight in with_gradient if weight.ndim <= 1]
            if others:
                steps = torch._foreach_mul([_get_gradient(weight) for weight in others], group["lr"])
                self._move(others, steps, group["momentum"])

    def _scale_gradients(self, layers: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Each layer's decayed gradient, scaled to the trust ratio."""
        gradients, decay = [_get_gradient(weight) for weight in layers], group["weight_decay"]
        sizes = torch.stack(torch._foreach_norm(layers))
        slopes = torch.stack(torch._foreach_norm(gradients))
        trust = TRUST * sizes / (slopes + decay * sizes)
        rates = group["lr"] * torch.where((sizes > 0) & (slopes > 0), trust, torch.ones_like(trust))
        steps = torch._foreach_add(gradients, layers, alpha=decay)
        torch._foreach_mul_(steps, list(rates.unbind()))
        return list(steps)

    def _move(self, weights: list[Tensor], steps: Iterable[Tensor], momentum: float) -> None:
        moving = []
        for weight in weights:
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            moving.append(state["momentum_buffer"])
        torch._foreach_mul_(moving, momentum)
        torch._foreach_add_(moving, list(steps))
        torch._foreach_sub_(weights, moving)


def _get_gradient(weight: Tensor) -> Tensor:
    found = weight.grad
    if found is None:
        raise ValueError("this weight has no gradient")
    return found


@dataclass(frozen=True, kw_only=True)
class ResNet50Recipe(VisionRecipe):
    width: int = knob(64, least=4)
    """Channels of the first stage; 64 is the full-size network."""
    momentum: float = knob(0.9, least=0)
    zero_init_residual: bool = knob(False)
    """Every bottleneck starts as its shortcut, without which a deep and narrow network barely learns."""
    optimizer: str = knob("sgd", words=("sgd", "lars"))
    schedule: str = knob("steps", words=("steps", "cosine", "poly"))
    decay_every_epochs: float = knob(30.0, least=0.01)
    """For `steps`: how often the learning rate is multiplied by `decay_factor`."""
    decay_factor: float = knob(0.1, least=0)
    warmup_epochs: float = knob(0.0, least=0)
    """Linear warm-up from 0."""
    end_learning_rate: float = knob(0.0, least=0)
    """For `poly`: the final learning rate."""
    decay_power: float = knob(2.0, least=0)
    """For `poly`: the exponent of the decay."""


def torchvision_config(recipe: ResNet50Recipe) -> dict[str, object]:
    if recipe.width != ResNet50Recipe.width:
        raise UsageError(f"torchvision's resnet50 has width {RECIPES['reference'].width}, and this run {recipe.width}")
    return {"builder": "resnet50", "arguments": {"num_classes": recipe.classes}}


class ResNet50(ImageClassifier, KnownWorkload):
    exports: Mapping[str, Callable[[ResNet50Recipe], dict[str, object]]] = {"torchvision": torchvision_config}

    def build(self, recipe: ResNet50Recipe) -> nn.Module:
        return ResNet(width=recipe.width, classes=recipe.classes, zero_init_residual=recipe.zero_init_residual)

    def optimizer(self, parameters: Iterable[Tensor], recipe: ResNet50Recipe) -> torch.optim.Optimizer:
        if recipe.optimizer == "lars":
            rates = {"lr": recipe.learning_rate, "momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
            return Lars(parameters, **rates)
        return sgd(parameters, recipe, recipe.momentum)

    def learning_rate(self, recipe: ResNet50Recipe, progress: Progress) -> float:
        rate, epoch = recipe.learning_rate, progress.epoch
        if epoch < recipe.warmup_epochs:
            return rate * epoch / recipe.warmup_epochs
        if recipe.schedule == "poly":
            left = 1 - (epoch - recipe.warmup_epochs) / max(recipe.epochs - recipe.warmup_epochs, 1e-9)
            fallen: float = max(0.0, left) ** recipe.decay_power
            return recipe.end_learning_rate + (rate - recipe.end_learning_rate) * fallen
        if recipe.schedule == "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * epoch / recipe.epochs))
        return rate * recipe.decay_factor ** math.floor(epoch / recipe.decay_every_epochs)


WORKLOAD = ResNet50("resnet50", ResNet50Recipe)
RECIPES = WORKLOAD.recipes
