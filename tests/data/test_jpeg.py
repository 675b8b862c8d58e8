from __future__ import annotations

import functools
import io
import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageOps

from trainmark.data import jpeg
from trainmark.data.jpeg import BadImage, Crop, JpegDecoder, eval_crop, train_crop

ORIENTATION = 0x0112


@functools.cache
def photograph(width: int = 320, height: int = 240) -> Image.Image:
    """Something with detail at every scale, as photographs have, and with colour."""
    rng = np.random.default_rng(5)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1.0
    planes = []
    for _ in range(3):
        plane = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((height, width))) / frequency**1.3, s=(height, width))
        planes.append(125 + 45 * (plane - plane.mean()) / plane.std())
    return Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return stream.getvalue()


def decode(data: bytes, crop: Crop, *, turn_by_exif: bool = False, may_reduce: bool = False) -> np.ndarray:
    out = np.zeros((crop.size, crop.size, 3), np.uint8)
    JpegDecoder(turn_by_exif=turn_by_exif).decode(data, lambda width, height: crop, out, may_reduce=may_reduce)
    return out.astype(int)


def by_pillow(data: bytes, crop: Crop, *, turn_by_exif: bool = False) -> np.ndarray:
    """The usual definition: crop, antialiased bilinear resize, centre, mirror; upright before, if so asked."""
    image = Image.open(io.BytesIO(data))
    image = (ImageOps.exif_transpose(image) if turn_by_exif else image).convert("RGB")
    box = image.crop((crop.left, crop.top, crop.left + crop.width, crop.top + crop.height))
    box = box.resize((crop.resized_width, crop.resized_height), Image.Resampling.BILINEAR)
    square = box.crop((crop.keep_left, crop.keep_top, crop.keep_left + crop.size, crop.keep_top + crop.size))
    return np.asarray(ImageOps.mirror(square) if crop.flip else square).astype(int)


def some_crop(width: int, height: int, index: int, size: int = 96) -> Crop:
    return train_crop(width, height, size=size, seed=0, epoch=0, index=index)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize(
    "options", [{"subsampling": 2}, {"subsampling": 0}, {"progressive": True}, {"keep_rgb": True}, {"quality": 30}]
)
def test_a_training_crop_is_pillows_to_within_one_level(options: dict[str, Any], index: int) -> None:
    data = encode(photograph(), **options)
    crop = some_crop(320, 240, index, 160)
    assert np.abs(decode(data, crop) - by_pillow(data, crop)).max() <= 1


@settings(max_examples=60)
@given(st.integers(1, 240), st.integers(1, 320), st.integers(1, 300), st.data())
def test_a_mirrored_crop_is_the_mirror_of_the_crop_to_the_bit(
    height: int, width: int, size: int, data: st.DataObject
) -> None:
    box = {
        "top": data.draw(st.integers(0, 240 - height)),
        "left": data.draw(st.integers(0, 320 - width)),
        "height": height,
        "width": width,
        "resized_height": size,
        "resized_width": size,
        "size": size,
    }
    file = encode(photograph())
    assert (decode(file, Crop(**box, flip=True)) == decode(file, Crop(**box))[:, ::-1]).all()


def test_a_crop_is_written_into_the_row_it_is_given_and_nowhere_else() -> None:
    data = encode(photograph())
    crops = [some_crop(320, 240, index) for index in range(8)]
    assert {crop.flip for crop in crops} == {True, False}
    decoder = JpegDecoder()
    for crop in crops:
        rows = np.full((3, 96, 96, 3), 7, np.uint8)
        decoder.decode(data, lambda width, height, crop=crop: crop, rows[1])
        assert (rows[1] == decode(data, crop)).all()
        assert (rows[::2] == 7).all()


@pytest.mark.parametrize(
    ("width", "height"),
    [(320, 240), (240, 320), (97, 131), (300, 300), (500, 90), (1100, 700), (700, 1300), (794, 709)],
)
def test_the_evaluation_view_is_the_usual_two_steps_to_within_one_level(width: int, height: int) -> None:
    data = encode(photograph(width, height))
    for size, resize_to in ((224, 256), (64, 73)):
        crop = eval_crop(width, height, size=size, resize_to=resize_to)
        assert np.abs(decode(data, crop) - by_pillow(data, crop)).max() <= 1


@pytest.mark.parametrize("size", [100, 60, 30])
def test_an_image_decoded_at_reduced_scale_stays_near_the_full_decode(size: int) -> None:
    data = encode(photograph(800, 608))
    box = Crop(top=64, left=128, height=512, width=512, resized_height=size, resized_width=size, size=size)
    view = eval_crop(800, 608, size=2 * size, resize_to=2 * size)
    for crop in (box, view):
        assert jpeg._reduction(crop) > 1
        reduced = decode(data, crop, may_reduce=True)
        assert (reduced != decode(data, crop)).any()
        assert np.abs(reduced - by_pillow(data, crop)).mean() < 1.5


def test_a_crop_close_to_the_output_size_is_not_decoded_at_reduced_scale() -> None:
    box = {"top": 0, "left": 0, "resized_height": 224, "resized_width": 224, "size": 224}
    assert jpeg._reduction(Crop(height=559, width=2000, **box)) == 1
    assert jpeg._reduction(Crop(height=560, width=2000, **box)) == 2


