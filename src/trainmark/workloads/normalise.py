"""Normalises uint8 images to floats, on any device."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from trainmark.workloads.cpu_ops import is_on_cpu

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Centring(NamedTuple):
    """Mean and standard deviation of red, green and blue, in 0 to 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET, HALVES = Centring(MEAN, STD), Centring((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_PIECE_VALUES = 2_000_000  # floats of a half-precision batch per chunk; all at once would need new memory each time


def normalise(
    images: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None, centring: Centring = IMAGENET
) -> torch.Tensor:
    """(pixel / 255 - mean) / std of a uint8 (n, 3, height, width) channels_last batch, channels_last in `dtype`.

    Computed in fp32 and rounded once. `out`, a channels_last tensor of the same shape, avoids an allocation per batch.
    """
    n, channels, height, width = images.shape
    if channels != 3 or images.dtype != torch.uint8:
        raise ValueError(f"expected uint8 images of 3 channels, got {images.dtype} of shape {tuple(images.shape)}")
    if out is None:
        out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)
    if not images.is_contiguous(memory_format=torch.channels_last):
        images = images.contiguous(memory_format=torch.channels_last)
    # rows of interleaved pixels with the constants repeated along them: a broadcast over three channels in the
    # innermost place would run in loops of three
    pixels = images.permute(0, 2, 3, 1).reshape(n, height, width * 3)
    floats = out.permute(0, 2, 3, 1).view(n, height, width * 3)
    scale, shift = _row_constants(width, images.device, centring)
    # few large operations: where cores are shared with the decoding processes, every parallel region waits for its
    # slowest thread
    if out.dtype == torch.float32:
        # one thread has no barriers, and finds an image in its cache the second time
        alone = is_on_cpu(images) and torch.get_num_threads() == 1
        for source, target in zip(pixels, floats, strict=True) if alone else ((pixels, floats),):
            target.copy_(source)
            torch.addcmul(shift, target, scale, out=target)
    else:
        pieces = max(1, images.numel() // _PIECE_VALUES) if is_on_cpu(images) else 1
        for source, target in zip(pixels.chunk(pieces), floats.chunk(pieces), strict=True):
            target.copy_(torch.addcmul(shift, source.to(torch.float32), scale))
    return out


@functools.lru_cache(maxsize=8)
def _row_constants(width: int, device: torch.device, centring: Centring) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift of each value in a row."""
    scale = torch.tensor([1 / (255 * std) for std in centring.std], dtype=torch.float32)
    shift = torch.tensor([-mean / std for mean, std in zip(*centring, strict=True)], dtype=torch.float32)
    return scale.repeat(width).to(device), shift.repeat(width).to(device)
