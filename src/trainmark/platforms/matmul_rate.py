"""How fast a device repeats a piece of work, and which rate large matrix products really reach on it."""

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
"""Large enough for a CPU to reach its best, and still some 30 ms on a core."""
MIN_REPEATS, MAX_REPEATS = 4, 1000

Work = Callable[[], object]
Now = Callable[[], float]


def measure_matmul_flops(device: Device, dtype: torch.dtype, *, budget_s: float = BUDGET_S, side: int = SIDE) -> float:
    """The peak to hold a CPU to, whose sheet says none: the best rate of several large products, in FLOP/s.

    The best, because others may disturb some of them.
    """
    multiply = make_matmul(device, dtype, side)
    time_work(device, multiply)  # wakes the threads
    return count_matmul_flops(side) / min(time_repeats(device, multiply, budget_s=budget_s))


def count_matmul_flops(side: int) -> float:
    return 2.0 * side**3


def make_matmul(device: Device, dtype: torch.dtype, side: int) -> Callable[[], Tensor]:
    """One product of two square matrices, into memory that is there already where the device can do that."""
    # random numbers, as those of a network: zeros take less power and run at a higher clock
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
    """Seconds of each repeat of a work done `times` over, until the budget is spent."""
    taken: list[float] = []
    ends = now_s() + budget_s
    while len(taken) < least or (now_s() < ends and len(taken) < MAX_REPEATS):
        taken.append(time_work(device, work, times, now_s))
    return taken


def time_work(device: Device, work: Work, times: int = 1, now_s: Now = time.perf_counter) -> float:
    """What a work takes that is done so many times over, from an idle device to an idle device."""
    device.synchronize()
    began = now_s()
    for _ in range(times):
        work()
    device.synchronize()
    return max(now_s() - began, 1e-9)


def choose_matmul_type(device: Device, precision: Precision) -> torch.dtype:
    """The type a precision's products are computed in: float32 where they are emulated, or rounded on the way in."""
    if precision.allows_tf32 or device.emulates(precision):
        return torch.float32
    return getattr(torch, precision.computes_in)  # type: ignore[no-any-return]