@pytest.mark.parametrize(
    "data",
    [
        encode(photograph().convert("L")),
        encode(photograph().convert("CMYK")),
        encode(photograph(), "PNG"),
        encode(photograph().convert("P"), "PNG"),
        encode(photograph().convert("RGBA"), "PNG"),
    ],
    ids=["grey", "cmyk", "png", "png with palette", "png with alpha"],
)
def test_other_contents_of_a_jpeg_file_are_read_as_pillow_reads_them(data: bytes) -> None:
    crop = some_crop(320, 240, 2)
    assert np.abs(decode(data, crop) - by_pillow(data, crop)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_cameras_orientation_is_applied_before_the_crop_where_asked_for(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    for kind in ("JPEG", "PNG"):
        data = encode(photograph(), kind, exif=exif)
        width, height = (240, 320) if orientation >= 5 else (320, 240)
        for crop in (
            some_crop(width, height, 3),
            some_crop(width, height, 4),
            eval_crop(width, height, size=160, resize_to=201),
        ):
            turned = decode(data, crop, turn_by_exif=True)
            assert np.abs(turned - by_pillow(data, crop, turn_by_exif=True)).max() <= 2


def test_the_cameras_orientation_is_left_alone_unless_asked_for() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    for kind in ("JPEG", "PNG"):
        data = encode(photograph(), kind, exif=exif)
        for crop in (some_crop(320, 240, 3), eval_crop(320, 240, size=160, resize_to=201)):
            assert (decode(data, crop) == decode(encode(photograph(), kind), crop)).all()
            assert np.abs(decode(data, crop) - by_pillow(data, crop)).max() <= 2


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
@pytest.mark.parametrize("bottom", [1, 2, 14, 15, 16, 17, 32, 100, 224, 231, 232, 233, 238, 239, 240])
def test_leaving_out_what_is_below_the_crop_changes_no_pixel(bottom: int, options: dict[str, Any]) -> None:
    data = encode(photograph(), **options)
    crop = Crop(top=bottom - 1, left=0, height=1, width=320, resized_height=1, resized_width=320, size=1, keep_left=99)
    assert (decode(data, crop) == np.asarray(Image.open(io.BytesIO(data)))[bottom - 1, 99]).all()


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_nor_does_it_at_reduced_scale(subsampling: str, factor: int) -> None:
    data = simplejpeg.encode_jpeg(np.asarray(photograph()), 90, "RGB", subsampling)
    whole = simplejpeg.decode_jpeg(data, "RGB", min_height=240 // factor, min_width=320 // factor)
    for bottom in range(40, 241):
        last = round(bottom / factor)
        crop = Crop(top=0, left=0, height=bottom, width=320, resized_height=4, resized_width=4, size=4)
        with mock.patch.object(jpeg, "_resize") as resize, mock.patch.object(jpeg, "_reduction", return_value=factor):
            decode(data, crop, may_reduce=True)
        box = resize.call_args.args[0][0].permute(1, 2, 0).numpy()
        assert (box == whole[:last]).all(), bottom


def test_a_file_cut_short_is_bad_even_where_the_crop_would_not_need_the_rest() -> None:
    top = Crop(top=0, left=0, height=20, width=20, resized_height=20, resized_width=20, size=20)
    with pytest.raises(BadImage, match="truncated"):
        decode(encode(photograph())[:-300], top)


def test_bytes_pillow_forgives_are_forgiven() -> None:
    data = encode(photograph())
    odd = data[:-2] + b"\x12\x34\x56" + data[-2:]
    crop = some_crop(320, 240, 5)
    assert (decode(odd, crop) == decode(data, crop)).all()


def test_one_decoder_serves_images_of_any_size_one_after_another() -> None:
    decoder = JpegDecoder()
    out = np.zeros((96, 96, 3), np.uint8)
    for width, height in ((300, 300), (20, 30), (500, 90), (320, 240)):
        data, crop = encode(photograph(width, height)), some_crop(width, height, 6)
        decoder.decode(data, lambda width, height, crop=crop: crop, out)
        assert np.abs(out.astype(int) - by_pillow(data, crop)).max() <= 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"not an image", "no JPEG and no PNG"),
        (encode(photograph())[:5000], "truncated"),
        (encode(photograph())[:200], "."),
        (encode(photograph(), "PNG")[:5000], "."),
        (encode(photograph(), "GIF"), "no JPEG and no PNG"),
        (b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03" + bytes(20), "claims 65535x65535 pixels"),
    ],
    ids=["empty", "text", "truncated", "only a header", "truncated png", "gif", "giant"],
)
def test_what_is_no_whole_image_is_a_bad_image_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        decode(data, some_crop(320, 240, 0))


SOUND = encode(photograph(80, 60))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 20), headers_only=st.booleans())
def test_damaged_bytes_give_pixels_or_a_bad_image_and_nothing_else(seed: int, changes: int, headers_only: bool) -> None:
    dice = random.Random(seed)
    data = bytearray(SOUND)
    for _ in range(changes):
        data[dice.randrange(min(700, len(data)) if headers_only else len(data))] = dice.randrange(256)
    out = np.zeros((16, 16, 3), np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jpeg, "MAX_PIXELS", 500_000)
        try:
            JpegDecoder().decode(bytes(data), lambda width, height: some_crop(width, height, 0, 16), out)
        except BadImage as error:
            assert str(error)
