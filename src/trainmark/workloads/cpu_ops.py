"""Linear layers on a CPU, where oneDNN multiplies many rows faster than the library torch takes for a product."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` of rows; the weight as it is or `arranged`, and either factor may be a turned view."""
    multiplied: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return multiplied


def dense(matrix: Tensor) -> Tensor:
    """The matrix, or a copy of it where its rows have gaps: such factors are multiplied number by number, 500 times as
    slowly."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def arranged(weight: Tensor, rows: int) -> Tensor:
    """A weight in the library's own layout, for many products with so many rows."""
    arranged: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return arranged


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """True where this torch has the operators for this type, and they multiply rightly."""
    rows, picks = torch.arange(128).view(2, 64).to(dtype), torch.eye(64, dtype=dtype)[:32]
    try:
        wanted = rows[:, :32]
        return (
            torch.equal(product(rows, picks), wanted)
            and torch.equal(product(rows, arranged(picks, 2)), wanted)
            and torch.equal(product(picks, rows), wanted.t())
            and torch.equal(product(rows[:, :32], picks.t()), rows * (torch.arange(64) < 32))
        )
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


@cache
def has_fast_transposed_matmul() -> bool:
    """True where turned factors are multiplied as fast as others: not without AVX512."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def on_cpu(tensor: Tensor) -> bool:
    """False also for tensors of shapes alone: these lie on a numbered CPU, as an accelerator's would."""
    return tensor.is_cpu and tensor.device.index is None


MIN_ROWS, MIN_WEIGHTS = 512, 1 << 18
"""Below these the plain product is as fast."""


def replace_linears(model: nn.Module) -> None:
    """Has the large linear layers of a network multiply so, where they stand; those with a way of their own keep it."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.numel() >= MIN_WEIGHTS:
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
        and weight.numel() >= MIN_WEIGHTS
        and x.numel() >= MIN_ROWS * x.shape[-1]
        and type(weight) in (Tensor, nn.Parameter)  # not a part of a weight that ranks share
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and multiplies(torch.float32)
    )


class _FastProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, weight = dense(x.reshape(-1, x.shape[-1])), dense(weight)
        ctx.save_for_backward(rows, weight)
        return product(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))
        to_x, to_weight, to_bias = ctx.needs_input_grad
        turned, wide = has_fast_transposed_matmul(), weight.shape[1] >= 2 * len(weight)
        return (
            _product(gradient, weight, turned).view(*gradients[0].shape[:-1], -1) if to_x else None,
            _product(gradient.t(), rows, turned and wide) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )


def _product(left: Tensor, right: Tensor, by_onednn: bool) -> Tensor:
    return product(dense(left), dense(right.t())) if by_onednn else left @ right


MIN_ELEMENTS = 1 << 13
"""Numbers below which four calls take as long as one."""


def tanh(x: Tensor, *, out: Tensor) -> Tensor:
    """Sigmoid takes a CPU a sixth of tanh's time, and float32 can spare the bits that this costs near 0."""
    if on_cpu(x) and x.dtype == torch.float32 and x.numel() >= MIN_ELEMENTS:
        return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)
    return torch.tanh(x, out=out)
