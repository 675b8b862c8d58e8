"""Decodes images in worker processes, cropped and augmented, into batches of memory shared with the trainer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from trainmark.data.augment import Augmenter
from trainmark.data.crops import LEAST_AREA, Crop, eval_crop, train_crop
from trainmark.data.image_sets import Images
from trainmark.data.jpeg import JpegDecoder, PlannedImage
from trainmark.data.sample_pool import Row, SamplePool, WantedSample


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
        crop_area_least: float = LEAST_AREA,
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
        maker = _Pictures(
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
class _Pictures:
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
