"""Decodes images in worker processes, cropped and augmented, into batches of memory shared with the trainer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps

from trainmark.data.counter_rng import Draws
from trainmark.data.crops import MIN_AREA, Crop, eval_crop, train_crop
from trainmark.data.image_sets import Images
from trainmark.data.jpeg import JpegDecoder, PlannedImage
from trainmark.data.sample_pool import Row, SamplePool, WantedSample
from trainmark.record.errors import UsageError

Pixels = npt.NDArray[np.uint8]

STRENGTHS = 31
"""Magnitudes go from 0 to one less than this."""
_STREAM = 2  # ends the key, so that no crop and no mixing of images has the same random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One operation that a sample gets."""

    name: str
    negative: bool = False
    """The other way round: to the left, darker, less sharp."""


def choices(count: int, *, seed: int, epoch: int, index: int, view: int = 0) -> list[Choice]:
    """The operations of a sample, in order; a function of (seed, epoch, index, view) and nothing else."""
    draw = Draws(seed, epoch, index, view, _STREAM)
    found = []
    for _ in range(count):
        name = OPERATIONS[draw.below(len(OPERATIONS))]
        found.append(Choice(name=name, negative=name in _SIGNED and draw.uniform() < 0.5))
    return found


def strength(name: str, magnitude: int, size_px: int) -> float:
    """What a magnitude means for an operation: a slope, pixels, degrees, a share, bits that stay, a level."""
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
    # in float32 as usual: an angle's last bits decide where a level is cut off
    return float(torch.linspace(first, last, STRENGTHS)[magnitude])


class Augmenter:
    """Changes square images in place; where one is sheared or rotated, pixels are interpolated (bilinear), as in the
    published runs, and what comes from outside is black."""

    def __init__(self, *, size_px: int, operations: int, magnitude: int) -> None:
        self._count = operations
        self._strengths = {name: strength(name, magnitude, size_px) for name in OPERATIONS}

    def augment(self, pixels: Pixels, *, seed: int, epoch: int, index: int, view: int = 0) -> None:
        """Gives a contiguous image (size, size, 3) the operations of its sample."""
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
    """The angle of a slope as the usual definition has it, by way of degrees, last bits included."""
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
"""In the usual order, each as likely as any other."""
_SIGNED = frozenset(OPERATIONS[1:10])


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageBatch:
    """Decoded images and their classes. The images lie in a slot that is used again: see `SamplePool.batches`."""

    images: torch.Tensor
    """uint8, (count, 3, size, size), channels_last."""
    labels: torch.Tensor
    """int64, (count,)."""
    count: int
    global_count: int
    """What all ranks together meant to take in this step; files left out under `skip_bad` are still counted here."""
    mix_draws: tuple[float, ...] = ()
    """Random numbers in [0, 1) for whoever mixes the images with each other."""

    def parts(self, parts: int) -> list[ImageBatch]:
        """This batch as so many smaller ones of like length, none empty, that look at the same memory."""
        parts = min(parts, self.count)
        cuts = [self.count * number // parts for number in range(parts + 1)]
        return [
            replace(self, images=self.images[first:last], labels=self.labels[first:last], count=last - first)
            for first, last in pairwise(cuts)
        ]


class InputPool(SamplePool[ImageBatch]):
    """A pool of images that each have one class."""

    def __init__(
        self,
        sets: Mapping[str, Images],
        *,
        workers: int,
        batch_capacity: int,
        image_px: int = 224,
        eval_resize_px: int = 256,
        crop_area_least: float = MIN_AREA,
        depth: int = 2,
        hold: int = 0,
        skip_bad: int = 0,
        augment_ops: int = 0,
        augment_magnitude: int = 9,
        turn_by_exif: bool = False,
    ) -> None:
        """augment_ops: random operations on each training image after its crop, as strong as augment_magnitude.
        turn_by_exif: make every image upright first, by its camera's note."""
        if augment_ops < 0:
            raise ValueError("an input pool needs augment_ops >= 0")
        maker = _ImageMaker(
            sets=tuple(sets.values()),
            size=image_px,
            resize_to=eval_resize_px,
            least_area=crop_area_least,
            augmenter=Augmenter(size_px=image_px, operations=augment_ops, magnitude=augment_magnitude)
            if augment_ops
            else None,
            decoder=JpegDecoder(turn_by_exif=turn_by_exif),
        )
        super().__init__(
            sets, maker, workers=workers, batch_capacity=batch_capacity, depth=depth, hold=hold, skip_bad=skip_bad
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _ImageMaker:
    sets: Sequence[Images]
    size: int
    resize_to: int
    least_area: float
    augmenter: Augmenter | None
    decoder: JpegDecoder

    @property
    def planes(self) -> Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]:
        return {"pixels": ((self.size, self.size, 3), np.uint8)}

    def read(self, sample: WantedSample) -> PlannedImage:
        choose: functools.partial[Crop]
        if sample.at_random:
            choose = functools.partial(
                train_crop,
                size=self.size,
                seed=sample.seed,
                epoch=sample.epoch,
                index=sample.index,
                view=sample.view,
                least_area=self.least_area,
            )
        else:
            choose = functools.partial(eval_crop, size=self.size, resize_to=self.resize_to)
        data = self.sets[sample.set_number].read(sample.index)
        # what is scored is scored on the pixels of the usual definition, however large the photograph
        return self.decoder.plan(data, choose, may_reduce=sample.at_random)

    def make(self, sample: WantedSample, read: PlannedImage, row: Row) -> None:
        pixels = row["pixels"]
        self.decoder.make(read, pixels)
        if sample.at_random and self.augmenter is not None:
            self.augmenter.augment(pixels, seed=sample.seed, epoch=sample.epoch, index=sample.index, view=sample.view)

    def batch(
        self, set_number: int, rows: Mapping[str, torch.Tensor], indices: npt.NDArray[np.int64], global_count: int
    ) -> ImageBatch:
        return ImageBatch(
            images=rows["pixels"].permute(0, 3, 1, 2),
            labels=torch.from_numpy(self.sets[set_number].labels[indices]),
            count=len(indices),
            global_count=global_count,
        )
