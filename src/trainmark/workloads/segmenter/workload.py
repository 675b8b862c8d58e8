"""Segmenter (ViT-B/16 with a mask transformer) on ADE20K, with the published recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainmark.data.ade20k.reader import IGNORED
from trainmark.record.errors import UsageError
from trainmark.record.sample import Sample
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.segmenter import scoring, show
from trainmark.workloads.segmenter.batches import (
    CropBatch,
    SceneBatch,
    SceneData,
    SegmenterRecipe,
    check_folder,
)
from trainmark.workloads.segmenter.model import Segmenter
from trainmark.workloads.vision import normalise, sgd
from trainmark.workloads.workload import KnownWorkload, Progress, Share, optimizer_kwargs


class SegmenterOnScenes(KnownWorkload):
    sums: tuple[str, ...] = scoring.SUMS

    def check_data(self, recipe: SegmenterRecipe, folder: Path, world: int) -> None:
        check_folder(recipe, folder)

    def open_data(self, recipe: SegmenterRecipe, folder: Path, share: Share, skip_bad: int) -> SceneData:
        return SceneData(recipe, folder, share, skip_bad)

    def blank_batch(self, recipe: SegmenterRecipe) -> CropBatch:
        count, size = recipe.step_batch_per_device, recipe.image_px
        return CropBatch(
            images=torch.empty(count, size, size, 3, dtype=torch.uint8).permute(0, 3, 1, 2),
            labels=torch.empty(count, size, size, dtype=torch.uint8),
            extents=((size, size),) * count,
            recipe=recipe,
            count=count,
            global_count=count,
        )

    def build(self, recipe: SegmenterRecipe) -> Segmenter:
        if recipe.window_stride > recipe.image_px:
            raise UsageError(
                f"windows of {recipe.image_px} pixels every {recipe.window_stride} leave gaps; "
                "set window_stride to image_px or less"
            )
        if recipe.least_scale > recipe.most_scale:
            raise UsageError(
                f"least_scale {recipe.least_scale:g} is above most_scale {recipe.most_scale:g}; change one of them"
            )
        return Segmenter(
            image_px=recipe.image_px,
            patch_px=recipe.patch_px,
            layers=recipe.layers,
            decoder_layers=recipe.decoder_layers,
            heads=recipe.heads,
            hidden=recipe.hidden,
            mlp=recipe.mlp,
            classes=recipe.classes,
            drop_path=recipe.drop_path,
        )

    def optimizer(self, parameters: Iterable[Tensor], recipe: SegmenterRecipe) -> torch.optim.Optimizer:
        if recipe.optimizer == "sgd":
            return sgd(parameters, recipe, recipe.momentum)
        return torch.optim.AdamW(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: SegmenterRecipe, progress: Progress) -> float:
        """Polynomial decay per step."""
        left = max(0.0, 1 - progress.fraction)
        falling = (recipe.learning_rate - recipe.least_rate) * math.pow(left, recipe.power) + recipe.least_rate
        return falling * min(1.0, (progress.step + 1) / recipe.warmup_steps) if recipe.warmup_steps else falling

    def scaled_learning_rate(self, recipe: SegmenterRecipe, batch_per_device: int) -> float:
        """Linear scaling; the authors published one batch size."""
        return recipe.learning_rate * batch_per_device / recipe.batch_per_device

    def items(self, batch: CropBatch) -> int:
        return batch.count

    def flops_per_item(self, recipe: SegmenterRecipe) -> float:
        """FLOPs of a crop, counted on meta tensors."""
        with torch.device("meta"):
            model = self.build(recipe)
            images = torch.empty(1, 3, recipe.image_px, recipe.image_px)
        with FlopCounterMode(display=False) as counter:
            model(images).sum().backward()
        return float(counter.get_total_flops())

    def loss(self, model: nn.Module, batch: CropBatch) -> Tensor:
        """Cross-entropy, averaged over all pixels or those not ignored."""
        size, labels = batch.recipe.image_px, batch.labels.long()
        images = normalise(batch.images, next(model.parameters()).dtype, centring=batch.recipe.centring)
        for image, (rows, columns) in zip(images, batch.extents, strict=True):
            if (rows, columns) != (size, size):  # padding is zero after normalisation, not black
                image[:, rows:] = 0
                image[:, :, columns:] = 0
        return pixel_loss(model(images), labels, batch.recipe.loss_mean == "judged")

    def score(self, model: nn.Module, batch: SceneBatch) -> dict[str, Tensor]:
        """Image by image, so that a result does not depend on the others of a rank."""
        recipe = batch.recipe
        sums = dict.fromkeys(
            self.sums, torch.zeros(recipe.classes, dtype=torch.long, device=next(model.parameters()).device)
        )
        for image, labels in zip(batch.images, batch.labels, strict=True):
            found = scoring.predict(model, image, (labels.shape[0], labels.shape[1]), recipe)
            best = scoring.ceiling(labels, (image.shape[1], image.shape[2]), recipe.patch_px)
            right, taken, judged = scoring.count(found, labels, recipe.classes)
            best_right, best_taken, _ = scoring.count(best, labels, recipe.classes)
            counted = zip(self.sums, (right, taken, judged, best_right, best_taken), strict=True)
            sums = {name: sums[name] + number for name, number in counted}
        return sums

    def quality(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return scoring.qualities(sums)

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        return show.sample(trained, request)


def pixel_loss(scores: Tensor, labels: Tensor, judged_mean: bool) -> Tensor:
    """Cross-entropy of scores (N, classes, height, width), averaged over all pixels or those not ignored."""
    total = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if judged_mean else labels.numel())


WORKLOAD = SegmenterOnScenes("segmenter", SegmenterRecipe)
RECIPES = WORKLOAD.recipes
