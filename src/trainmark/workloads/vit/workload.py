"""ViT-B/16 on ImageNet-1k, trained from scratch with the recipe of the published tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trainmark.record.errors import UsageError
from trainmark.record.recipe import Recipe, knob
from trainmark.workloads import read_reference
from trainmark.workloads.vision import ImageClassifier, VisionRecipe
from trainmark.workloads.vit.model import VisionTransformer
from trainmark.workloads.workload import Progress, optimizer_kwargs

FACTS, PUBLISHED = read_reference("vit")


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


REFERENCE = ViTRecipe(
    **PUBLISHED.recipe,
    eval_batch_per_device=512,
    evaluate_in="fp32",
    checkpoint_every="1 epoch",
    seed=41,
    memory_format="contiguous",
    clip_gradient_norm=1.0,
    label_smoothing=0.11,
    mixup_alpha=0.2,
    cutmix_alpha=1.0,
    random_augment_ops=2,
    random_augment_magnitude=9,
    repeated_views=3,
)
FILL = REFERENCE
"""The published throughput rows use the reference's own batch and rate."""
QUICK = replace(
    REFERENCE,
    batch_per_device=4,
    accumulate=1,
    learning_rate=3e-6,
    eval_batch_per_device=16,
    checkpoint_every="never",
)
"""On a CPU without evaluation, which would take longer than training: a few images per second."""
SMOKE = replace(
    REFERENCE,
    batch_per_device=32,
    accumulate=1,
    learning_rate=0.001,
    weight_decay=0.05,
    epochs=22,
    target=65.0,
    eval_batch_per_device=200,
    checkpoint_every="end",
    classes=10,
    image_px=64,
    eval_resize_px=73,
    crop_area_least=0.5,
    patch_px=8,
    layers=4,
    heads=4,
    hidden=64,
    mlp=128,
    warmup_epochs=2.0,
    label_smoothing=0.0,
    mixup_alpha=0.0,
    cutmix_alpha=0.0,
    random_augment_ops=0,
    repeated_views=1,
)


def torchvision_config(recipe: ViTRecipe) -> dict[str, object]:
    sizes = {"image_size": recipe.image_px, "patch_size": recipe.patch_px, "num_layers": recipe.layers}
    widths = {"num_heads": recipe.heads, "hidden_dim": recipe.hidden, "mlp_dim": recipe.mlp}
    return {"builder": "VisionTransformer", "arguments": {**sizes, **widths, "num_classes": recipe.classes}}


class ViT(ImageClassifier):
    facts, name = FACTS, FACTS.name
    exports: Mapping[str, Callable[[ViTRecipe], dict[str, object]]] = {"torchvision": torchvision_config}
    recipes: Mapping[str, Recipe] = {"reference": REFERENCE, "fill": FILL, "quick": QUICK, "smoke": SMOKE}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {
        "quick": {
            "batch_per_device": 256,
            "learning_rate": PUBLISHED.learning_rate * 256 / PUBLISHED.global_batch,
            "eval_batch_per_device": 512,
            "evaluate_after_limit": True,
        }
    }
    reference_global_batch = PUBLISHED.global_batch

    def build(self, recipe: ViTRecipe) -> nn.Module:
        if recipe.image_px % recipe.patch_px:
            raise UsageError(
                f"images of {recipe.image_px} pixels do not divide into patches of {recipe.patch_px}; "
                "change image_px or patch_px so that they do"
            )
        if recipe.hidden % recipe.heads:
            raise UsageError(
                f"a hidden size of {recipe.hidden} does not divide among {recipe.heads} heads; "
                "change hidden or heads so that it does"
            )
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


WORKLOAD = ViT()
