"""A CPU's products by oneDNN's own operators, which are private to torch: tried before they are trusted."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


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
def multiplies_turned_fast() -> bool:
    """True where turned factors are multiplied as fast as others: not without AVX512."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
