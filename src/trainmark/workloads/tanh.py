"""Tanh by the function a CPU is quicker at."""

from __future__ import annotations

import torch
from torch import Tensor

from trainmark.workloads.on_cpu import on_cpu

LEAST = 1 << 13
"""Numbers below which four calls take as long as one."""


def tanh(x: Tensor, *, out: Tensor) -> Tensor:
    """Sigmoid takes a CPU a sixth of tanh's time, and float32 can spare the bits that this costs near 0."""
    if on_cpu(x) and x.dtype == torch.float32 and x.numel() >= LEAST:
        return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)
    return torch.tanh(x, out=out)
