"""Training crops and whole evaluation images with their masks, prefetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainmark.data.ade20k import reader, views
from trainmark.data.ade20k.reader import SceneCounts, SceneSet
from trainmark.data.ade20k.views import SceneReader, ViewSettings
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.jpeg import BadImage
from trainmark.data.prefetch import prefetch
from trainmark.data.sample_pool import Row, SampleKey, SamplePool
from trainmark.record.errors import NotReadyError, WorkloadError
from trainmark.record.recipe import Recipe, knob
from trainmark.record.workload_facts import CHANCE, CLASSES
from trainmark.workloads import read_facts
from trainmark.workloads.epochs import EpochSource
from trainmark.workloads.vision import HALVES, IMAGENET, Centring
from trainmark.workloads.workload import PlainBatch, Share

FACTS = read_facts("segmenter")


@dataclass(frozen=True, kw_only=True)
class SegmenterRecipe(Recipe):
    image_px: int = knob(512, least=32)
    """Side of a training crop, and of evaluation's sliding windows."""
    window_stride: int = knob(480, least=1)
    """Stride of the windows in pixels; overlapping scores are averaged."""
    least_scale: float = knob(0.5, least=0.1, most=10)
    most_scale: float = knob(2.0, least=0.1, most=10)
    """A training image's shorter side is resized to `image_px` times a random number between these."""
    photometric: bool = knob(True)
    """Random brightness, contrast, saturation and hue of training images."""
    pixels: str = knob("imagenet", words=("imagenet", "half"))
    """Normalisation of pixels, as the initial weights need: ImageNet's mean and standard deviation, or 0.5 and 0.5."""
    begins_with: str = knob("trained", words=("trained", "random"))
    """Expected initial weights: trained on ImageNet (`--init-from`), or none; if the former are missing, the record has
    a doubt."""
    classes: int = knob(150, least=2, most=254)
    layers: int = knob(12, least=1)
    decoder_layers: int = knob(2, least=1)
    heads: int = knob(12, least=1)
    hidden: int = knob(768, least=1)
    mlp: int = knob(3072, least=1)
    patch_px: int = knob(16, least=1)
    drop_path: float = knob(0.1, least=0, most=0.9)
    """Stochastic depth: drop probability of the last layer of encoder and decoder, rising linearly from 0."""
    loss_mean: str = knob("all", words=("all", "judged"))
    """Denominator of the loss: all pixels of a crop, as in the original, or those not ignored."""
    optimizer: str = knob("sgd", words=("sgd", "adamw"))
    momentum: float = knob(0.9, least=0, most=1)
    least_rate: float = knob(1e-4, least=0)
    """Final learning rate."""
    power: float = knob(0.9, least=0)
    """Exponent of the polynomial decay."""
    warmup_steps: int = knob(0, least=0)
    """Linear warm-up from 0."""
    whole_set: bool = knob(True)
    """Refuse an incomplete data set, by its manifest or the published counts."""

    @property
    def centring(self) -> Centring:
        return IMAGENET if self.pixels == "imagenet" else HALVES


@dataclass(frozen=True, kw_only=True, eq=False)
class CropBatch(PlainBatch):
    """A training batch. Images and masks lie in a reused slot of the pool."""

    per_sample = ("extents",)
    images: Tensor
    """uint8, (count, 3, size, size), channels_last."""
    labels: Tensor
    """uint8, (count, size, size): classes, and 255 for ignored pixels."""
    extents: tuple[tuple[int, int], ...]
    """Rows and columns of each image; the rest is padding."""
    recipe: SegmenterRecipe


@dataclass(frozen=True, kw_only=True, eq=False)
class SceneBatch(PlainBatch):
    """Whole images of various sizes, scored one by one."""

    per_sample = ("images", "labels")
    images: tuple[Tensor, ...]
    """uint8, each (3, height, width), resized for the network."""
    labels: tuple[Tensor, ...]
    """uint8, each (height, width) of the stored image."""
    recipe: SegmenterRecipe


@dataclass(frozen=True, kw_only=True, eq=False)
class _Crops:
    """Makes crops in the pool's workers."""

    scenes: SceneSet
    settings: ViewSettings
    reader: SceneReader
    recipe: SegmenterRecipe

    @property
    def planes(self) -> Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]:
        size = self.settings.size
        return {"pixels": ((size, size, 3), np.uint8), "labels": ((size, size), np.uint8), "extent": ((2,), np.int32)}

    def make(self, sample: SampleKey, row: Row) -> None:
        pixels, labels = self.reader.read(self.scenes, sample.index)
        draw = CounterRng(sample.seed, sample.epoch, sample.index, sample.view)
        row["extent"][:] = views.random_view(pixels, labels, draw, self.settings, (row["pixels"], row["labels"]))

    def batch(self, _: int, rows: Mapping[str, Tensor], indices: npt.NDArray[np.int64], global_count: int) -> CropBatch:
        return CropBatch(
            images=rows["pixels"].permute(0, 3, 1, 2),
            labels=rows["labels"],
            extents=tuple((int(height), int(width)) for height, width in rows["extent"].tolist()),
            recipe=self.recipe,
            count=len(indices),
            global_count=global_count,
        )


