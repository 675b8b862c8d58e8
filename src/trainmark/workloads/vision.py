"""Shared code of image classifiers: data, loss, accuracy, optimizer."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainmark.data import image_sets
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.image_sets import Counts
from trainmark.data.imagenet import make
from trainmark.data.input_pool import ImageBatch, ImageMaker
from trainmark.data.jpeg import BadImage, JpegDecoder, Pixels, eval_crop
from trainmark.data.sample_pool import SamplePool
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import Limits, Recipe, knob
from trainmark.record.sample import ImagePart, Sample, SampleSettings, TextPart
from trainmark.record.workload_facts import CHANCE, CLASSES, QualityFacts, WorkloadFacts
from trainmark.workloads import family_facts
from trainmark.workloads.epochs import EpochSource
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Share, optimizer_kwargs

FAMILY = WorkloadFacts.from_json({"name": "", "title": "", **family_facts("vision")})
"""Facts of all image classifiers."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Centring(NamedTuple):
    """Mean and standard deviation of red, green and blue, in 0 to 1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET, HALVES = Centring(MEAN, STD), Centring((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def normalise(images: Tensor, dtype: torch.dtype, centring: Centring = IMAGENET) -> Tensor:
    """(pixel / 255 - mean) / std of uint8 images (n, 3, height, width), channels_last in `dtype`.

    Computed in float32 and rounded once.
    """
    n, channels, height, width = images.shape
    if channels != 3 or images.dtype != torch.uint8:
        raise ValueError(f"expected uint8 images of 3 channels, got {images.dtype} of shape {tuple(images.shape)}")
    # rows of interleaved pixels with the constants repeated along them: a broadcast over three channels in the
    # innermost place would run in loops of three
    pixels = images.permute(0, 2, 3, 1).reshape(n, height, width * 3)
    scale, shift = _row_constants(width, images.device, centring)
    floats = pixels.to(torch.float32)
    torch.addcmul(shift, floats, scale, out=floats)
    return floats.to(dtype).view(n, height, width, 3).permute(0, 3, 1, 2)


@functools.lru_cache(maxsize=8)
def _row_constants(width: int, device: torch.device, centring: Centring) -> tuple[Tensor, Tensor]:
    """Scale and shift of each value in a row."""
    scale = torch.tensor([1 / (255 * std) for std in centring.std], dtype=torch.float32)
    shift = torch.tensor([-mean / std for mean, std in zip(*centring, strict=True)], dtype=torch.float32)
    return scale.repeat(width).to(device), shift.repeat(width).to(device)


@dataclass(frozen=True, kw_only=True)
class NamingSettings(SampleSettings):
    """The seed chooses the validation image if none is given."""

    top: int = knob(5, least=1, most=1000)
    """Number of classes listed."""


def sample(trained: Trained, request: SampleRequest) -> Sample:
    """The top classes of an image, and the crop that the network saw."""
    settings, recipe = request.settings(NamingSettings), trained.recipe
    titles = _read_titles(request.data, recipe.classes)
    truth: int | None = None
    read: Callable[[], bytes]
    if request.given is None:
        val = image_sets.open_split(request.data_folder, "val")
        number = int(np.random.default_rng(settings.seed).integers(len(val)))
        path, truth = Path(val.path(number)), int(val.labels[number])
        read = partial(val.read, number)
    else:
        path = Path(request.given)
        read = path.read_bytes
    pixels = _read_crop(path, read, recipe.image_px, recipe.eval_resize_px, turn_by_exif=recipe.exif == "turn")
    images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2).to(trained.device.torch)
    scores = trained.model(normalise(images, next(trained.model.parameters()).dtype)).float()[0]
    shares, classes = (found.cpu().tolist() for found in scores.softmax(0).topk(min(settings.top, len(scores))))
    lines = [f"{100 * share:5.1f} %  {titles[number]}" for share, number in zip(shares, classes, strict=True)]
    right = "" if truth is None else f"; it is: {titles[truth]}"
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG", optimize=True)
    found = [
        {"class": number, "name": titles[number], "probability": share}
        for share, number in zip(shares, classes, strict=True)
    ]
    return Sample(
        parts=(
            TextPart(text="\n".join(lines), caption=f"predicted classes of {path.name}{right}"),
            ImagePart(png=png.getvalue(), caption=f"the evaluated crop of {path.name}"),
        ),
        shown=str(path),
        facts={"classes": found, "truth": None if truth is None else titles[truth]},
    )


def _read_titles(folder: Path | None, classes: int) -> list[str]:
    """Names of all classes; numbers without data."""
    found: list[str] = []
    if folder is not None:
        found = make.class_titles(folder, image_sets.class_names(folder))
    return [*found, *(f"class {number}" for number in range(len(found), classes))]


def _read_crop(path: Path, read: Callable[[], bytes], size: int, resize_to: int, *, turn_by_exif: bool) -> Pixels:
    """The evaluation crop (size, size, 3) of an image."""
    pixels = np.empty((size, size, 3), np.uint8)
    try:
        choose = partial(eval_crop, size=size, resize_to=resize_to)
        JpegDecoder(turn_by_exif=turn_by_exif).decode(read(), choose, pixels)
    except BadImage as error:
        raise NotReadyError(f"{path} is no image that can be read: {error}; give a JPEG or a PNG file") from error
    except OSError as error:
        raise NotReadyError(f"{path} cannot be read: {error.strerror or error}") from error
    return pixels


MIX_DRAWS = 4
"""Random numbers per mixed batch: method, share, and position of the box."""


def mix(
    images: Tensor, labels: Tensor, classes: int, draws: Sequence[float], mixup_alpha: float, cutmix_alpha: float
) -> tuple[Tensor, Tensor]:
    """The images, mixed in place, and their targets (images, classes) in float32."""
    which, measure, across, down = draws
    if cutmix_alpha and (not mixup_alpha or which >= 0.5):
        kept = paste(images, random_share(cutmix_alpha, measure), across, down)
    else:
        kept = blend(images, random_share(mixup_alpha, measure))
    return images, soft_targets(labels, classes, kept)


def random_share(alpha: float, draw: float) -> float:
    """Share of an image that is kept, from Beta(alpha, alpha)."""
    # on the host: a share drawn on the device would need a sync, because the box depends on it
    return float(np.random.default_rng(int(draw * 2**53)).beta(alpha, alpha))


def blend(images: Tensor, kept: float) -> float:
    """Mixup: blends each image with the one before; returns the kept share."""
    images.lerp_(_roll(images), 1 - kept)
    return kept


def paste(images: Tensor, kept: float, across: float, down: float) -> float:
    """CutMix: pastes a box of the image before; returns the kept share, after clipping at the edges."""
    height, width = images.shape[-2:]
    left, right = _span(width, kept, across)
    top, bottom = _span(height, kept, down)
    images[..., top:bottom, left:right] = _roll(images[..., top:bottom, left:right])
    return 1 - (right - left) * (bottom - top) / (width * height)


def soft_targets(labels: Tensor, classes: int, kept: float) -> Tensor:
    targets = torch.zeros(len(labels), classes, device=labels.device)
    targets.scatter_(1, labels[:, None], kept)
    others = torch.full((len(labels), 1), 1 - kept, device=labels.device)
    return targets.scatter_add_(1, _roll(labels)[:, None], others)


def _span(length: int, kept: float, centre: float) -> tuple[int, int]:
    """One side of the box around a pixel, clipped to the image."""
    middle, half = int(centre * length), int(0.5 * math.sqrt(1 - kept) * length)
    return max(0, middle - half), min(length, middle + half)


def _roll(tensor: Tensor) -> Tensor:
    """A copy rolled by one. `roll` would not keep channels_last on every device."""
    return torch.cat((tensor[-1:], tensor[:-1]))


@dataclass(frozen=True, kw_only=True)
class VisionRecipe(Recipe):
    """Recipe fields of image classifiers."""

    image_px: int = knob(224, least=32)
    eval_resize_px: int = knob(256, least=32)
    """Size of the shorter side before the centre crop."""
    crop_area_least: float = knob(0.08, least=0.01)
    """Minimum area of a random training crop, as a share of the image."""
    exif: str = knob("ignore", words=("ignore", "turn"))
    """EXIF orientation: ignored, as in the published runs, or applied."""
    classes: int = knob(1000, least=2)
    whole_set: bool = knob(True)
    """Refuse an incomplete data set, by its manifest or the counts of ImageNet-1k."""
    random_augment_ops: int = knob(0, least=0)
    """RandAugment: operations per training image."""
    random_augment_magnitude: int = knob(9, least=0, most=30)
    """RandAugment: magnitude."""
    mixup_alpha: float = knob(0.0, least=0)
    """Mixup's alpha; 0: off. With CutMix, a batch uses either with equal probability."""
    cutmix_alpha: float = knob(0.0, least=0)
    """CutMix's alpha; 0: off."""
    label_smoothing: float = knob(0.0, least=0, most=1)
    """Label smoothing."""
    repeated_views: int = knob(1, least=1)
    """Repeated augmentation: views of a sample per epoch, spread over the ranks; 1: off."""

    @property
    def has_mixing(self) -> bool:
        """Mixup or CutMix; each batch uses one whose alpha is not 0."""
        return self.mixup_alpha > 0 or self.cutmix_alpha > 0

    @property
    def has_soft_targets(self) -> bool:
        """True if targets are not one-hot."""
        return self.has_mixing or self.label_smoothing > 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftBatch(ImageBatch):
    """Images with mixing or label smoothing."""

    recipe: VisionRecipe

    def parts(self, count: int) -> list[ImageBatch]:
        """Micro-batches, mixed separately."""
        return [
            replace(part, mix_draws=self.mix_draws[number * MIX_DRAWS : (number + 1) * MIX_DRAWS])
            for number, part in enumerate(super().parts(count))
        ]


