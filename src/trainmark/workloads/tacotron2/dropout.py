"""Dropout whose draws are cheap on a CPU, where torch's own take longer than the layers between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainmark.workloads.on_cpu import on_cpu

_LEVELS = 1 << 16


def drop(x: Tensor, share: float, training: bool = True) -> Tensor:
    """`x` with this share of its numbers set to zero and the others made up for it."""
    return x * kept(x.shape, share, x) if training and share else x


def kept(shape: Sequence[int], share: float, like: Tensor) -> Tensor:
    """What dropout multiplies by: zero, or what makes up for the zeros.

    On a CPU a number costs 16 random bits instead of a draw of its own, so the share is met to one part in 65,536; what
    makes up for the zeros goes by the share that was met.
    """
    if not on_cpu(like):
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - share).div_(1 - share)
    count, level = math.prod(shape), round(share * _LEVELS)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    drawn = words.view(torch.int16)[:count].view(*shape)
    return (drawn >= level - _LEVELS // 2).to(like.dtype).div_(1 - level / _LEVELS)
