from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from trainmark.data.input_pool import OPERATIONS, Augmenter, Choice, choices, strength
from trainmark.record.errors import UsageError

Pixels = npt.NDArray[np.uint8]

SIGNED = OPERATIONS[1:10]


def square(size: int, *channels: npt.ArrayLike) -> Pixels:
    return np.ascontiguousarray(
        np.stack([np.broadcast_to(np.asarray(channel, np.uint8), (size, size)) for channel in channels], axis=-1)
    )


def noise(size: int) -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (size, size, 3), dtype=np.uint8)


def augment(choice: Choice, pixels: Pixels, magnitude: int = 9) -> Pixels:
    out = pixels.copy()
    Augmenter(size_px=len(pixels), operations=1, magnitude=magnitude).apply(choice, out)
    return out


def name_of(choice: Choice) -> str:
    return f"-{choice.name}" if choice.negative else choice.name


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


def test_known_images_move_the_known_way() -> None:
    dot = square(64, 0, 0, 0)
    dot[32, 40] = 255
    moved = {name: augment(Choice(name=name), dot) for name in OPERATIONS[1:6]}
    assert np.argwhere(moved["TranslateX"][:, :, 0]).tolist() == [[32, 48]]
    assert np.argwhere(moved["TranslateY"][:, :, 0]).tolist() == [[40, 40]]
    # what does not fall on a pixel is shared among its neighbours: counter-clockwise, left, up
    assert np.argwhere(moved["Rotate"][:, :, 0]).tolist() == [[30, 39], [30, 40], [31, 40], [31, 41]]
    assert np.argwhere(moved["ShearX"][:, :, 0]).tolist() == [[32, 37], [32, 38]]
    assert np.argwhere(moved["ShearY"][:, :, 0]).tolist() == [[28, 40], [29, 40]]
    white = square(64, 255, 255, 255)
    assert not augment(Choice(name="TranslateX"), white)[:, :8].any()
    assert not augment(Choice(name="TranslateX", negative=True), white)[:, -8:].any()


def test_an_image_with_the_full_range_of_levels_needs_no_contrast() -> None:
    pixels = noise(64)
    pixels[0, :2] = [[0, 0, 0], [255, 255, 255]]
    assert np.array_equal(augment(Choice(name="AutoContrast"), pixels), pixels)


def test_operations_are_a_function_of_the_key_and_each_part_of_the_key_matters() -> None:
    def found(seed: int = 0, epoch: int = 0, index: int = 0, view: int = 0) -> tuple[Choice, ...]:
        return tuple(choices(12, seed=seed, epoch=epoch, index=index, view=view))

    assert found(1, 2, 3, 4) == found(1, 2, 3, 4)
    assert len({found(), found(seed=1), found(epoch=1), found(index=1), found(view=1)}) == 5
    assert found()[:2] == tuple(choices(2, seed=0, epoch=0, index=0))


def test_operations_of_a_seed_stay_what_they_were() -> None:
    # a record names its seed: another version must train on the same images
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


def test_every_operation_gives_the_pixels_it_gave_when_records_were_made() -> None:
    # a record names its seed and magnitude: another version of Pillow or of ours must train on the same images
    digest = hashlib.sha256()
    for name in OPERATIONS:
        for negative in (False, True) if name in SIGNED else (False,):
            digest.update(augment(Choice(name=name, negative=negative), noise(224)).tobytes())
    assert digest.hexdigest()[:16] == "15a9f3f28bb3b92b"
