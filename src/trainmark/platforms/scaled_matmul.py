"""FP8 linear layers: matmuls of 8-bit operands with one scale per tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainmark.record.errors import UsageError
from trainmark.record.precision import E4M3, E5M2

MULTIPLE = 16
"""Every dimension of an FP8 matmul must be a multiple of this. Rows are padded with zeros; layers of other sizes stay
as they are."""
TINY = 2.0**-110
"""Used as the maximum of a tensor of zeros."""
_FORWARD, _GRADIENT = getattr(torch, E4M3), getattr(torch, E5M2)


def replace_linears(model: nn.Module) -> None:
    """Makes the linear layers of a network FP8, in place and with their weights.

    The last one, the head, stays as it is, as logits need more digits; so do layers of other sizes and subclasses with
    their own forward. UsageError where nothing is left.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    fitting = [layer for layer in linear[:-1] if type(layer).forward is nn.Linear.forward and _fits(layer)]
    if not fitting:
        raise UsageError(
            "fp8 has nothing to compute in this network: it has no linear layer beside its head whose sizes are "
            f"multiples of {MULTIPLE}; use bf16"
        )
    for layer in fitting:
        layer.__class__ = ScaledLinear


class ScaledLinear(nn.Linear):
    """Dynamic scaling of input and weights: cheap beside a matmul with thousands of rows, and without state."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if not (count := len(rows)):
            return super().forward(x)
        if padding := -count % MULTIPLE:
            rows = F.pad(rows, (0, 0, 0, padding))
        output: Tensor = _ScaledMatmul.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        output = output[:count].view(*x.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


class _ScaledMatmul(torch.autograd.Function):
    """Rows times transposed weights, forward and backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        narrow, unit = scale_to_type(rows, _FORWARD)
        narrow_weight, weight_unit = scale_to_type(weight, _FORWARD)
        ctx.save_for_backward(narrow, unit, narrow_weight, weight_unit)
        return multiply_scaled(narrow, unit, narrow_weight.t(), weight_unit, rows.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, unit, weight, weight_unit = ctx.saved_tensors
        dtype = gradients[0].dtype
        gradient, gradient_unit = scale_to_type(gradients[0], _GRADIENT)
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = multiply_scaled(gradient, gradient_unit, weight, weight_unit, dtype)
        if ctx.needs_input_grad[1]:
            of_weight = multiply_scaled(gradient.t(), gradient_unit, rows, unit, dtype)
        return of_rows, of_weight


def scale_to_type(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in an 8-bit type, and its inverse scale.

    Scales are powers of two, so that only the cast rounds.
    """
    largest = tensor.abs().amax().float().clamp(min=TINY)
    scale = torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / largest))).to(tensor.dtype)
    return (tensor * scale).to(dtype), scale.float().reciprocal()


def multiply_scaled(
    left: Tensor, left_unit: Tensor, right: Tensor, right_unit: Tensor, result: torch.dtype, *, fast: bool = False
) -> Tensor:
    """A matmul of two 8-bit matrices.

    Uses the operator that every torch since 2.6 has and torch.compile supports; the public name is newer. The left
    operand is row-major, the right column-major. `fast` accumulates with fewer digits, as is usual in the forward pass.
    """
    return torch._scaled_mm(
        left.contiguous(),
        right.t().contiguous().t(),
        scale_a=left_unit,
        scale_b=right_unit,
        out_dtype=result,
        use_fast_accum=fast,
    )


def train_small_layer(device: torch.device) -> None:
    """Forward and backward pass of a small layer; raises the error of a device that cannot run it."""
    layer = nn.Linear(MULTIPLE, MULTIPLE, device=device, dtype=torch.bfloat16)
    layer.__class__ = ScaledLinear
    rows = torch.ones(MULTIPLE, MULTIPLE, device=device, dtype=torch.bfloat16, requires_grad=True)
    layer(rows).float().sum().backward()


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0
