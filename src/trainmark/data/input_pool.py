"""Decodes, crops and augments images in worker processes, into batches in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps

from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.image_sets import ImageSet
from trainmark.data.jpeg import MIN_AREA, JpegDecoder, eval_crop, train_crop
from trainmark.data.sample_pool import Row, SampleKey
from trainmark.record.errors import UsageError

Pixels = npt.NDArray[np.uint8]

STRENGTHS = 31
"""Number of magnitudes, which count from 0."""
_STREAM = 2  # ends the key, so that crops and mixing have other random numbers


class Choice(NamedTuple):
    """One operation on a sample."""

    name: str
    negative: bool = False
    """Reversed: to the left, darker, less sharp."""


def choices(count: int, *, seed: int, epoch: int, index: int, view: int = 0) -> list[Choice]:
    """The operations of a sample, in order; a function of (seed, epoch, index, view)."""
    draw = CounterRng(seed, epoch, index, view, _STREAM)
    names = (OPERATIONS[draw.below(len(OPERATIONS))] for _ in range(count))
    return [Choice(name, name in _SIGNED and draw.uniform() < 0.5) for name in names]


def strength(name: str, magnitude: int, size_px: int) -> float:
    """The value of a magnitude for an operation: a slope, pixels, degrees, a share, bits, a level."""
    if not 0 <= magnitude < STRENGTHS:
        raise UsageError(f"augmentation magnitude {magnitude} is not one of 0 to {STRENGTHS - 1}; 9 is usual")
    if name == "Posterize":
        return 8 - round(magnitude / ((STRENGTHS - 1) / 4))
    first, last = {
        "ShearX": (0.0, 0.3),
        "ShearY": (0.0, 0.3),
        "TranslateX": (0.0, 150 / 331 * size_px),
        "TranslateY": (0.0, 150 / 331 * size_px),
        "Rotate": (0.0, 30.0),
        "Brightness": (0.0, 0.9),
        "Color": (0.0, 0.9),
        "Contrast": (0.0, 0.9),
        "Sharpness": (0.0, 0.9),
        "Solarize": (255.0, 0.0),
    }.get(name, (0.0, 0.0))
    # in float32 as usual: an angle's last bits affect rounding
    return float(torch.linspace(first, last, STRENGTHS)[magnitude])


class Augmenter:
    """RandAugment on square images, in place; shearing and rotation interpolate bilinearly, as in the published runs,
    with black outside."""

    def __init__(self, *, size_px: int, operations: int, magnitude: int) -> None:
        self._count = operations
        self._strengths = {name: strength(name, magnitude, size_px) for name in OPERATIONS}

    def augment(self, pixels: Pixels, *, seed: int, epoch: int, index: int, view: int = 0) -> None:
        """Applies a sample's operations to a contiguous image (size, size, 3)."""
        for choice in choices(self._count, seed=seed, epoch=epoch, index=index, view=view):
            self.apply(choice, pixels)

    def apply(self, choice: Choice, pixels: Pixels) -> None:
        level = self._strengths[choice.name]
        image = _APPLY[choice.name](Image.fromarray(pixels), -level if choice.negative else level)
        np.copyto(pixels, np.asarray(image))


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def _shear_x(image: Image.Image, level: float) -> Image.Image:
    return _affine(image, 1, math.tan(_angle(level)), 0, 0, 1, 0)


def _shear_y(image: Image.Image, level: float) -> Image.Image:
    angle = _angle(level)
    return _affine(image, 1, 0, 0, math.sin(angle) / math.cos(angle), 1, 0)


def _angle(slope: float) -> float:
    """The angle of a slope computed via degrees, as in the usual definition, to the last bit."""
    return math.radians(math.degrees(math.atan(slope)))


