"""Probes with a few exact matmuls which type a device really computes in, whatever was requested."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainmark.platforms import scaled_matmul
from trainmark.record.precision import E4M3, E5M2, PRECISIONS, REDUCED_FLOAT32, TOO_NARROW, Precision

if TYPE_CHECKING:
    from trainmark.platforms.platform import Device

SCALED_OPERANDS = {E4M3: (1 + 2**-3, 2.0**8), E5M2: (1 + 2**-2, 2.0**15)}
"""By 8-bit type: one number that needs all its digits, and one near the end of its range."""
SIDE = 256
"""Of the matrices: small ones may use other kernels than those of a network."""

OPERANDS = ((1 + 2**-12, 1 + 2**-11), (1 + 2**-9, 1 + 2**-3), (1 + 2**-5, 1 + 2**-5), (2.0**20, 2.0**-30))
"""Pairs whose products distinguish types: the first needs a mantissa of 23 bits, the left operand of the second one of
9, those of the third one of 5, and both of the last exceed the range of float16."""
_FLOAT32 = 1 + 2**-11 + 2**-12 + 2**-23
_TEN_BITS = (1 + 2**-3 + 2**-9 + 2**-12, 1 + 2**-3 + 2**-9)
_SEVEN_BITS = (1 + 2**-4 + 2**-10, 1 + 2**-4)
"""Exact, and rounded to a result of the same type."""


def identify_type(products: Sequence[float]) -> str:
    """The torch type, or `tf32`, in which the pairs above have these products."""
    whole, ten_bits, seven_bits, in_range = products
    if whole == _FLOAT32:
        return "float32"
    if abs(whole - _FLOAT32) < 2**-13:
        return REDUCED_FLOAT32
    if ten_bits in _TEN_BITS:
        return "tf32" if in_range == 2**-10 else "float16"
    return "bfloat16" if seven_bits in _SEVEN_BITS and math.isfinite(in_range) else TOO_NARROW


def find_matmul_type(device: Device, precision: Precision, factors: torch.dtype) -> str:
    """The type of matmuls of given operands under the settings of a precision."""
    return _probe_type(device, precision, factors, _multiply_diagonals)


def find_convolution_type(device: Device, precision: Precision, factors: torch.dtype) -> str:
    return _probe_type(device, precision, factors, _convolve)


KINDS = {"matmul": find_matmul_type, "convolution": find_convolution_type}


def find_computed_types(device: Device, precision: Precision) -> dict[str, dict[str, str]]:
    """For matmul and convolution: by type of operands, the type that was really computed in.

    Autocast leaves some matmuls alone, so both lowered and unchanged operands are probed. A device may lack a kind that
    the run does not need: what it cannot compute is left out.
    """
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    plain = PRECISIONS["tf32" if precision.allows_tf32 else "fp32"]
    tries = [(precision, getattr(torch, precision.weights), precision.autocast or precision.weights)]
    if precision.computes_in not in ("float32", "tf32"):
        tries.append((plain, torch.float32, "float32"))
    for kind, compute in KINDS.items():
        for settings, factors, name in tries:
            try:
                found[kind][name] = compute(device, settings, factors)
            except (RuntimeError, NotImplementedError):
                continue
    if precision.scaled:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            found["matmul"].update(find_scaled_types(device, precision))
    return found


def find_scaled_types(device: Device, precision: Precision) -> dict[str, str]:
    """By 8-bit type of operands, the type they are multiplied in: the same, or fewer digits."""
    found: dict[str, str] = {}
    right = torch.zeros(scaled_matmul.MULTIPLE)
    right[0], right[1] = 1 + 2**-3, 2.0**-6
    for name, pair in SCALED_OPERANDS.items():
        left = torch.zeros_like(right)
        left[0], left[1] = pair
        types = (getattr(torch, name), getattr(torch, E4M3))
        here = [side.diag().to(type_).to(device.torch) for side, type_ in zip((left, right), types, strict=True)]
        one = torch.ones((), device=device.torch)
        with device.arithmetic(precision), torch.no_grad():
            products = scaled_matmul.multiply_scaled(here[0], one, here[1], one, torch.bfloat16)
        device.synchronize()
        exact = torch.equal(products.float().cpu().diagonal(), left * right)
        found[name] = name if exact else TOO_NARROW
    return found


def _probe_type(
    device: Device, precision: Precision, factors: torch.dtype, multiply: Callable[[Tensor, Tensor], Tensor]
) -> str:
    left, right = torch.ones(SIDE), torch.ones(SIDE)
    for place, pair in enumerate(OPERANDS):
        left[place], right[place] = pair
    here = [side.to(factors).to(device.torch) for side in (left, right)]
    with device.arithmetic(precision), device.autocast(precision), torch.no_grad():
        products = multiply(*here)
    device.synchronize()
    return identify_type(products.float().cpu()[: len(OPERANDS)].tolist())


def _multiply_diagonals(left: Tensor, right: Tensor) -> Tensor:
    """A matmul of diagonal matrices: every sum has one nonzero term."""
    return torch.mm(left.diag(), right.diag()).diagonal()


def _convolve(left: Tensor, right: Tensor) -> Tensor:
    """One channel per pair, and a diagonal kernel. What may be infinite gets its own image, as zeros of the kernel
    would turn it into NaN in other channels."""
    channels, last = 16, len(OPERANDS) - 1
    images = left[:channels].repeat(2, 1)
    images[0, last], images[1, :last] = 1, 1
    kernel = right[:channels].diag().view(channels, channels, 1, 1)
    found = nn.functional.conv2d(images.view(2, channels, 1, 1).expand(2, channels, 8, 8).contiguous(), kernel)
    return torch.cat((found[0, :last, 0, 0], found[1, last:, 0, 0]))
