"""Linear layers on a CPU, where oneDNN multiplies many rows faster than the library torch takes for a product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads import onednn
from trainmark.workloads.on_cpu import on_cpu

LEAST_ROWS, LEAST_WEIGHTS = 512, 1 << 18
"""Below these the plain product is as fast."""


def take_over(model: nn.Module) -> None:
    """Has the large linear layers of a network multiply so, where they stand; those with a way of their own keep it."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.numel() >= LEAST_WEIGHTS:
            module.__class__ = FastLinear


class FastLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What F.linear gives, to rounding."""
    if not _pays(x, weight):
        return F.linear(x, weight, bias)
    product: Tensor = _FastProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product


def _pays(x: Tensor, weight: Tensor) -> bool:
    return (
        on_cpu(x)
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= LEAST_WEIGHTS
        and x.numel() >= LEAST_ROWS * x.shape[-1]
        and type(weight) in (Tensor, nn.Parameter)  # not a part of a weight that ranks share
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and onednn.multiplies(torch.float32)
    )


class _FastProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, weight = onednn.dense(x.reshape(-1, x.shape[-1])), onednn.dense(weight)
        ctx.save_for_backward(rows, weight)
        return onednn.product(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))
        to_x, to_weight, to_bias = ctx.needs_input_grad
        turned, wide = onednn.multiplies_turned_fast(), weight.shape[1] >= 2 * len(weight)
        return (
            _product(gradient, weight, turned).view(*gradients[0].shape[:-1], -1) if to_x else None,
            _product(gradient.t(), rows, turned and wide) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )


def _product(left: Tensor, right: Tensor, by_onednn: bool) -> Tensor:
    return onednn.product(onednn.dense(left), onednn.dense(right.t())) if by_onednn else left @ right