class SceneData(EpochSource):
    """A folder of images with masks, open for one rank."""

    def __init__(self, recipe: SegmenterRecipe, folder: Path, share: Share, skip_bad: int) -> None:
        check_folder(recipe, folder)
        self.recipe = recipe
        self._train, self.val = (reader.open_split(folder, split) for split in reader.SPLITS)
        super().__init__(recipe, share, len(self._train))
        self._skip_bad = skip_bad
        self._reader = SceneReader()
        self._counts = np.zeros(len(self.val.names), np.int64)
        self._left_out: dict[str, str] = {}
        settings = ViewSettings(
            size=recipe.image_px,
            least_scale=recipe.least_scale,
            most_scale=recipe.most_scale,
            distorts=recipe.photometric,
        )
        if recipe.photometric:
            views.build_colour_tables()
        self._pool: SamplePool[CropBatch] = SamplePool(
            {"train": self._train},
            _Crops(scenes=self._train, settings=settings, reader=SceneReader(), recipe=self.recipe),
            workers=self.workers,
            batch_capacity=self.largest_share,
            skip_bad=skip_bad,
        )

    @property
    def skipped(self) -> list[tuple[str, str]]:
        return [*self._pool.skipped, *self._left_out.items()]

    @property
    def facts(self) -> dict[str, float]:
        """With the mIoU of predicting the commonest class, for the images evaluated on this rank."""
        counted: dict[str, float] = {"train_samples": len(self._train), "val_samples": len(self.val)}
        chance = one_class_miou(self._counts.tolist())
        return {**counted, CLASSES: len(self.val.names), **({CHANCE: round(chance, 3)} if chance else {})}

    def train(self, epoch: int, start_step: int) -> Iterator[CropBatch]:
        shares = self.train_shares(epoch, start_step)
        # prefetching starts here
        return self._pool.batches("train", shares, transform="train", seed=self._seed, epoch=epoch)

    def evaluation(self) -> Iterator[SceneBatch]:
        """Each image once over all ranks."""
        self._counts[:] = 0
        shares = self.eval_shares(len(self.val))
        return prefetch(self._scenes(share.indices.tolist(), share.global_count) for share in shares)

    def scene(self, index: int) -> tuple[Tensor, Tensor]:
        """A validation image resized for the network, and its classes."""
        pixels, labels = self._reader.read(self.val, index)
        seen = fit_image(pixels, self.recipe.image_px)
        return seen, torch.from_numpy(labels)

    def close(self) -> None:
        self._pool.close()

    def _scenes(self, indices: Sequence[int], global_count: int) -> SceneBatch:
        read = []
        for index in indices:
            try:
                read.append(self.scene(index))
            except (BadImage, OSError) as error:
                self._skip(self.val.path(index), str(error))
                continue
            self._counts += reader.count_pixels(read[-1][1].numpy(), len(self._counts))
        return SceneBatch(
            images=tuple(image for image, _ in read),
            labels=tuple(labels for _, labels in read),
            recipe=self.recipe,
            count=len(read),
            global_count=global_count,
        )

    def _skip(self, path: str, reason: str) -> None:
        if path in self._left_out:
            return
        if len(self.skipped) >= self._skip_bad:
            allowed = f" (skip-bad allows {self._skip_bad} and all are used up)" if self._skip_bad else ""
            raise WorkloadError(f"image {path} cannot be read: {reason}{allowed}")
        self._left_out[path] = reason


def fit_image(pixels: npt.NDArray[np.uint8], size: int) -> Tensor:
    """A stored image (height, width, 3) resized for the network, as (3, height, width)."""
    width, height = views.fit_size(pixels.shape[1], pixels.shape[0], size)
    seen = views.resize(pixels, width, height)
    # without a resize it is still the reused buffer
    return torch.from_numpy(seen.copy() if seen is pixels else seen).permute(2, 0, 1)


def one_class_miou(judged: Sequence[float]) -> float:
    """mIoU in percent of predicting the commonest class, from the pixels per class."""
    present = [count for count in judged if count]
    return 100 * max(present) / sum(present) / len(present) if present else 0.0


def check_folder(recipe: SegmenterRecipe, folder: Path) -> None:
    """Raises NotReadyError if a folder has more classes than the network, or is incomplete."""
    train, val = (reader.open_split(folder, split) for split in reader.SPLITS)
    if len(train.names) > recipe.classes:
        raise NotReadyError(
            f"{folder} has {len(train.names)} classes, the recipe's network {recipe.classes}; "
            f"try --set classes={len(train.names)}"
        )
    found, wanted = SceneCounts(train=len(train), val=len(val)), reader.expected_counts(folder)
    if recipe.whole_set and wanted not in (None, found):
        raise NotReadyError(
            f"{folder} is incomplete: expected {wanted}, found {found}; `trainmark data verify {FACTS.data_set}` says "
            "more, --set whole_set=false trains on it as it is"
        )
