"""Linear layers on a CPU by oneDNN, whose GEMM is faster for many rows than torch's default BLAS."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`; the weight plain or from `prepack`, and either operand may be a transposed view."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return output


def make_dense(matrix: Tensor) -> Tensor:
    """The matrix, or a contiguous copy if its rows have gaps: the GEMM of such operands is 500 times slower."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def prepack(weight: Tensor, rows: int) -> Tensor:
    """A weight in oneDNN's blocked layout, for many matmuls with this many rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return packed


@cache
def has_matmul(dtype: torch.dtype) -> bool:
    """True if this torch has the operators for this type, and their results are correct."""
    rows, picks = torch.arange(128).view(2, 64).to(dtype), torch.eye(64, dtype=dtype)[:32]
    try:
        wanted = rows[:, :32]
        return (
            torch.equal(matmul(rows, picks), wanted)
            and torch.equal(matmul(rows, prepack(picks, 2)), wanted)
            and torch.equal(matmul(picks, rows), wanted.t())
            and torch.equal(matmul(rows[:, :32], picks.t()), rows * (torch.arange(64) < 32))
        )
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


@cache
def has_fast_transposed_matmul() -> bool:
    """True if transposed operands are as fast as others, which needs AVX512."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def is_on_cpu(tensor: Tensor) -> bool:
    """False also for fake tensors, which lie on a numbered CPU."""
    return tensor.is_cpu and tensor.device.index is None


MIN_ROWS, MIN_WEIGHTS = 512, 1 << 18
"""Below these F.linear is as fast."""


class FastLinear(nn.Linear):
    """A linear layer that multiplies by oneDNN on a CPU, and by torch elsewhere."""

    is_plain = True
    """It computes what nn.Linear does, so that FP8 may take its place."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear, up to rounding."""
    if not _is_faster(x, weight):
        return F.linear(x, weight, bias)
    output: Tensor = _FastMatmul.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def _is_faster(x: Tensor, weight: Tensor) -> bool:
    return (
        is_on_cpu(x)
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= MIN_WEIGHTS
        and x.numel() >= MIN_ROWS * x.shape[-1]
        and type(weight) in (Tensor, nn.Parameter)  # not a shard of a weight
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and has_matmul(torch.float32)
    )


class _FastMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, weight = make_dense(x.reshape(-1, x.shape[-1])), make_dense(weight)
        ctx.save_for_backward(rows, weight)
        return matmul(rows, weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(weight))
        to_x, to_weight, to_bias = ctx.needs_input_grad
        transposed, wide = has_fast_transposed_matmul(), weight.shape[1] >= 2 * len(weight)
        return (
            _matmul(gradient, weight, transposed).view(*gradients[0].shape[:-1], -1) if to_x else None,
            _matmul(gradient.t(), rows, transposed and wide) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )


def _matmul(left: Tensor, right: Tensor, by_onednn: bool) -> Tensor:
    return matmul(make_dense(left), make_dense(right.t())) if by_onednn else left @ right


MIN_ELEMENTS = 1 << 13
"""Size below which four kernel calls take as long as one."""


def tanh(x: Tensor, *, out: Tensor) -> Tensor:
    """tanh by sigmoid, which takes a sixth of the time on a CPU and loses a few bits of float32 near 0."""
    if is_on_cpu(x) and x.dtype == torch.float32 and x.numel() >= MIN_ELEMENTS:
        return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)
    return torch.tanh(x, out=out)
