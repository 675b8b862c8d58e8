"""ViT-B/16 on ImageNet-1k, trained from scratch with the recipe of the published tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainmark.record.recipe import knob
from trainmark.workloads.vision import ImageClassifier, VisionRecipe
from trainmark.workloads.vit.model import VisionTransformer
from trainmark.workloads.workload import KnownWorkload, Progress, optimizer_kwargs


@dataclass(frozen=True, kw_only=True)
class ViTRecipe(VisionRecipe):
    layers: int = knob(12, least=1)
    heads: int = knob(12, least=1)
    hidden: int = knob(768, least=1)
    """Width of a token, divided among the heads."""
    mlp: int = knob(3072, least=1)
    """Inner width of the MLP."""
    patch_px: int = knob(16, least=1)
    warmup_epochs: float = knob(30.0, least=0)
    """Linear warm-up; then cosine decay to 0."""
    warmup_factor: float = knob(0.033, least=0)
    """Initial share of the learning rate in warm-up."""


def torchvision_config(recipe: ViTRecipe) -> dict[str, object]:
    sizes = {"image_size": recipe.image_px, "patch_size": recipe.patch_px, "num_layers": recipe.layers}
    widths = {"num_heads": recipe.heads, "hidden_dim": recipe.hidden, "mlp_dim": recipe.mlp}
    return {"builder": "VisionTransformer", "arguments": {**sizes, **widths, "num_classes": recipe.classes}}


class ViT(ImageClassifier, KnownWorkload):
    exports: Mapping[str, Callable[[ViTRecipe], dict[str, object]]] = {"torchvision": torchvision_config}

    def build(self, recipe: ViTRecipe) -> nn.Module:
        return VisionTransformer(
            image_px=recipe.image_px,
            patch_px=recipe.patch_px,
            layers=recipe.layers,
            heads=recipe.heads,
            hidden=recipe.hidden,
            mlp=recipe.mlp,
            classes=recipe.classes,
        )

    def optimizer(self, parameters: Iterable[Tensor], recipe: ViTRecipe) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **optimizer_kwargs(recipe)
        )

    def learning_rate(self, recipe: ViTRecipe, progress: Progress) -> float:
        rate, warmup, epoch = recipe.learning_rate, recipe.warmup_epochs, progress.epoch
        if epoch < warmup:
            return rate * (recipe.warmup_factor + (1 - recipe.warmup_factor) * epoch / warmup)
        return rate * 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / (recipe.epochs - warmup)))


WORKLOAD = ViT("vit", ViTRecipe)
RECIPES = WORKLOAD.recipes
