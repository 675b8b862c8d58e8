"""Mixes each picture of a batch with the one before it, and their classes in the same measure, on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DRAWS = 4
"""Random numbers that mixing one batch takes: which way, how much, and where across and down."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How far a recipe goes from one sure class a picture; each batch takes one of the ways whose alpha is not 0."""

    classes: int
    mixup_alpha: float
    cutmix_alpha: float
    label_smoothing: float

    @property
    def mixes(self) -> bool:
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    @property
    def softens(self) -> bool:
        """True where a picture may be in part of another class than its own."""
        return self.mixes or self.label_smoothing > 0


def mixed(
    images: Tensor, labels: Tensor, classes: int, draws: Sequence[float], mixup_alpha: float, cutmix_alpha: float
) -> tuple[Tensor, Tensor]:
    """The images, changed in place, and how much of every class is in each: (images, classes) in float32."""
    which, measure, across, down = draws
    if cutmix_alpha and (not mixup_alpha or which >= 0.5):
        kept = paste(images, kept_share(cutmix_alpha, measure), across, down)
    else:
        kept = blend(images, kept_share(mixup_alpha, measure))
    return images, soft_targets(labels, classes, kept)


def kept_share(alpha: float, draw: float) -> float:
    """How much of a picture stays its own, by the law Beta(alpha, alpha)."""
    # decided on the host: a share drawn on the device would have to be waited for, because the box depends on it
    return float(np.random.default_rng(int(draw * 2**53)).beta(alpha, alpha))


def blend(images: Tensor, kept: float) -> float:
    """Mixup: every pixel becomes a mean of both pictures'; returns the share that is kept."""
    images.lerp_(_before(images), 1 - kept)
    return kept


def paste(images: Tensor, kept: float, across: float, down: float) -> float:
    """Cutmix: a box is taken from the picture before; returns the share that is kept, less of it cut off at an edge."""
    height, width = images.shape[-2:]
    left, right = _span(width, kept, across)
    top, bottom = _span(height, kept, down)
    images[..., top:bottom, left:right] = _before(images[..., top:bottom, left:right])
    return 1 - (right - left) * (bottom - top) / (width * height)


def soft_targets(labels: Tensor, classes: int, kept: float) -> Tensor:
    targets = torch.zeros(len(labels), classes, device=labels.device)
    targets.scatter_(1, labels[:, None], kept)
    others = torch.full((len(labels), 1), 1 - kept, device=labels.device)
    return targets.scatter_add_(1, _before(labels)[:, None], others)


def _span(length: int, kept: float, centre: float) -> tuple[int, int]:
    """One side of the box: as long as the square root of its area says, around a pixel, within the picture."""
    middle, half = int(centre * length), int(0.5 * math.sqrt(1 - kept) * length)
    return max(0, middle - half), min(length, middle + half)


def _before(tensor: Tensor) -> Tensor:
    """A copy rolled by one. `roll` would not keep channels_last on every device."""
    return torch.cat((tensor[-1:], tensor[:-1]))
