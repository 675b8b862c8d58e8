"""Images and classes are mixed in the same measure, by the usual definitions of mixup and cutmix."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from trainmark.data.distributed_sampler import CounterRng
from trainmark.workloads import vision

SIDE = 20
LABELS = torch.tensor([0, 2, 1, 2])


def flat(values: tuple[float, ...] = (0.0, 10.0, 20.0, 30.0), width: int = SIDE) -> Tensor:
    """Images of one colour each, so that what a pixel is made of can be read off its value."""
    images = torch.tensor(values)[:, None, None, None].repeat(1, 3, SIDE, width)
    return images.contiguous(memory_format=torch.channels_last)


def test_mixup_blends_each_image_with_the_one_before() -> None:
    images = flat()
    assert vision.blend(images, 0.75) == 0.75
    expected = [0.75 * own + 0.25 * other for own, other in [(0, 30), (10, 0), (20, 10), (30, 20)]]
    torch.testing.assert_close(images, flat(tuple(expected)))


def test_cutmix_pastes_a_box_of_the_image_before() -> None:
    """A quarter is taken: a box of half the side around the pixel (10, 10)."""
    images = flat()
    assert vision.paste(images, 0.75, 0.5, 0.5) == 0.75
    expected = flat()
    for place, other in enumerate((30.0, 0.0, 10.0, 20.0)):
        expected[place, :, 5:15, 5:15] = other
    torch.testing.assert_close(images, expected)


@pytest.mark.parametrize(
    ("across", "down", "rows", "columns"),
    [
        (0.0, 0.0, slice(0, 5), slice(0, 10)),
        (0.999, 0.5, slice(5, 15), slice(29, 40)),
        (0.5, 0.999, slice(14, 20), slice(10, 30)),
    ],
)
def test_a_box_over_the_edge_counts_for_what_is_inside(across: float, down: float, rows: slice, columns: slice) -> None:
    images, expected = flat(width=40), flat(width=40)
    kept = vision.paste(images, 0.75, across, down)
    for place, other in enumerate((30.0, 0.0, 10.0, 20.0)):
        expected[place, :, rows, columns] = other
    torch.testing.assert_close(images, expected)
    assert kept == 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / 800
    assert kept == pytest.approx(float((images[0] == 0).float().mean()), abs=1e-6)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_all_or_nothing_of_an_image_may_be_taken(kept: float) -> None:
    rolled, own = flat((30.0, 0.0, 10.0, 20.0)), flat()
    for way in (vision.blend(images := flat(), kept), vision.paste(pasted := flat(), kept, 0.5, 0.5)):
        assert way == kept
    torch.testing.assert_close(images, own if kept else rolled)
    torch.testing.assert_close(pasted, own if kept else rolled)


def test_targets_hold_both_classes_in_the_measure_of_the_images() -> None:
    found = vision.soft_targets(LABELS, 3, 0.75)
    torch.testing.assert_close(
        found, torch.tensor([[0.75, 0, 0.25], [0.25, 0, 0.75], [0, 0.75, 0.25], [0, 0.25, 0.75]])
    )
    torch.testing.assert_close(vision.soft_targets(torch.tensor([1, 1]), 2, 0.3), torch.tensor([[0.0, 1.0]] * 2))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_the_kept_share_follows_the_beta_law(alpha: float) -> None:
    draw = CounterRng(1, 2, 3)
    shares = [vision.random_share(alpha, draw.uniform()) for _ in range(2000)]
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def is_pasted(images: Tensor) -> bool:
    """After cutmix every pixel is one of the colours there were."""
    return bool(torch.isin(images, flat()).all())


@pytest.mark.parametrize(
    ("which", "mixup", "cutmix", "pasted"),
    [(0.49, 0.2, 1.0, False), (0.5, 0.2, 1.0, True), (0.9, 0.2, 0.0, False), (0.1, 0.0, 1.0, True)],
)
def test_a_batch_takes_one_of_the_ways_the_recipe_has(which: float, mixup: float, cutmix: float, pasted: bool) -> None:
    images, targets = vision.mix(flat(), LABELS, 3, (which, 0.3, 0.5, 0.5), mixup, cutmix)
    assert is_pasted(images) == pasted
    kept = float(targets[0, 0])
    assert 0 < kept < 1
    assert float(images[0].mean()) == pytest.approx(30 * (1 - kept), rel=1e-4)  # the first image is black


def test_equal_draws_mix_equally_and_others_differently() -> None:
    draws = [(0.2, 0.3, 0.4, 0.5), (0.2, 0.3, 0.4, 0.5), (0.2, 0.31, 0.4, 0.5)]
    first, same, other = (vision.mix(flat(), LABELS, 3, draw, 0.2, 1.0) for draw in draws)
    assert torch.equal(first[0], same[0]) and torch.equal(first[1], same[1])
    assert not torch.equal(first[0], other[0])


def test_an_image_alone_in_its_batch_stays_itself() -> None:
    images, targets = vision.mix(flat((7.0,)), torch.tensor([2]), 3, (0.2, 0.3, 0.4, 0.5), 0.2, 1.0)
    torch.testing.assert_close(images, flat((7.0,)))
    torch.testing.assert_close(targets, torch.tensor([[0.0, 0.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", [0.1, 0.9])
def test_type_and_memory_format_of_the_images_stay(dtype: torch.dtype, which: float) -> None:
    given = flat().to(dtype)
    images, targets = vision.mix(given, LABELS, 3, (which, 0.3, 0.4, 0.5), 0.2, 1.0)
    assert images.data_ptr() == given.data_ptr()
    assert images.dtype == dtype and images.is_contiguous(memory_format=torch.channels_last)
    assert targets.dtype == torch.float32
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
