"""LARS: momentum whose every layer steps by a share of its own weights' size, so that very large batches train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, optim

TRUST = 0.001
"""How large a step may be beside the weights it changes, at a learning rate of 1."""


class Lars(optim.Optimizer):
    """As MLPerf's reference of ResNet-50 does it: no epsilon; biases and norms by plain momentum without decay."""

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """All tensors at once; nothing is asked of the device, so that nothing waits for it."""
        for group in self.param_groups:
            with_gradient = [weight for weight in group["params"] if weight.grad is not None]
            layers = [weight for weight in with_gradient if weight.ndim > 1]
            if layers:
                self._move(layers, self._scaled(layers, group), group["momentum"])
            others = [weight for weight in with_gradient if weight.ndim <= 1]
            if others:
                steps = torch._foreach_mul([_gradient(weight) for weight in others], group["lr"])
                self._move(others, steps, group["momentum"])

    def _scaled(self, layers: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Each layer's gradient with its decay, brought to the length its weights allow."""
        gradients, decay = [_gradient(weight) for weight in layers], group["weight_decay"]
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


def _gradient(weight: Tensor) -> Tensor:
    found = weight.grad
    if found is None:
        raise ValueError("this weight has no gradient")
    return found
