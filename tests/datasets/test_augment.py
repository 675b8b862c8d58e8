from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from trainmark.datasets.augment import OPERATIONS, Augmenter, Choice, choices, strength
from trainmark.datasets.bilinear import Bilinear
from trainmark.spec.errors import UsageError

Pixels = npt.NDArray[np.uint8]

SIZE = 224
SIGNED = OPERATIONS[1:10]
WAYS = [Choice(name=name) for name in OPERATIONS] + [Choice(name=name, negative=True) for name in SIGNED]


def square(size: int, *channels: npt.ArrayLike) -> Pixels:
    return np.ascontiguousarray(
        np.stack([np.broadcast_to(np.asarray(channel, np.uint8), (size, size)) for channel in channels], axis=-1)
    )


def pictures(size: int) -> dict[str, Pixels]:
    rng = np.random.default_rng(3)
    ramp = np.linspace(0, 255, size).astype(np.uint8)
    smooth = Image.fromarray(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)).resize((size, size))
    edges = square(size, 0, 0, 0)
    edges[::3] = 255
    return {
        "noise": rng.integers(0, 256, (size, size, 3), dtype=np.uint8),
        "narrow noise": rng.integers(90, 140, (size, size, 3), dtype=np.uint8),
        "smooth": np.array(smooth),
        "black": square(size, 0, 0, 0),
        "white": square(size, 255, 255, 255),
        "one colour": square(size, 12, 200, 77),
        "gradients": square(size, ramp, ramp[:, None], ramp[::-1]),
        "a channel of one value": square(size, ramp, 131, ramp[:, None] // 2),
        "edges": edges,
        "almost one colour": square(size, np.where(np.arange(size) == 5, 9, 8), 254, 1),
    }


def affine(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=(0, 0, 0)
    )


def inverse_matrix(
    picture: Image.Image, *, shear: tuple[float, float] = (0, 0), translate: tuple[int, int] = (0, 0), centred: bool
) -> tuple[float, ...]:
    """Where each pixel comes from, by the usual definition of an affine transform with slopes given as degrees."""
    along_x, along_y = (math.radians(math.degrees(math.atan(slope))) for slope in shear)
    middle_x, middle_y = (side * 0.5 if centred else 0 for side in picture.size)
    forward = (
        math.cos(-along_y) / math.cos(along_y),
        -math.cos(-along_y) * math.tan(along_x) / math.cos(along_y),
        math.sin(-along_y) / math.cos(along_y),
        -math.sin(-along_y) * math.tan(along_x) / math.cos(along_y) + 1,
    )
    a, b, d, e = forward[3], -forward[1], -forward[2], forward[0]
    right, down = -middle_x - translate[0], -middle_y - translate[1]
    return a, b, a * right + b * down + middle_x, d, e, d * right + e * down + middle_y


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda picture, level: picture,
    "ShearX": lambda picture, level: affine(picture, inverse_matrix(picture, shear=(level, 0), centred=False)),
    "ShearY": lambda picture, level: affine(picture, inverse_matrix(picture, shear=(0, level), centred=False)),
    "TranslateX": lambda picture, level: affine(
        picture, inverse_matrix(picture, translate=(int(level), 0), centred=True)
    ),
    "TranslateY": lambda picture, level: affine(
        picture, inverse_matrix(picture, translate=(0, int(level)), centred=True)
    ),
    "Rotate": lambda picture, level: picture.rotate(level, Image.Resampling.BILINEAR, fillcolor=(0, 0, 0)),
    "Brightness": lambda picture, level: ImageEnhance.Brightness(picture).enhance(1 + level),
    "Color": lambda picture, level: ImageEnhance.Color(picture).enhance(1 + level),
    "Contrast": lambda picture, level: ImageEnhance.Contrast(picture).enhance(1 + level),
    "Sharpness": lambda picture, level: ImageEnhance.Sharpness(picture).enhance(1 + level),
    "Posterize": lambda picture, level: ImageOps.posterize(picture, int(level)),
    "Solarize": ImageOps.solarize,
    "AutoContrast": lambda picture, level: ImageOps.autocontrast(picture),
    "Equalize": lambda picture, level: ImageOps.equalize(picture),
}


def by_pillow(choice: Choice, pixels: Pixels, magnitude: int) -> Pixels:
    level = strength(choice.name, magnitude, len(pixels))
    return np.array(PILLOW[choice.name](Image.fromarray(pixels), -level if choice.negative else level))


