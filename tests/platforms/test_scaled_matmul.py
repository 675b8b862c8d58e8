"""Products of eight bits are those of their factors within what eight bits can hold, wherever these lie."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trainmark.platforms import files, matmul_probe, scaled_matmul
from trainmark.platforms.platform import Platform
from trainmark.platforms.scaled_matmul import ScaledLinear, replace_linears, scale_to_type
from trainmark.record.errors import UsageError
from trainmark.record.precision import PRECISIONS

FP8 = PRECISIONS["fp8"]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def off(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


def layers(count: int = 48) -> tuple[nn.Linear, nn.Linear, Tensor]:
    """One layer in bfloat16, the same one scaled, and rows for both."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 32).bfloat16()
    scaling = nn.Linear(64, 32).bfloat16()
    scaling.load_state_dict(plain.state_dict())
    scaling.__class__ = ScaledLinear
    return plain, scaling, torch.randn(count, 64).bfloat16()


def learnt(layer: nn.Linear, rows: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    given = rows.clone().requires_grad_()
    result: Tensor = layer(given)
    result.backward(gradient)
    return result, given.grad, layer.weight.grad


@pytest.mark.parametrize("count", [48, 41, 1])
@pytest.mark.parametrize("size", [1.0, 2.0**-30, 2.0**30])
def test_all_three_products_come_out_within_what_eight_bits_can_tell(count: int, size: float) -> None:
    plain, scaling, rows = layers(count)
    gradient = torch.randn(count, 32).bfloat16()
    with torch.no_grad():
        for layer in (plain, scaling):
            layer.bias.mul_(size)
    wanted = learnt(plain, rows * size, gradient * size)
    found = learnt(scaling, rows * size, gradient * size)
    for one, other, most in zip(found, wanted, (0.05, 0.1, 0.1), strict=True):
        assert one is not None and other is not None
        assert one.shape == other.shape
        assert 0 < off(one, other) < most


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("largest", [3e-33, 0.7, 1.0, 447.0, 449.0, 6e4, 3e33])
def test_a_scale_is_a_power_of_two_that_loses_no_large_number(dtype: torch.dtype, largest: float) -> None:
    numbers = torch.tensor([[largest, -largest / 3]], dtype=torch.bfloat16)
    narrow, unit = scale_to_type(numbers, dtype)
    assert math.frexp(float(unit))[0] == 0.5
    most = torch.finfo(dtype).max
    assert most / 2 * 0.99 < float(narrow.float().max()) <= most
    assert off(narrow.double() * unit, numbers) < 2.0**-3


def test_zeros_stay_zeros_and_what_is_not_finite_is_not_hidden() -> None:
    _, scaling, rows = layers()
    assert torch.equal(scaling(torch.zeros_like(rows)), scaling.bias.expand(len(rows), -1))
    assert scaling(rows[:0]).shape == (0, 32)
    for bad in (math.inf, math.nan):
        rows[3, 5] = bad
        assert not scaling(rows).isfinite().all()


class Own(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(-1))


def test_layers_that_fit_are_taken_over_with_their_weights_and_the_head_stays() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 40), Own(40, 48), nn.Linear(48, 16), nn.Linear(16, 16))
    before = dict(model.named_parameters())
    replace_linears(model)
    assert [type(layer) for layer in model] == [ScaledLinear, nn.Linear, Own, ScaledLinear, nn.Linear]
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert list(before) == list(model.state_dict())


def test_a_network_without_such_layers_is_refused_in_a_sentence() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 16))
    with pytest.raises(UsageError, match=r"fp8 has nothing to compute in this network: .* multiples of 16; use bf16"):
        replace_linears(model[:3])
    with pytest.raises(UsageError, match="nothing to compute"):
        replace_linears(model)


def test_a_device_without_such_products_refuses_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*words: object, **named: object) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on devices with compute capability >= 9.0 or 8.9")

    device = Platform(files.load("cpu")).open(0)
    assert device.explain_refusal(FP8) is None
    monkeypatch.setattr(torch, "_scaled_mm", missing)
    assert "compute capability" in str(device.explain_refusal(FP8))
    assert device.explain_refusal(PRECISIONS["bf16"]) is None


def test_a_cpu_emulates_them_and_nothing_else_for_them() -> None:
    device = Platform(files.load("cpu")).open(0)
    assert device.emulates(FP8)
    assert device.widens(FP8) == device.widens(PRECISIONS["bf16"])


def test_their_rate_can_be_measured() -> None:
    device = Platform(files.load("cpu")).open(0)
    multiply = matmul_probe.make_matmul(device, E4M3, 32)
    assert multiply().dtype == torch.bfloat16
    assert scaled_matmul.MULTIPLE == 16