_APPLY: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda image, level: image,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": lambda image, level: _affine(image, 1, 0, -int(level), 0, 1, 0),
    "TranslateY": lambda image, level: _affine(image, 1, 0, 0, 0, 1, -int(level)),
    "Rotate": lambda image, level: image.rotate(level, Image.Resampling.BILINEAR),
    "Brightness": lambda image, level: ImageEnhance.Brightness(image).enhance(1 + level),
    "Color": lambda image, level: ImageEnhance.Color(image).enhance(1 + level),
    "Contrast": lambda image, level: ImageEnhance.Contrast(image).enhance(1 + level),
    "Sharpness": lambda image, level: ImageEnhance.Sharpness(image).enhance(1 + level),
    "Posterize": lambda image, level: ImageOps.posterize(image, int(level)),
    "Solarize": lambda image, level: ImageOps.solarize(image, math.ceil(level)),
    "AutoContrast": lambda image, level: ImageOps.autocontrast(image),
    "Equalize": lambda image, level: ImageOps.equalize(image),
}
OPERATIONS = tuple(_APPLY)
"""In the usual order, with equal probability."""
_SIGNED = frozenset(OPERATIONS[1:10])


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageBatch:
    """Decoded images and their classes. The images lie in a reused slot: see `SamplePool.batches`."""

    images: torch.Tensor
    """uint8, (count, 3, size, size), channels_last."""
    labels: torch.Tensor
    """int64, (count,)."""
    count: int
    global_count: int
    """Samples of this step over all ranks; includes files skipped under `skip_bad`."""
    mix_draws: tuple[float, ...] = ()
    """Random numbers in [0, 1) for mixing the images."""

    def parts(self, parts: int) -> list[ImageBatch]:
        """Views of this batch as that many smaller ones of similar length, none empty."""
        parts = min(parts, self.count)
        cuts = [self.count * number // parts for number in range(parts + 1)]
        return [
            replace(self, images=self.images[first:last], labels=self.labels[first:last], count=last - first)
            for first, last in pairwise(cuts)
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageMaker:
    """Makes the samples of a `SamplePool` of images with one class each."""

    sets: Sequence[ImageSet]
    """In the order of the pool's."""
    image_px: int = 224
    eval_resize_px: int = 256
    crop_area_least: float = MIN_AREA
    augment_ops: int = 0
    """Random operations on each training image after its crop."""
    augment_magnitude: int = 9
    turn_by_exif: bool = False
    """Apply the EXIF orientation first."""

    def __post_init__(self) -> None:
        _ = self._augmenter  # before workers are forked, where an invalid magnitude would be a crash

    @cached_property
    def _augmenter(self) -> Augmenter:
        return Augmenter(size_px=self.image_px, operations=self.augment_ops, magnitude=self.augment_magnitude)

    @cached_property
    def _decoder(self) -> JpegDecoder:
        return JpegDecoder(turn_by_exif=self.turn_by_exif)

    @property
    def planes(self) -> Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]:
        return {"pixels": ((self.image_px, self.image_px, 3), np.uint8)}

    def make(self, sample: SampleKey, row: Row) -> None:
        data, pixels = self.sets[sample.set_number].read(sample.index), row["pixels"]
        if not sample.is_random:
            # of full-resolution pixels, as in the usual definition
            self._decoder.decode(data, partial(eval_crop, size=self.image_px, resize_to=self.eval_resize_px), pixels)
            return
        key = {"seed": sample.seed, "epoch": sample.epoch, "index": sample.index, "view": sample.view}
        choose_crop = partial(train_crop, size=self.image_px, least_area=self.crop_area_least, **key)
        self._decoder.decode(data, choose_crop, pixels, may_reduce=True)
        if self.augment_ops:
            self._augmenter.augment(pixels, **key)

    def batch(
        self, set_number: int, rows: Mapping[str, torch.Tensor], indices: npt.NDArray[np.int64], global_count: int
    ) -> ImageBatch:
        return ImageBatch(
            images=rows["pixels"].permute(0, 3, 1, 2),
            labels=torch.from_numpy(self.sets[set_number].labels[indices]),
            count=len(indices),
            global_count=global_count,
        )
