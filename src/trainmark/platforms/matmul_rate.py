"""Times repeated work on a device, and measures the rate of large matmuls."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from trainmark.platforms.platform import Device
from trainmark.platforms.scaled_matmul import multiply_scaled
from trainmark.record.precision import Precision

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
        return lambda: multiply_scaled(left, one, right.t(), one, torch.bfloat16)
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
