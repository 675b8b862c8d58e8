"""Linear layers whose products have factors of eight bits, each tensor scaled to fill what those can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainmark.record.errors import UsageError
from trainmark.record.precision import E4M3, E5M2

MULTIPLE = 16
"""What every side of a product must be a multiple of: units for eight bits take so many numbers at once. Rows that are
missing are added as zeros; layers with other sizes are left as they are."""
TINY = 2.0**-110
"""Taken for the largest number of a tensor of zeros."""
_FORWARD, _GRADIENT = getattr(torch, E4M3), getattr(torch, E5M2)


def replace_linears(model: nn.Module) -> None:
    """Has the linear layers of a network scale their factors, each where it stands and with the weights it has.

    The last one stays as it is: the head, whose scores need more digits. So do sizes that do not fit, layers with a
    way of their own, and all that is not a linear layer. UsageError where nothing is left.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    fitting = [layer for layer in linear[:-1] if type(layer).forward is nn.Linear.forward and _fits(layer)]
    if not fitting:
        raise UsageError(
            "fp8 has nothing to compute in this network: it has no linear layer beside its head whose sizes are "
            f"multiples of {MULTIPLE}; take bf16"
        )
    for layer in fitting:
        layer.__class__ = ScaledLinear


class ScaledLinear(nn.Linear):
    """Scales input and weights as they are, each time: beside a product with thousands of rows that is little work,
    and nothing is kept that a step, or another rank's part of the weights, would make old."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if not (count := len(rows)):
            return super().forward(x)
        if lacking := -count % MULTIPLE:
            rows = F.pad(rows, (0, 0, 0, lacking))
        product: Tensor = _ScaledMatmul.apply(rows, self.weight)  # type: ignore[no-untyped-call]
        product = product[:count].view(*x.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias


class _ScaledMatmul(torch.autograd.Function):
    """Rows times weights, and back."""

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
    """The tensor in eight bits, and what its 1 stands for.

    Scales are powers of two: multiplying by one rounds nothing, so only the change of type does.
    """
    largest = tensor.abs().amax().float().clamp(min=TINY)
    scale = torch.exp2(torch.floor(torch.log2(torch.finfo(dtype).max / largest))).to(tensor.dtype)
    return (tensor * scale).to(dtype), scale.float().reciprocal()


def multiply_scaled(
    left: Tensor, left_unit: Tensor, right: Tensor, right_unit: Tensor, result: torch.dtype, *, fast: bool = False
) -> Tensor:
    """The product of two matrices of eight bits.

    By the operator that every torch since 2.6 has and torch.compile knows; the public name came later. Devices take the
    left by rows and the right by columns. `fast` lets them add up with fewer digits, as is usual on the way forward.
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
    """One small layer there and back; raises what the device says where it cannot do that."""
    layer = nn.Linear(MULTIPLE, MULTIPLE, device=device, dtype=torch.bfloat16)
    layer.__class__ = ScaledLinear
    rows = torch.ones(MULTIPLE, MULTIPLE, device=device, dtype=torch.bfloat16, requires_grad=True)
    layer(rows).float().sum().backward()


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0