def augmented(choice: Choice, pixels: Pixels, magnitude: int = 9) -> Pixels:
    out = pixels.copy()
    Augmenter(size_px=len(pixels), operations=1, magnitude=magnitude).apply(choice, out)
    return out


def name_of(choice: Choice) -> str:
    return f"-{choice.name}" if choice.negative else choice.name


@pytest.mark.parametrize("choice", WAYS, ids=name_of)
def test_every_operation_equals_pillows_bit_for_bit(choice: Choice) -> None:
    augmenter = Augmenter(size_px=SIZE, operations=1, magnitude=9)
    for title, pixels in pictures(SIZE).items():
        out = pixels.copy()
        augmenter.apply(choice, out)
        assert np.array_equal(out, by_pillow(choice, pixels, 9)), title


@pytest.mark.slow
@pytest.mark.parametrize("choice", WAYS, ids=name_of)
@pytest.mark.parametrize("size", [33, 64])
def test_every_magnitude_equals_pillows_at_other_sizes_too(choice: Choice, size: int) -> None:
    for magnitude in range(31):
        for title in ("noise", "smooth", "gradients"):
            pixels = pictures(size)[title]
            assert np.array_equal(augmented(choice, pixels, magnitude), by_pillow(choice, pixels, magnitude)), (
                title,
                magnitude,
            )


def test_a_blend_with_grey_is_exact_for_every_pair_of_a_level_and_its_grey() -> None:
    # red, green and blue over all greys: every difference a blend can meet, where a fused step would end elsewhere
    levels = np.arange(256, dtype=np.uint8)
    pixels = square(256, levels, levels[:, None], levels[::-1])
    for name in ("Color", "Contrast", "Brightness", "Sharpness"):
        for magnitude in (1, 9, 17, 30):
            for negative in (False, True):
                choice = Choice(name=name, negative=negative)
                assert np.array_equal(augmented(choice, pixels, magnitude), by_pillow(choice, pixels, magnitude))


def test_magnitude_nine_is_what_the_recipe_says() -> None:
    values = {name: round(strength(name, 9, 224), 4) for name in OPERATIONS}
    assert values == {
        "Identity": 0.0,
        "ShearX": 0.09,
        "ShearY": 0.09,
        "TranslateX": 30.4532,
        "TranslateY": 30.4532,
        "Rotate": 9.0,
        "Brightness": 0.27,
        "Color": 0.27,
        "Contrast": 0.27,
        "Sharpness": 0.27,
        "Posterize": 7,
        "Solarize": 178.5,
        "AutoContrast": 0.0,
        "Equalize": 0.0,
    }
    assert [strength("Posterize", magnitude, 224) for magnitude in (0, 3, 4, 11, 12, 30)] == [8, 8, 7, 7, 6, 4]


def test_a_magnitude_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="augmentation magnitude 31 is not one of 0 to 30"):
        Augmenter(size_px=32, operations=2, magnitude=31)


def test_known_pictures_move_the_known_way() -> None:
    dot = square(64, 0, 0, 0)
    dot[32, 40] = 255
    moved = {name: augmented(Choice(name=name), dot) for name in OPERATIONS[1:6]}
    assert np.argwhere(moved["TranslateX"][:, :, 0]).tolist() == [[32, 48]]
    assert np.argwhere(moved["TranslateY"][:, :, 0]).tolist() == [[40, 40]]
    # what does not fall on a pixel is shared among its neighbours: counter-clockwise, left, up
    assert np.argwhere(moved["Rotate"][:, :, 0]).tolist() == [[30, 39], [30, 40], [31, 40], [31, 41]]
    assert np.argwhere(moved["ShearX"][:, :, 0]).tolist() == [[32, 37], [32, 38]]
    assert np.argwhere(moved["ShearY"][:, :, 0]).tolist() == [[28, 40], [29, 40]]
    white = square(64, 255, 255, 255)
    assert not augmented(Choice(name="TranslateX"), white)[:, :8].any()
    assert not augmented(Choice(name="TranslateX", negative=True), white)[:, -8:].any()


def test_a_picture_with_the_full_range_of_levels_needs_no_contrast() -> None:
    pixels = pictures(64)["noise"]
    pixels[0, :2] = [[0, 0, 0], [255, 255, 255]]
    assert np.array_equal(augmented(Choice(name="AutoContrast"), pixels), pixels)


