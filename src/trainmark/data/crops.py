"""Crop geometry: which part of an image is used and at what size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainmark.data.counter_rng import CounterRng

MIN_AREA = 0.08
"""Default minimum share of the image's area that a random crop covers, uniform up to 1."""
RATIO = (3 / 4, 4 / 3)
"""Aspect ratio of a random crop, log-uniform."""
TRIES = 10
"""Random shapes tried before the central fallback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """A box of the image is resized, and a square of the result is kept, possibly flipped."""

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    keep_top: int = 0
    keep_left: int = 0
    size: int
    """Side of the square that is kept, in pixels of the resized image."""
    flip: bool = False
    """Flip horizontally, last."""


def train_crop(
    width: int,
    height: int,
    *,
    size: int,
    seed: int,
    epoch: int,
    index: int,
    view: int = 0,
    least_area: float = MIN_AREA,
) -> Crop:
    """The usual random resized crop and flip, a function of (seed, epoch, index, view)."""
    draw = CounterRng(seed, epoch, index, view)
    flip = draw.uniform() < 0.5
    box_width, box_height = _random_shape(width, height, draw, least_area)
    if box_width:
        top, left = draw.below(height - box_height + 1), draw.below(width - box_width + 1)
    else:
        box_width, box_height = _central_shape(width, height)
        top, left = (height - box_height) // 2, (width - box_width) // 2
    return Crop(
        top=top,
        left=left,
        height=box_height,
        width=box_width,
        resized_height=size,
        resized_width=size,
        size=size,
        flip=flip,
    )


def eval_crop(width: int, height: int, *, size: int, resize_to: int) -> Crop:
    """The usual evaluation crop: the shorter side resized to `resize_to`, then a centred square of `size`.

    Two steps: one direct resize of the matching box would sample other positions wherever the box does not fall on
    whole pixels.
    """
    if size > resize_to:
        raise ValueError(f"a square of {size} does not fit a shorter side of {resize_to}")
    if width <= height:
        resized_width, resized_height = resize_to, resize_to * height // width
    else:
        resized_width, resized_height = resize_to * width // height, resize_to
    return Crop(
        top=0,
        left=0,
        height=height,
        width=width,
        resized_height=resized_height,
        resized_width=resized_width,
        keep_top=round((resized_height - size) / 2),
        keep_left=round((resized_width - size) / 2),
        size=size,
    )


def _random_shape(width: int, height: int, draw: CounterRng, least_area: float) -> tuple[int, int]:
    """The first random (width, height) that fits the image, or (0, 0) if none did."""
    area = width * height
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(TRIES):
        target = area * (least_area + (1 - least_area) * draw.uniform())
        ratio = math.exp(low + (high - low) * draw.uniform())
        box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            return box_width, box_height
    return 0, 0


def _central_shape(width: int, height: int) -> tuple[int, int]:
    """The whole image, shortened to the nearest allowed ratio."""
    if width < height * RATIO[0]:
        return width, max(1, min(height, round(width / RATIO[0])))
    if width > height * RATIO[1]:
        return max(1, min(width, round(height * RATIO[1]))), height
    return width, height
