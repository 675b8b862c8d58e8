"""Image classifiers mix and smooth what they train on, and are scored on images and classes as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from trainmark.data.input_pool import ImageBatch
from trainmark.record.recipe import apply_settings, deviations
from trainmark.workloads import vision
from trainmark.workloads.vision import ImageClassifier, ImageData, SoftBatch, VisionRecipe, normalise
from trainmark.workloads.workload import Share

RECIPE = VisionRecipe(
    batch_per_device=4,
    learning_rate=0.1,
    weight_decay=0.0,
    epochs=2,
    target=50.0,
    eval_batch_per_device=5,
    image_px=32,
    eval_resize_px=36,
    classes=3,
    input_workers=0,
)
SOFT = replace(RECIPE, mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1)


@contextmanager
def open_data(folder: Path, recipe: VisionRecipe = RECIPE, rank: int = 0, world: int = 1) -> Iterator[ImageData]:
    with closing(ImageData(recipe, folder, Share(rank=rank, world=world, local_ranks=world), 0)) as data:
        yield data


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 16, 3))


def batch(**changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return {
        "images": images.contiguous(memory_format=torch.channels_last),
        "labels": torch.tensor([0, 2, 1, 2]),
        "count": 4,
        "global_count": 4,
        **changes,
    }


def how(mixup_alpha: float = 0.0, cutmix_alpha: float = 0.0, label_smoothing: float = 0.0) -> VisionRecipe:
    changes = {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha, "label_smoothing": label_smoothing}
    return VisionRecipe(batch_per_device=4, learning_rate=0.1, weight_decay=0, target=1.0, classes=3, **changes)


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return -(targets * scores.log_softmax(1)).sum(1).mean()


def test_smoothed_targets_share_a_part_among_all_classes() -> None:
    model = network()
    targets = 0.9 * F.one_hot(batch()["labels"], 3) + 0.1 / 3
    expected = cross_entropy(model(normalise(batch()["images"], torch.float32)), targets)
    found = ImageClassifier().loss(model, SoftBatch(**batch(), recipe=how(label_smoothing=0.1)))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("which", [0.2, 0.7])
def test_the_loss_is_the_cross_entropy_of_mixed_images_on_mixed_and_smoothed_targets(which: float) -> None:
    model, draws = network(), (which, 0.3, 0.4, 0.6)
    images, targets = vision.mix(normalise(batch()["images"], torch.float32), batch()["labels"], 3, draws, 0.2, 1.0)
    expected = cross_entropy(model(images), 0.9 * targets + 0.1 / 3)
    soft = SoftBatch(**batch(mix_draws=draws), recipe=how(0.2, 1.0, 0.1))
    torch.testing.assert_close(ImageClassifier().loss(model, soft), expected)
    assert torch.equal(soft.images, batch()["images"])  # the bytes may lie in memory that is read again


def test_without_softening_the_loss_is_the_plain_one() -> None:
    model, plain = network(), ImageBatch(**batch())
    found = ImageClassifier().loss(model, plain)
    assert torch.equal(found, F.cross_entropy(model(normalise(plain.images, torch.float32)), plain.labels))
    assert torch.equal(found, ImageClassifier().loss(model, SoftBatch(**batch(), recipe=how())))


def test_a_score_knows_nothing_of_mixing_and_smoothing() -> None:
    model = network()
    soft = SoftBatch(**batch(mix_draws=(0.2, 0.3, 0.4, 0.6)), recipe=how(0.2, 1.0, 0.1))
    assert ImageClassifier().score(model, soft) == ImageClassifier().score(model, ImageBatch(**batch()))


def test_each_micro_batch_is_mixed_by_its_own_draws() -> None:
    draws = tuple(number / 10 for number in range(8))
    first, second = SoftBatch(**batch(mix_draws=draws), recipe=how(0.2, 1.0)).parts(2)
    assert (first.mix_draws, second.mix_draws) == (draws[:4], draws[4:])
    assert isinstance(first, SoftBatch) and isinstance(second, SoftBatch)
    assert first.labels.tolist() + second.labels.tolist() == [0, 2, 1, 2]


def draws(data: ImageData, epoch: int = 0, start_step: int = 0) -> list[tuple[float, ...]]:
    return [batch.mix_draws for batch in data.train(epoch, start_step)]


def test_draws_belong_to_a_step_of_an_epoch_on_a_rank(pictures: Path) -> None:
    with open_data(pictures, SOFT) as data:
        first, again, later = draws(data), draws(data), draws(data, start_step=5)
        other = draws(data, epoch=1)
    assert first == again
    assert first[5:] == later
    assert len({*first, *other}) == 24
    with open_data(pictures, SOFT, rank=0, world=2) as one, open_data(pictures, SOFT, rank=1, world=2) as two:
        assert draws(one) == first[:6]
        assert not {*draws(one)} & {*draws(two)}
    with open_data(pictures, replace(SOFT, seed=1)) as data:
        assert not {*draws(data)} & {*first}


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 4), ({"accumulate": 2}, 8), ({"mixup_alpha": 0.0}, 4), ({"mixup_alpha": 0.0, "cutmix_alpha": 0.0}, 0)],
)
def test_there_are_draws_for_every_micro_batch_that_is_mixed(
    pictures: Path, changes: dict[str, Any], count: int
) -> None:
    with open_data(pictures, replace(SOFT, **changes)) as data:
        assert {len(found) for found in draws(data)} == {count}


def test_batches_are_plain_in_evaluation_and_where_the_recipe_softens_nothing(pictures: Path) -> None:
    with open_data(pictures, SOFT) as data:
        assert {type(batch) for batch in data.train(0, 0)} == {SoftBatch}
        assert {type(batch) for batch in data.evaluation()} == {ImageBatch}
    with open_data(pictures) as data:
        assert {type(batch) for batch in data.train(0, 0)} == {ImageBatch}


def test_repeated_views_show_fewer_images_in_more_crops_where_there_are_ranks(pictures: Path) -> None:
    """Three classes of 16: seen three times each, 16 of the images cannot be equally many of each class."""
    recipe = replace(RECIPE, repeated_views=3)

    def seen(world: int) -> list[int]:
        labels, crops = [], set()
        for rank in range(world):
            with open_data(pictures, recipe, rank, world) as data:
                for batch in data.train(0, 0):
                    labels += batch.labels.tolist()
                    crops |= {image.tobytes() for image in batch.images.numpy()}
        assert len(crops) == len(labels) == 48
        return [labels.count(label) for label in range(3)]

    assert seen(1) == [16, 16, 16]
    assert [count % 3 for count in seen(2)] == [0, 0, 0]


def test_random_operations_change_training_images_and_no_others(pictures: Path) -> None:
    def pixels(recipe: VisionRecipe) -> tuple[Tensor, Tensor]:
        with open_data(pictures, recipe) as data:
            return next(data.train(0, 0)).images.clone(), next(data.evaluation()).images.clone()

    plain, augmented = pixels(RECIPE), pixels(replace(RECIPE, random_augment_ops=2))
    assert not torch.equal(plain[0], augmented[0])
    assert torch.equal(plain[1], augmented[1])
    assert not torch.equal(augmented[0], pixels(replace(RECIPE, random_augment_ops=2, random_augment_magnitude=20))[0])


def test_images_are_turned_by_their_cameras_note_only_where_the_recipe_says_so(tmp_path: Path) -> None:
    note = Image.Exif()
    note[0x0112] = 3  # held upside down
    rows = np.linspace(0, 255, 48).astype(np.uint8)
    for split in ("train", "val"):
        (tmp_path / split / "n00").mkdir(parents=True)
        image = Image.fromarray(np.broadcast_to(rows[:, None, None], (48, 48, 3)))
        image.save(tmp_path / split / "n00" / "0.JPEG", quality=95, exif=note)

    def top_and_bottom(recipe: VisionRecipe) -> list[bool]:
        with open_data(tmp_path, recipe) as data:
            batches = next(data.train(0, 0)), next(data.evaluation())
            return [
                bool(each.images[0, 0, 0].float().mean() > each.images[0, 0, -1].float().mean()) for each in batches
            ]

    turned = apply_settings(RECIPE, ["exif=turn"])
    assert top_and_bottom(RECIPE) == [False, False]
    assert top_and_bottom(turned) == [True, True]
    assert [(deviation.name, deviation.actual) for deviation in deviations(turned, RECIPE)] == [("exif", "turn")]