def test_operations_are_a_function_of_the_key_and_each_part_of_the_key_matters() -> None:
    def found(seed: int = 0, epoch: int = 0, index: int = 0, view: int = 0) -> tuple[Choice, ...]:
        return tuple(choices(12, seed=seed, epoch=epoch, index=index, view=view))

    assert found(1, 2, 3, 4) == found(1, 2, 3, 4)
    assert len({found(), found(seed=1), found(epoch=1), found(index=1), found(view=1)}) == 5
    assert found()[:2] == tuple(choices(2, seed=0, epoch=0, index=0))


def test_operations_of_a_seed_stay_what_they_were() -> None:
    # a record names its seed: another version must train on the same pictures
    names = [name_of(choice) for index in range(3) for choice in choices(2, seed=41, epoch=0, index=index)]
    assert names == ["AutoContrast", "Posterize", "-Color", "-ShearY", "-Color", "ShearY"]


def test_every_operation_is_as_likely_as_any_other_and_so_is_its_sign() -> None:
    drawn = [choice for index in range(7000) for choice in choices(2, seed=5, epoch=1, index=index)]
    counts = Counter(choice.name for choice in drawn)
    assert set(counts) == set(OPERATIONS)
    assert all(abs(count - 1000) < 150 for count in counts.values())
    signs = Counter(choice.name for choice in drawn if choice.negative)
    assert set(signs) == set(SIGNED)
    assert all(abs(2 * signs[name] / counts[name] - 1) < 0.15 for name in SIGNED)
    pairs = Counter((first.name, second.name) for first, second in zip(drawn[::2], drawn[1::2], strict=True))
    assert len(pairs) == 14 * 14  # the second is drawn anew


def test_a_sample_gets_its_operations_one_after_another() -> None:
    augmenter = Augmenter(size_px=64, operations=3, magnitude=9)
    for index in range(20):
        pixels = pictures(64)["smooth"]
        expected = pixels.copy()
        for choice in choices(3, seed=7, epoch=2, index=index, view=1):
            expected = by_pillow(choice, expected, 9)
        augmenter.augment(pixels, seed=7, epoch=2, index=index, view=1)
        assert np.array_equal(pixels, expected)


def test_what_was_augmented_before_does_not_matter() -> None:
    augmenter = Augmenter(size_px=64, operations=1, magnitude=9)
    noise, smooth = pictures(64)["noise"], pictures(64)["smooth"]
    for choice in WAYS:
        augmenter.apply(choice, noise.copy())
        used = smooth.copy()
        augmenter.apply(choice, used)
        assert np.array_equal(used, augmented(choice, smooth))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for choice in (Choice(name="Color"), Choice(name="Contrast"), Choice(name="Sharpness")):
            pixels = pictures(SIZE)["noise"]
            assert np.array_equal(augmented(choice, pixels), by_pillow(choice, pixels, 9))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("slope", [0.5, -0.25, 1 / 3, 0.2, 1.7, -2.3])
def test_a_shear_that_is_steep_or_whose_last_bits_decide_a_level_is_pillows_too(slope: float) -> None:
    for title, pixels in pictures(64).items():
        for move, matrix in (
            (Bilinear.shear_x, (1, slope, 0, 0, 1, 0)),
            (Bilinear.shear_y, (1, 0, 0, slope, 1, 0)),
        ):
            out = pixels.copy()
            move(Bilinear(64), out, slope)
            assert np.array_equal(out, np.array(affine(Image.fromarray(pixels), matrix))), title


@pytest.mark.parametrize("size", [32, 100, 224])
def test_many_slopes_and_angles_are_pillows_bit_for_bit(size: int) -> None:
    rng = np.random.default_rng(8)
    move = Bilinear(size)
    for slope, degrees in zip(rng.uniform(-0.9, 0.9, 12).tolist(), rng.uniform(-180, 180, 12).tolist(), strict=True):
        # pictures of few levels, too: their differences meet more whole levels than chance would have them
        for levels in (2, 17, 256):
            pixels = rng.integers(0, levels, (size, size, 3), dtype=np.uint8) * (255 // (levels - 1))
            picture = Image.fromarray(pixels)
            turned, right, down = pixels.copy(), pixels.copy(), pixels.copy()
            move.rotate(turned, degrees)
            move.shear_x(right, slope)
            move.shear_y(down, slope)
            assert np.array_equal(turned, np.array(picture.rotate(degrees, Image.Resampling.BILINEAR)))
            assert np.array_equal(right, np.array(affine(picture, (1, slope, 0, 0, 1, 0))))
            assert np.array_equal(down, np.array(affine(picture, (1, 0, 0, slope, 1, 0))))
