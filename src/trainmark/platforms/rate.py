"""The rate large matrix products really reach on a device: the peak to hold a CPU to, whose sheet says none."""

from __future__ import annotations

import time

import torch

from trainmark.platforms.platform import Device
from trainmark.spec.precision import Precision

BUDGET_S = 0.4
SIDE = 1024
"""Large enough for a CPU to reach its best, and still some 30 ms on a core."""
LEAST_PRODUCTS = 4


def matmul_flops(device: Device, dtype: torch.dtype, *, budget_s: float = BUDGET_S, side: int = SIDE) -> float:
    """The best rate of several large products, in FLOP/s; the best, because others may disturb some of them."""
    a, b = (torch.randn(side, side).to(device.torch, dtype) for _ in range(2))
    a @ b  # takes its memory and wakes the threads
    device.synchronize()
    best_s, done, ends = float("inf"), 0, time.perf_counter() + budget_s
    while done < LEAST_PRODUCTS or time.perf_counter() < ends:
        began = time.perf_counter()
        a @ b
        device.synchronize()
        best_s = min(best_s, time.perf_counter() - began)
        done += 1
    return 2.0 * side**3 / best_s


def product_type(device: Device, precision: Precision) -> torch.dtype:
    """The type a precision's products are computed in: float32 where they are emulated, or rounded on the way in."""
    if precision.allows_tf32 or device.emulates(precision):
        return torch.float32
    return getattr(torch, precision.computes_in)  # type: ignore[no-any-return]
