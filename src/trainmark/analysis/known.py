"""What is known of the three published trainings whoever ran them: their data, their recipe, their target."""

from __future__ import annotations

from dataclasses import dataclass

CLIP_FRAMES = 566
"""Mel frames of a clip of LJSpeech, on average."""


@dataclass(frozen=True, kw_only=True)
class Known:
    data: str
    item: str
    items_per_epoch: float
    """Of the real training set; mel frames are an average, so their sum is good to a few percent."""
    epochs: int
    """The cap of the reference recipe."""
    batch_per_device: int
    learning_rate: float
    weight_decay: float
    accumulate: int
    global_batch: int
    """Of the reference recipe, over all devices and micro-batches."""
    quality: str
    quality_unit: str
    target: float
    better: str


KNOWN = {
    "resnet50": Known(
        data="imagenet",
        item="images",
        items_per_epoch=1_281_167,
        epochs=100,
        batch_per_device=32,
        learning_rate=0.1,
        weight_decay=1e-4,
        accumulate=1,
        global_batch=256,
        quality="acc1",
        quality_unit="%",
        target=75.5,
        better="higher",
    ),
    "vit": Known(
        data="imagenet",
        item="images",
        items_per_epoch=1_281_167,
        epochs=300,
        batch_per_device=256,
        learning_rate=0.003,
        weight_decay=0.3,
        accumulate=2,
        global_batch=4096,
        quality="acc1",
        quality_unit="%",
        target=79.982,
        better="higher",
    ),
    "tacotron2": Known(
        data="ljspeech",
        item="mel frames",
        items_per_epoch=12_500 * CLIP_FRAMES,
        epochs=1501,
        batch_per_device=128,
        learning_rate=0.001,
        weight_decay=1e-6,
        accumulate=1,
        global_batch=1024,
        quality="val_loss",
        quality_unit="-",
        target=0.4852,
        better="lower",
    ),
}
