"""Says in two numbers how attention reads a text: how steadily it moves along, and how sharply it looks."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonality(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """For each clip of `alignment` (clips, frames, symbols) how near attention stays to a steady reading.

    With a clip's frames and its symbols both laid from 0 to 1, this is 1 - 3 * (the mean distance between where a frame
    stands and where it looks): 1 for a steady reader, about 0 for attention spread evenly, below 0 for attention that
    stays at one end. A clip of one frame or one symbol can be read in one way only, and gets 1.
    """
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, written = _places(alignment.shape[2], symbols)
    distance = (symbol_at[:, None] - frame_at[:, :, None]).abs().where(written[:, None], 0)
    only_one_way = (frames <= 1) | (symbols <= 1)
    return 1 - 3 * _mean((alignment * distance).sum(2), read, frames).where(~only_one_way, 0)


def off_diagonal(alignment: Tensor, frames: Tensor, symbols: Tensor, width: float = 0.2) -> Tensor:
    """For each clip the mean weight that lies off the diagonal, counted more the farther it lies: what training can
    make small to lead attention. Within `width` of the diagonal hardly anything counts."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, _ = _places(alignment.shape[2], symbols)
    off = 1 - torch.exp(-((symbol_at[:, None] - frame_at[:, :, None]) ** 2) / (2 * width**2))
    return _mean((alignment * off).sum(2), read, frames)


def focus(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """For each clip the largest weight of a frame, as a mean over its frames: 1 where each looks at one symbol."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    _, read = _places(alignment.shape[1], frames)
    _, written = _places(alignment.shape[2], symbols)
    return _mean(alignment.where(written[:, None], 0).amax(2), read, frames)


def _on_one_device(alignment: Tensor, *lengths: Tensor) -> tuple[Tensor, ...]:
    return alignment.float(), *(length.to(alignment.device) for length in lengths)


def _places(most: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Where each place of each clip lies between the clip's first (0) and last (1), and whether it is in the clip."""
    numbers = torch.arange(most, device=lengths.device)
    return numbers / (lengths[:, None] - 1).clamp(min=1), numbers < lengths[:, None]


def _mean(values: Tensor, counted: Tensor, counts: Tensor) -> Tensor:
    # padding may hold anything, so it is replaced: to multiply it by 0 would let a NaN through
    return values.where(counted, 0).sum(1) / counts.clamp(min=1)
