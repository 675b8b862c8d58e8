"""Linear layers on a CPU are what torch's are, whichever way they multiply."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.workloads import cpu_ops
from trainmark.workloads.cpu_ops import tanh

SIDE = 520


def run(way: object, rows: int, bias: bool, gaps: bool = False, out: int = SIDE) -> list[Tensor]:
    """Outputs and gradients of one layer; `gaps` are between the rows of all it is given."""
    torch.manual_seed(0)
    layer = nn.Linear(SIDE, out, bias=bias)
    x = torch.randn(3, rows // 3, SIDE, requires_grad=True)
    y = way(*((x[..., :-1], layer.weight[:, :-1]) if gaps else (x, layer.weight)), layer.bias)  # type: ignore[operator]
    (y * torch.randn_like(y)).sum().backward()
    gradients = [x.grad, layer.weight.grad, *([layer.bias.grad] if bias else [])]
    return [y, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [3, 3 * cpu_ops.MIN_ROWS])
def test_a_product_and_its_gradients_are_torchs(rows: int, bias: bool) -> None:
    ours, theirs = run(cpu_ops.linear, rows, bias), run(F.linear, rows, bias)
    assert len(ours) == len(theirs) == (4 if bias else 3)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("turned_fast", [True, False])
@pytest.mark.parametrize("out", [cpu_ops.MIN_WEIGHTS // SIDE + 1, SIDE // 2])
def test_every_kind_of_cpu_gives_the_same_gradients(
    turned_fast: bool, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_ops, "has_fast_transposed_matmul", lambda: turned_fast)
    monkeypatch.setattr(cpu_ops, "MIN_WEIGHTS", 1)
    rows = 3 * cpu_ops.MIN_ROWS
    ours, theirs = (run(way, rows, True, out=out) for way in (cpu_ops.linear, F.linear))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-3)


def test_parts_of_larger_matrices_are_multiplied_rightly_and_without_their_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factors: list[Tensor] = []
    assert cpu_ops.has_matmul(torch.float32)  # asked once, by products of its own
    multiply = cpu_ops.matmul

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        factors.extend((x, weight))
        return multiply(x, weight, bias)

    monkeypatch.setattr(cpu_ops, "matmul", noted)
    monkeypatch.setattr(cpu_ops, "has_fast_transposed_matmul", lambda: True)
    rows = 3 * cpu_ops.MIN_ROWS
    ours, theirs = run(cpu_ops.linear, rows, True, gaps=True), run(F.linear, rows, True, gaps=True)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-3)
    assert len(factors) == 4  # forward, and the gradient of what it was given
    assert all(factor.is_contiguous() or factor.t().is_contiguous() for factor in factors)


def test_many_rows_are_multiplied_by_onednn() -> None:
    x, weight = torch.zeros(cpu_ops.MIN_ROWS, SIDE), nn.Parameter(torch.zeros(SIDE, SIDE))
    assert "FastMatmul" in str(cpu_ops.linear(x, weight, None).grad_fn)
    assert "FastMatmul" not in str(cpu_ops.linear(x[1:], weight, None).grad_fn)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cpu_ops.linear(x, weight, None).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [8, 1 << 15])
def test_tanh_is_tanh(count: int, dtype: torch.dtype) -> None:
    x = torch.linspace(-20, 20, count, dtype=dtype)
    expected = torch.tanh(x)
    torch.testing.assert_close(tanh(x, out=x), expected, rtol=0, atol=2e-7)
