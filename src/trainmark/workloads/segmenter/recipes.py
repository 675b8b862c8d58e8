"""Recipes of Segmenter: the published one, and smaller ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainmark.record.recipe import Recipe, knob
from trainmark.workloads.segmenter.facts import PUBLISHED


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


REFERENCE = SegmenterRecipe(
    **PUBLISHED.recipe,
    steps=160_000,
    eval_batch_per_device=1,
    evaluate_every="16000 steps",
    evaluate_in="fp32",
    checkpoint_every="16000 steps",
    leave_sample=True,
    seed=0,
    memory_format="contiguous",
)
FILL = REFERENCE
QUICK = replace(
    REFERENCE,
    begins_with="random",
    image_px=256,
    window_stride=240,
    learning_rate=1e-4,
    least_rate=1e-5,
    checkpoint_every="never",
    leave_sample=False,
)
"""Smaller crops on a CPU, where one of 512 pixels takes ten seconds; and no evaluation there, which would take longer
than all the rest."""
SMOKE = replace(
    REFERENCE,
    begins_with="random",
    batch_per_device=16,
    learning_rate=2e-3,
    least_rate=1e-5,
    optimizer="adamw",
    weight_decay=0.01,
    warmup_steps=50,
    epochs=0,
    steps=1300,
    target=45.0,
    evaluate_every="200 steps",
    checkpoint_every="end",
    classes=6,
    image_px=96,
    window_stride=72,
    least_scale=0.75,
    most_scale=1.5,
    photometric=False,
    patch_px=8,
    layers=4,
    decoder_layers=1,
    heads=4,
    hidden=64,
    mlp=128,
    drop_path=0.0,
)