_MIXING_STREAM = int.from_bytes(b"mixing", "big")
"""Ends the key of a batch's random numbers, so that they differ from samples'."""


class ImageData(EpochSource):
    """ImageNet or a set of its shape, open for one rank."""

    def __init__(self, recipe: VisionRecipe, folder: Path, share: Share, skip_bad: int) -> None:
        check_classes(recipe, folder)
        self._train, self._val = (image_sets.open_split(folder, split) for split in ("train", "val"))
        super().__init__(recipe, share, len(self._train))
        self._recipe = recipe
        found = Counts(classes=len(self._train.classes), train=len(self._train), val=len(self._val))
        wanted = image_sets.expected_counts(folder, self._train.classes)
        if recipe.whole_set and wanted not in (None, found):
            raise NotReadyError(
                f"{folder} is incomplete: expected {wanted}, found {found}; `trainmark data verify imagenet` says "
                "more, --set whole_set=false trains on it as it is"
            )
        # an evaluation batch larger than a rank's part of the set would waste memory
        self._eval_batch = min(recipe.eval_batch_per_device, -(-len(self._val) // share.world))
        maker = ImageMaker(
            sets=(self._train, self._val),
            image_px=recipe.image_px,
            eval_resize_px=recipe.eval_resize_px,
            crop_area_least=recipe.crop_area_least,
            augment_ops=recipe.random_augment_ops,
            augment_magnitude=recipe.random_augment_magnitude,
            turn_by_exif=recipe.exif == "turn",
        )
        self._pool: SamplePool[ImageBatch] = SamplePool(
            {"train": self._train, "val": self._val},
            maker,
            workers=self.workers,
            batch_capacity=max(self.largest_share, self._eval_batch),
            skip_bad=skip_bad,
        )

    @property
    def skipped(self) -> list[tuple[str, str]]:
        return self._pool.skipped

    @property
    def facts(self) -> dict[str, float]:
        classes = len(self._train.classes)
        return {
            "train_samples": len(self._train),
            "val_samples": len(self._val),
            CLASSES: classes,
            CHANCE: 100 / classes,
        }

    def train(self, epoch: int, start_step: int) -> Iterator[ImageBatch]:
        shares = self.train_shares(epoch, start_step, repeated_views=self._recipe.repeated_views)
        # prefetching starts here
        batches = self._pool.batches("train", shares, transform="train", seed=self._seed, epoch=epoch)
        return self._soften(batches, epoch, start_step) if self._recipe.has_soft_targets else batches

    def evaluation(self) -> Iterator[ImageBatch]:
        return self._pool.batches("val", self.eval_shares(len(self._val)), transform="eval")

    def close(self) -> None:
        self._pool.close()

    def _soften(self, batches: Iterable[ImageBatch], epoch: int, start_step: int) -> Iterator[SoftBatch]:
        wanted = MIX_DRAWS * self._recipe.accumulate if self._recipe.has_mixing else 0
        for step, batch in enumerate(batches, start_step):
            draw = CounterRng(self._recipe.seed, epoch, step, self._share.rank, _MIXING_STREAM)
            draws = tuple(draw.uniform() for _ in range(wanted))
            yield SoftBatch(**{**vars(batch), "mix_draws": draws}, recipe=self._recipe)


def check_classes(recipe: VisionRecipe, folder: Path) -> None:
    """Raises NotReadyError if validation has classes that training lacks, or the network has fewer classes."""
    classes = len(image_sets.class_names(folder))
    if classes > recipe.classes:
        raise NotReadyError(
            f"{folder} has {classes} classes, the recipe's network {recipe.classes}; try --set classes={classes}"
        )


class ImageClassifier:
    """Image classification; a subclass adds a model and its recipes."""

    item, data_set, task = FAMILY.item, FAMILY.data_set, FAMILY.task
    qualities: Sequence[QualityFacts] = FAMILY.qualities
    shows, target = FAMILY.shows, FAMILY.quality.target
    limits: Mapping[str, Limits] = {"quick": Limits(half_width=0.02, seconds=60)}
    sums: tuple[str, ...] = ("top1", "top5", "loss")

    def check_data(self, recipe: VisionRecipe, folder: Path, world: int) -> None:
        check_classes(recipe, folder)

    def open_data(self, recipe: VisionRecipe, folder: Path, share: Share, skip_bad: int) -> ImageData:
        return ImageData(recipe, folder, share, skip_bad)

    def blank_batch(self, recipe: VisionRecipe) -> ImageBatch:
        count, size = recipe.step_batch_per_device, recipe.image_px
        images = torch.empty(count, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.empty(count, dtype=torch.long)
        batch = ImageBatch(images=images, labels=labels, count=count, global_count=count)
        draws = (0.5,) * (MIX_DRAWS * recipe.accumulate if recipe.has_mixing else 0)
        return SoftBatch(**{**vars(batch), "mix_draws": draws}, recipe=recipe) if recipe.has_soft_targets else batch

    def scaled_learning_rate(self, recipe: VisionRecipe, batch_per_device: int) -> float:
        """Linear scaling, as in the published rows: 0.1 for 32 images per device, 0.8 for 256."""
        return recipe.learning_rate * batch_per_device / recipe.batch_per_device

    def items(self, batch: ImageBatch) -> int:
        return batch.count

    def build(self, recipe: Any) -> nn.Module:
        raise NotImplementedError

    def flops_per_item(self, recipe: VisionRecipe) -> float:
        """Counted on meta tensors; two images, because some networks normalise over the batch."""
        with torch.device("meta"):
            model = self.build(recipe)
            images = torch.empty(2, 3, recipe.image_px, recipe.image_px)
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
        return float(counter.get_total_flops()) / 2

    def loss(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        if not isinstance(batch, SoftBatch):
            return F.cross_entropy(self.scores(model, batch), batch.labels)
        images, targets, how = _inputs(model, batch), batch.labels, batch.recipe
        if how.has_mixing:
            images, targets = mix(images, targets, how.classes, batch.mix_draws, how.mixup_alpha, how.cutmix_alpha)
        return F.cross_entropy(model(images).float(), targets, label_smoothing=how.label_smoothing)

    def score(self, model: nn.Module, batch: ImageBatch) -> dict[str, Tensor]:
        scores = self.scores(model, batch)
        best = scores.topk(min(5, scores.shape[1]), dim=1).indices == batch.labels[:, None]
        return {
            "top1": best[:, 0].sum(),
            "top5": best.sum(),
            "loss": F.cross_entropy(scores, batch.labels, reduction="sum"),
        }

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        samples = sums["samples"]
        return {
            "acc1": 100 * sums["top1"] / samples,
            "acc5": 100 * sums["top5"] / samples,
            "val_loss": sums["loss"] / samples,
        }

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        return sample(trained, request)

    def scores(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Logits in float32."""
        return model(_inputs(model, batch)).float()  # type: ignore[no-any-return]


def _inputs(model: nn.Module, batch: ImageBatch) -> Tensor:
    return normalise(batch.images, next(model.parameters()).dtype)


def sgd(parameters: Iterable[Tensor], recipe: Recipe, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        parameters,
        lr=recipe.learning_rate,
        momentum=momentum,
        weight_decay=recipe.weight_decay,
        **optimizer_kwargs(recipe),
    )
