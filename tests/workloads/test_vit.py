"""ViT-B/16 is trained as published: its numbers, its learning rate, its optimizer; and it learns through our reader."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny import at_epoch

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision
from trainmark.record.recipe import apply_settings, deviations
from trainmark.train.setup import build_stepper
from trainmark.workloads.vit.workload import RECIPES, WORKLOAD, ViTRecipe
from trainmark.workloads.workload import Share

FILL = RECIPES["fill"]
QUICK = RECIPES["quick"]
REFERENCE = RECIPES["reference"]
SMOKE = RECIPES["smoke"]


TINY = replace(
    SMOKE,
    batch_per_device=8,
    image_px=32,
    eval_resize_px=36,
    patch_px=8,
    layers=2,
    heads=2,
    hidden=16,
    mlp=32,
    classes=3,
    input_workers=0,
)


def test_the_reference_is_the_published_recipe() -> None:
    published = {
        "batch_per_device": 256,
        "accumulate": 2,
        "learning_rate": 0.003,
        "weight_decay": 0.3,
        "clip_gradient_norm": 1.0,
        "epochs": 300,
        "seed": 41,
        "target": 79.982,
        "eval_batch_per_device": 512,
        "evaluate_in": "fp32",
        "label_smoothing": 0.11,
        "mixup_alpha": 0.2,
        "cutmix_alpha": 1.0,
        "random_augment_ops": 2,
        "random_augment_magnitude": 9,
        "repeated_views": 3,
        "image_px": 224,
        "eval_resize_px": 256,
        "crop_area_least": 0.08,
        "warmup_epochs": 30,
        "warmup_factor": 0.033,
        "layers": 12,
        "heads": 12,
        "hidden": 768,
        "mlp": 3072,
        "patch_px": 16,
        "classes": 1000,
    }
    assert {name: getattr(REFERENCE, name) for name in published} == published
    # eight devices, each taking its batch as often as it accumulates
    assert 8 * REFERENCE.batch_per_device * REFERENCE.accumulate == WORKLOAD.reference_global_batch
    assert FILL == REFERENCE


def test_quick_is_the_full_network_with_the_rate_of_a_small_batch() -> None:
    changed = {deviation.name for deviation in deviations(QUICK, REFERENCE)}
    assert changed <= {
        *("batch_per_device", "accumulate", "learning_rate", "eval_batch_per_device"),
        *("evaluate_after_limit", "checkpoint_every"),
    }
    assert QUICK.learning_rate / QUICK.batch_per_device == pytest.approx(0.003 / 4096, rel=0.03)
    on_accelerators = WORKLOAD.on_accelerators["quick"]
    assert on_accelerators["learning_rate"] / on_accelerators["batch_per_device"] == pytest.approx(0.003 / 4096)


@pytest.mark.parametrize(
    ("epoch", "share"),
    [
        (0, 0.033),
        (15, (0.033 + 1) / 2),
        (29.999, 1.0),
        (30, 1.0),
        (30 + 270 / 3, 0.75),
        (165, 0.5),
        (30 + 270 * 2 / 3, 0.25),
        (300, 0.0),
    ],
)
def test_the_rate_rises_over_thirty_epochs_and_falls_to_nothing_over_the_rest(epoch: float, share: float) -> None:
    assert WORKLOAD.learning_rate(REFERENCE, at_epoch(epoch)) == pytest.approx(0.003 * share, rel=1e-4, abs=1e-12)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("patch_px=15", "images of 224 pixels do not divide into patches of 15"),
        ("heads=7", "a hidden size of 768 does not divide among 7 heads"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_in_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        WORKLOAD.build(apply_settings(REFERENCE, [setting]))


def losses(recipe: ViTRecipe, pictures: Path, passes: int, precision: str = "fp32") -> list[float]:
    """What training says step by step in some passes over the first epoch's images, opened as for a run."""
    device = Platform(files.load("cpu")).open(0)
    stepper = build_stepper(WORKLOAD, recipe, Precision.parse(precision), device, 1)
    with closing(WORKLOAD.open_data(recipe, pictures, Share(rank=0, world=1, local_ranks=1), 0)) as data:
        return [float(stepper.step(batch)) for _ in range(passes) for batch in data.train(0, 0)]


@pytest.mark.slow
def test_a_small_one_learns_images_by_heart(pictures: Path) -> None:
    found = losses(replace(TINY, learning_rate=0.003), pictures, 12)
    assert len(found) == 12 * 6
    assert found[0] == pytest.approx(math.log(3), rel=1e-3)  # the head starts at zero, so all classes are even
    assert sum(found[-6:]) < 0.6 * sum(found[:6])


def test_the_whole_recipe_trains_on_images_in_mixed_precision(pictures: Path) -> None:
    sizes = ("image_px", "eval_resize_px", "patch_px", "layers", "heads", "hidden", "mlp", "classes", "input_workers")
    recipe = replace(REFERENCE, batch_per_device=4, **{name: getattr(TINY, name) for name in sizes})
    found = losses(recipe, pictures, 1, "amp-bf16")
    assert len(found) == 6  # 48 images, eight a step: two micro-batches of four
    assert all(math.isfinite(value) for value in found)
