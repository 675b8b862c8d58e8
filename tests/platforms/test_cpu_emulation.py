"""Emulated narrow arithmetic gives what hardware for it gives: exact products, float32 sums, one rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainmark.platforms.platform import WideArithmetic

TYPES = (torch.bfloat16, torch.float16)


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)).to(dtype)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    model(x).float().square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("dtype", TYPES)
def test_each_product_is_the_float32_one_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    model = network(dtype)
    with WideArithmetic():  # type: ignore[no-untyped-call]
        first = model[0](x)  # type: ignore[operator]
    wide = nn.functional.conv2d(x.float(), model[0].weight.float(), model[0].bias.float())  # type: ignore[operator, union-attr]
    assert torch.equal(first, wide.to(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_have_the_narrow_type_and_agree_with_torchs_own(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    with WideArithmetic():  # type: ignore[no-untyped-call]
        ours = gradients(network(dtype), x)
    theirs = gradients(network(dtype), x)
    assert len(ours) == 4
    for mine, torchs in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(
            mine.float(), torchs.float(), rtol=0.02, atol=0.02 * float(torchs.float().abs().max())
        )


def test_float32_is_left_alone() -> None:
    x = torch.randn(4, 3, 8, 8)
    model = network(torch.float32)
    with WideArithmetic():  # type: ignore[no-untyped-call]
        inside = model(x)
    assert torch.equal(inside, model(x))


@pytest.mark.parametrize("dtype", TYPES)
def test_attention_and_its_gradients_are_the_float32_ones_rounded(dtype: torch.dtype) -> None:
    def attended(*parts: Tensor) -> list[Tensor]:
        parts = tuple(part.detach().requires_grad_() for part in parts)
        found = nn.functional.scaled_dot_product_attention(*parts)
        found.float().square().sum().backward()
        return [found, *(part.grad for part in parts if part.grad is not None)]

    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(2, 4, 9, 16, generator=generator).to(dtype) for _ in range(3)]
    with WideArithmetic():  # type: ignore[no-untyped-call]
        ours = attended(*parts)
    exact = attended(*(part.float() for part in parts))
    for found, expected in zip(ours, exact, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.03)
