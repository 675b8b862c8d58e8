"""Two metrics of an attention alignment: diagonality and focus."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonality(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """How close each clip's attention in `alignment` (clips, frames, symbols) is to the diagonal.

    With frames and symbols scaled to 0..1, this is 1 - 3 * (mean distance between a frame's position and its attended
    position): 1 for a diagonal, about 0 for uniform attention, below 0 for attention stuck at one end. A clip of one
    frame or one symbol gets 1.
    """
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, written = _places(alignment.shape[2], symbols)
    distance = (symbol_at[:, None] - frame_at[:, :, None]).abs().where(written[:, None], 0)
    only_one_way = (frames <= 1) | (symbols <= 1)
    return 1 - 3 * _mean((alignment * distance).sum(2), read, frames).where(~only_one_way, 0)


def off_diagonal(alignment: Tensor, frames: Tensor, symbols: Tensor, width: float = 0.2) -> Tensor:
    """Guided attention loss per clip: mean weight off the diagonal, which grows with the distance beyond `width`."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    frame_at, read = _places(alignment.shape[1], frames)
    symbol_at, _ = _places(alignment.shape[2], symbols)
    off = 1 - torch.exp(-((symbol_at[:, None] - frame_at[:, :, None]) ** 2) / (2 * width**2))
    return _mean((alignment * off).sum(2), read, frames)


def focus(alignment: Tensor, frames: Tensor, symbols: Tensor) -> Tensor:
    """Mean over frames of the largest weight, per clip: 1 if each frame attends to one symbol."""
    alignment, frames, symbols = _on_one_device(alignment, frames, symbols)
    _, read = _places(alignment.shape[1], frames)
    _, written = _places(alignment.shape[2], symbols)
    return _mean(alignment.where(written[:, None], 0).amax(2), read, frames)


def _on_one_device(alignment: Tensor, *lengths: Tensor) -> tuple[Tensor, ...]:
    return alignment.float(), *(length.to(alignment.device) for length in lengths)


def _places(most: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Position of each index within its clip, from 0 to 1, and whether it is in the clip."""
    numbers = torch.arange(most, device=lengths.device)
    return numbers / (lengths[:, None] - 1).clamp(min=1), numbers < lengths[:, None]


def _mean(values: Tensor, counted: Tensor, counts: Tensor) -> Tensor:
    # padding is replaced, not multiplied by 0, which would propagate NaN
    return values.where(counted, 0).sum(1) / counts.clamp(min=1)
