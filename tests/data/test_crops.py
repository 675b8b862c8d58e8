from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings, strategies as st

from trainmark.data.jpeg import Crop, eval_crop, train_crop

sides = st.integers(1, 5000)
words = st.integers(-(2**63), 2**63 - 1)


def crop(index: int = 0, *, width: int = 500, height: int = 375, seed: int = 0, epoch: int = 0, view: int = 0) -> Crop:
    return train_crop(width, height, size=224, seed=seed, epoch=epoch, index=index, view=view)


@settings(deadline=None, derandomize=True)
@given(width=sides, height=sides, seed=words, epoch=st.integers(0, 1000), index=words)
def test_a_random_crop_lies_within_the_image(width: int, height: int, seed: int, epoch: int, index: int) -> None:
    box = crop(index, width=width, height=height, seed=seed, epoch=epoch)
    assert 0 <= box.top < box.top + box.height <= height
    assert 0 <= box.left < box.left + box.width <= width
    assert (box.resized_height, box.resized_width, box.keep_top, box.keep_left, box.size) == (224, 224, 0, 0, 224)


def test_a_crop_is_a_function_of_its_key_and_each_part_of_the_key_matters() -> None:
    assert crop(7, seed=1, epoch=2, view=1) == crop(7, seed=1, epoch=2, view=1)
    different = {crop(7), crop(8), crop(7, seed=1), crop(7, epoch=1), crop(7, view=1), crop(1, epoch=7), crop(-7)}
    assert len(different) == 7


def test_random_crops_have_the_usual_distribution() -> None:
    crops = [crop(index, width=4000, height=1000) for index in range(4000)]
    # on a wide image the height limits the crop: only shapes that fit are taken
    assert all(0.74 < box.width / box.height < 1.34 for box in crops)
    crops = [crop(index, width=1000, height=1000) for index in range(4000)]
    shares = [box.width * box.height / 1e6 for box in crops]
    assert 0.079 < min(shares) < 0.09 and 0.97 < max(shares) <= 1.0
    # what fits is a little smaller than what is drawn (mean 0.54), because large shapes must be nearly square
    assert 0.45 < statistics.mean(shares) < 0.54
    assert abs(statistics.mean(math.log(box.width / box.height) for box in crops)) < 0.01
    assert abs(statistics.mean(box.flip for box in crops) - 0.5) < 0.03
    assert abs(statistics.mean(box.top - (1000 - box.height - box.top) for box in crops)) < 15
    # neighbouring samples are not alike
    assert abs(statistics.correlation(shares[:-1], shares[1:])) < 0.05


@pytest.mark.parametrize(("width", "height", "box"), [(4000, 3, (0, 1998, 3, 4)), (3, 4000, (1998, 0, 4, 3))])
def test_an_image_too_narrow_for_any_shape_gives_its_middle(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    found = crop(width=width, height=height)
    assert (found.top, found.left, found.height, found.width) == box


@pytest.mark.parametrize(
    ("width", "height", "resized", "kept"),
    [(500, 375, (256, 341), (16, 58)), (375, 500, (341, 256), (58, 16)), (10, 10, (256, 256), (16, 16))],
)
def test_evaluation_resizes_the_shorter_side_and_keeps_the_centre(
    width: int, height: int, resized: tuple[int, int], kept: tuple[int, int]
) -> None:
    box = eval_crop(width, height, size=224, resize_to=256)
    assert (box.top, box.left, box.height, box.width) == (0, 0, height, width)
    assert (box.resized_height, box.resized_width) == resized
    assert (box.keep_top, box.keep_left, box.flip) == (*kept, False)


def test_a_square_larger_than_the_resized_side_is_refused() -> None:
    with pytest.raises(ValueError, match="224 does not fit"):
        eval_crop(500, 375, size=224, resize_to=200)
