"""Probes the matmuls of a device: the type it really computes in, whatever was requested, and its rate."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainmark.platforms import scaled_matmul
from trainmark.platforms.platform import Device
from trainmark.record.precision import E4M3, E5M2, PRECISIONS, REDUCED_FLOAT32, TOO_NARROW, Precision

SCALED_OPERANDS = {E4M3: (1 + 2**-3, 2.0**8), E5M2: (1 + 2**-2, 2.0**15)}
"""By 8-bit type: one number that needs all its digits, and one near the end of its range."""
SIZES: Mapping[str, Sequence[int]] = {"matmul": (256, 256, 256), "convolution": (4, 16, 8, 8, 16)}
"""Rows, inner length, columns; images, channels, height, width, output channels. Other sizes may use other kernels."""
MAX_PROBED = 1 << 26
"""Numbers in a matrix: a larger one gets fewer rows, or images."""

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


def find_computed_types(
    device: Device, precision: Precision, sizes: Mapping[str, Sequence[int]] = SIZES
) -> dict[str, dict[str, str]]:
    """For matmul and convolution: by type of operands, the type that was really computed in.

    Autocast leaves some matmuls alone, so both lowered and unchanged operands are probed. A device may lack a kind that
    the run does not need: what it cannot compute is left out.
    """
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    plain = PRECISIONS["tf32" if precision.allows_tf32 else "fp32"]
    tries = [(precision, getattr(torch, precision.weights), precision.autocast or precision.weights)]
    if precision.computes_in not in ("float32", "tf32"):
        tries.append((plain, torch.float32, "float32"))
    for kind, size in sizes.items():
        for settings, factors, name in tries:
            try:
                found[kind][name] = find_type(kind, device, settings, factors, size)
            except (RuntimeError, NotImplementedError):
                continue
    if precision.scaled:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            found["matmul"].update(find_scaled_types(device, precision))
    return found


def read_size(name: str, left: Tensor, right: Tensor) -> tuple[int, ...] | None:
    """The size of a matmul or convolution as one that can be probed; None for others.

    Convolutions with larger kernels may be computed by transforms, whose rounding would pass for a narrower type.
    """
    if name in ("mm", "addmm"):
        return (*left.shape, right.shape[1])
    if name == "convolution" and left.dim() == 4 and right.shape[1:] == (left.shape[1], 1, 1):
        return (*left.shape, right.shape[0])
    return None


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


def find_type(
    kind: str, device: Device, precision: Precision, factors: torch.dtype, size: Sequence[int] | None = None
) -> str:
    """The type of matmuls or convolutions of given operands under the settings of a precision."""
    left, right = (torch.tensor(side).to(factors).to(device.torch) for side in zip(*OPERANDS, strict=True))
    size = [max(len(OPERANDS), length) for length in size or SIZES[kind]]
    size[0] = max(len(OPERANDS), min(size[0], MAX_PROBED // math.prod(size[2:]), MAX_PROBED // math.prod(size[1:-1])))
    with device.arithmetic(precision), device.autocast(precision), torch.no_grad():
        products = KINDS[kind](left, right, size)
    device.synchronize()
    return identify_type(products.float().cpu().tolist())


def _multiply_diagonals(left: Tensor, right: Tensor, size: Sequence[int]) -> Tensor:
    """A matmul of matrices with a few numbers on their diagonals: every sum has one nonzero term."""
    rows, inner, columns = size
    one, other = left.new_zeros(rows, inner), right.new_zeros(inner, columns)
    one.diagonal()[: len(OPERANDS)].copy_(left)
    other.diagonal()[: len(OPERANDS)].copy_(right)
    return torch.mm(one, other).diagonal()[: len(OPERANDS)]


def _convolve(left: Tensor, right: Tensor, size: Sequence[int]) -> Tensor:
    """One image and one output channel per pair, as what is infinite turns the zeros of others into NaN."""
    images, channels, height, width, outputs = size
    image, kernel = left.new_zeros(images, channels, height, width), right.new_zeros(outputs, channels, 1, 1)
    image[: len(OPERANDS), 0] = left.view(-1, 1, 1)
    kernel[: len(OPERANDS), 0, 0, 0] = right
    return nn.functional.conv2d(image, kernel)[:, :, 0, 0].diagonal()[: len(OPERANDS)]


KINDS = {"matmul": _multiply_diagonals, "convolution": _convolve}


BUDGET_S = 0.4
SIDE = 1024
"""Large enough for a CPU to reach its peak, and still about 30 ms on one core."""
MIN_REPEATS, MAX_REPEATS = 4, 1000

Work = Callable[[], object]
Now = Callable[[], float]


def measure_matmul_flops(device: Device, dtype: torch.dtype, *, budget_s: float = BUDGET_S, side: int = SIDE) -> float:
    """The measured peak of a CPU, whose data sheet has none: the best rate of several large matmuls, in FLOP/s.

    The best, because other processes may disturb some of them.
    """
    multiply = make_matmul(device, dtype, side)
    time_work(device, multiply)  # warm-up
    return count_matmul_flops(side) / min(time_repeats(device, multiply, budget_s=budget_s))


def count_matmul_flops(side: int) -> float:
    return 2.0 * side**3


def make_matmul(device: Device, dtype: torch.dtype, side: int) -> Callable[[], Tensor]:
    """A matmul of two square matrices, into preallocated memory where possible."""
    # random numbers: zeros take less power and run at a higher clock
    left, right = (torch.randn(side, side, device=device.torch).to(dtype) for _ in range(2))
    if dtype.itemsize == 1:
        one = torch.ones((), device=device.torch)
        return lambda: scaled_matmul.multiply_scaled(left, one, right.t(), one, torch.bfloat16)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def time_repeats(
    device: Device,
    work: Work,
    *,
    budget_s: float,
    times: int = 1,
    least: int = MIN_REPEATS,
    now_s: Now = time.perf_counter,
) -> list[float]:
    """Seconds per repeat, each of `times` calls, until the budget is spent."""
    taken: list[float] = []
    ends = now_s() + budget_s
    while len(taken) < least or (now_s() < ends and len(taken) < MAX_REPEATS):
        taken.append(time_work(device, work, times, now_s))
    return taken


def time_work(device: Device, work: Work, times: int = 1, now_s: Now = time.perf_counter) -> float:
    """Seconds of so many calls, from an idle device to an idle device."""
    device.synchronize()
    began = now_s()
    for _ in range(times):
        work()
    device.synchronize()
    return max(now_s() - began, 1e-9)


def choose_matmul_type(device: Device, precision: Precision) -> torch.dtype:
    """The type of matmuls in a precision: float32 where emulated, or where inputs are rounded."""
    if precision.allows_tf32 or device.emulates(precision):
        return torch.float32
    return getattr(torch, precision.computes_in)  # type: ignore[no-any-return]
