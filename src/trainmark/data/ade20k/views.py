"""Random training views of an image and its mask: scaled, cropped and flipped alike, the image's colours distorted.

Hue and saturation are OpenCV's of 8 bits: hue from 0 to 179, both rounded to integers by its tables, and colours
rounded again when converted back. Every step clips to 0..255 and truncates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from trainmark.data.ade20k.reader import IGNORED, Labels, SceneSet
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.image_sets import read_bytes
from trainmark.data.jpeg import BadImage, JpegDecoder, Pixels

BRIGHTNESS, FACTOR, HUE = 32.0, (0.5, 1.5), 18
"""Maximum shift of brightness; range of the factors of contrast and saturation; maximum shift of hue, of 180."""
_SHIFT = 12
"""Fractional bits in OpenCV's tables."""
_PIECE = 1 << 15
"""Pixels per chunk: intermediate results stay in a core's cache."""

_ONE_OF_255 = float(np.float32(1 / 255))
_SEXTANTS = ((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2))
"""For red, green and blue, which of four shares they have in each sextant of hue."""

Levels = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """The distortion of one image; None or 0 skips a step."""

    brightness: float | None
    contrast: float | None
    contrast_first: bool
    """Before the colours, else after them."""
    saturation: float | None
    hue: int

    @classmethod
    def random(cls, draw: CounterRng) -> Distortion:
        """Each step with probability 0.5; always takes the same number of draws."""
        least, most = FACTOR
        coins = [draw.uniform() < 0.5 for _ in range(5)]
        brightness = BRIGHTNESS * (2 * draw.uniform() - 1)
        contrast, saturation = (least + (most - least) * draw.uniform() for _ in range(2))
        hue = draw.below(2 * HUE) - HUE
        return cls(
            brightness=brightness if coins[0] else None,
            contrast=contrast if coins[1] else None,
            contrast_first=coins[2],
            saturation=saturation if coins[3] else None,
            hue=hue if coins[4] else 0,
        )


def build_colour_tables() -> None:
    """Builds the tables, 36 MB, before workers are forked that share them."""
    _hues_and_saturations()
    _shares()


def distort(pixels: Pixels, how: Distortion) -> None:
    """Changes pixels (height, width, 3), RGB, in place."""
    first = _identity() if how.brightness is None else _line(_identity(), 1, how.brightness)
    if how.contrast is not None and how.contrast_first:
        first = _line(first, how.contrast, 0)
    _look_up(pixels, first)
    if how.saturation is not None:
        _recolour(pixels, saturation=_line(_identity(), how.saturation, 0))
    if how.hue:
        _recolour(pixels, hue=how.hue)
    if how.contrast is not None and not how.contrast_first:
        _look_up(pixels, _line(_identity(), how.contrast, 0))


@cache
def _identity() -> Pixels:
    return np.arange(256, dtype=np.uint8)


def _line(levels: Pixels, factor: float, plus: float) -> Pixels:
    """Levels after one linear step, in float32 and clipped."""
    moved = levels.astype(np.float32) * np.float32(factor) + np.float32(plus)
    found: Pixels = np.clip(moved, 0, 255).astype(np.uint8)
    return found


def _look_up(pixels: Pixels, table: Pixels) -> None:
    if table is not _identity():
        np.take(table, pixels, out=pixels, mode="clip")


def _recolour(pixels: Pixels, *, saturation: Pixels | None = None, hue: int = 0) -> None:
    """Converts to hue, saturation and value and back, each way by a table."""
    shares = _shares().reshape(180, 256, 4)
    if saturation is not None:
        shares = shares[:, saturation]
    if hue:
        shares = np.roll(shares, -hue, 0)
    towards, back = _hues_and_saturations(), torch.from_numpy(np.ascontiguousarray(shares).reshape(-1, 4))
    # Pillow packs pixels into 32 bits ten times as fast as numpy
    packed = np.frombuffer(Image.fromarray(pixels).tobytes("raw", "RGBX"), np.uint32) & 0xFFFFFF
    flat = torch.from_numpy(pixels).view(-1, 3)
    for first in range(0, len(packed), _PIECE):
        piece = flat[first : first + _PIECE]
        places = torch.from_numpy(np.take(towards, packed[first : first + _PIECE]).astype(np.int32))
        values = piece.amax(1, keepdim=True).to(torch.float32).mul_(_ONE_OF_255)
        piece.copy_(back.index_select(0, places).mul_(values).mul_(255).round_()[:, :3])


@cache
def _hues_and_saturations() -> npt.NDArray[np.uint16]:
    """256 x hue + saturation of every colour, packed with red in the lowest byte. Built once, in about a second."""
    table = np.empty(1 << 24, np.uint16)
    levels = np.arange(256, dtype=np.int32)
    green_and_red = np.stack(np.meshgrid(levels, levels, indexing="ij"), -1).reshape(-1, 2)
    for blue in range(256):
        table[blue << 16 : (blue + 1) << 16] = _hue_and_saturation(green_and_red[:, 1], green_and_red[:, 0], blue)
    return table


def _hue_and_saturation(red: Levels, green: Levels, blue: int) -> Levels:
    value, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    spread = value - least
    by_value, by_spread = _divisors()
    half = 1 << (_SHIFT - 1)
    saturation = (spread * by_value[value] + half) >> _SHIFT
    of_others = np.where(value == green, blue - red + 2 * spread, red - green + 4 * spread)
    sixths = np.where(value == red, green - blue, of_others)
    hue = (sixths * by_spread[spread] + half) >> _SHIFT
    found: Levels = np.where(hue < 0, hue + 180, hue) * 256 + saturation
    return found


@cache
def _divisors() -> tuple[Levels, Levels]:
    """Fixed-point reciprocals of value and spread, by which OpenCV multiplies instead of dividing."""
    levels = np.arange(256, dtype=np.float64).clip(1)
    by_value, by_spread = (np.rint(number * (1 << _SHIFT) / levels).astype(np.int32) for number in (255, 180 / 6))
    by_value[0] = by_spread[0] = 0
    return by_value, by_spread


@cache
def _shares() -> npt.NDArray[np.float32]:
    """By 256 x hue + saturation: each channel's share of the value; the fourth place is 0."""
    one, saturation = np.float32(1), np.arange(256, dtype=np.float32) * _ONE_OF_255
    table = np.zeros((180, 256, 4), np.float32)
    for hue in range(180):
        sextant, place = divmod(np.float32(hue) * np.float32(6 / 180), one)
        shares = (one, one - saturation, one - saturation * place, one - saturation * (one - place))
        for channel, which in enumerate(_SEXTANTS[int(sextant)]):
            table[hue, :, channel] = shares[which]
    return table.reshape(-1, 4)


TRIES = 10
"""Random crops tried to find one that is not nearly all of one class; the last is taken anyway."""
MAX_OF_ONE = 0.75
"""Maximum share of one class among the evaluated pixels of a crop."""
LONGEST = 4
"""Maximum length of the longer side, in units of the target size of the shorter."""


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    size: int
    """Height and width of a crop in pixels."""
    least_scale: float = 0.5
    most_scale: float = 2.0
    """The shorter side is resized to `size` times a random number between these."""
    distorts: bool = True
    """Changes brightness, contrast, saturation and hue."""


def fit_size(width: int, height: int, size: int, scale: float = 1.0) -> tuple[int, int]:
    """Width and height in proportion: the shorter side `size` times `scale`, but the longer at most 4 times that."""
    short, long = int(size * scale), int(LONGEST * size * scale)
    factor = min(long / max(width, height), short / min(width, height))
    return max(1, int(width * factor + 0.5)), max(1, int(height * factor + 0.5))


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Bilinear without antialiasing, as OpenCV resizes."""
    if pixels.shape[:2] == (height, width):
        return pixels
    image = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    moved = F.interpolate(image, (height, width), mode="bilinear", align_corners=False)
    found: Pixels = moved[0].permute(1, 2, 0).numpy()
    return found


def read_files(scenes: SceneSet, index: int) -> tuple[bytes, bytes]:
    """Encoded image and mask of a scene."""
    image = read_bytes(scenes.path(index))
    try:
        return image, read_bytes(scenes.mask_path(index))
    except FileNotFoundError as error:
        raise BadImage(f"its mask {scenes.masks[index]} is not there") from error


class SceneReader:
    """Reads scenes through reused buffers; create one per process or thread."""

    def __init__(self) -> None:
        self._decoder = JpegDecoder()

    def read(self, scenes: SceneSet, index: int) -> tuple[Pixels, Labels]:
        """The stored image, valid until the next read, and the classes of its pixels."""
        return self.decode(scenes, read_files(scenes, index))

    def decode(self, scenes: SceneSet, files: tuple[bytes, bytes]) -> tuple[Pixels, Labels]:
        """The same from the result of `read_files`."""
        pixels, labels = self._decoder.decode_whole(files[0]), scenes.labels(files[1])
        if labels.shape != pixels.shape[:2]:
            height, width = labels.shape
            raise BadImage(f"its mask is {width}x{height} and it is {pixels.shape[1]}x{pixels.shape[0]}")
        return pixels, labels


def random_view(
    pixels: Pixels, labels: Labels, draw: CounterRng, settings: ViewSettings, out: tuple[Pixels, Labels]
) -> tuple[int, int]:
    """Writes a view into `out`, padded below and on the right with grey ignored pixels; returns the image's rows and
    columns."""
    scale = settings.least_scale + (settings.most_scale - settings.least_scale) * draw.uniform()
    stored_height, stored_width = labels.shape
    width, height = fit_size(stored_width, stored_height, settings.size, scale)
    flip = draw.uniform() < 0.5
    how = Distortion.random(draw) if settings.distorts else None
    rows, columns = min(settings.size, height), min(settings.size, width)
    top, left, cut = _crop(labels, (height, width), (rows, columns), draw)
    kept, kept_labels = out[0][:rows, :columns], out[1][:rows, :columns]
    view = resize(pixels, width, height)[top : top + rows, left : left + columns]
    kept[...] = view[:, ::-1] if flip else view
    kept_labels[...] = cut[:, ::-1] if flip else cut
    if how is not None:
        whole = np.ascontiguousarray(kept)
        distort(whole, how)
        if whole is not kept:
            kept[...] = whole
    for plane, filling in zip(out, (127, IGNORED), strict=True):
        plane[rows:] = filling
        plane[:rows, columns:] = filling
    return rows, columns


def _crop(labels: Labels, size: tuple[int, int], kept: tuple[int, int], draw: CounterRng) -> tuple[int, int, Labels]:
    """Position of a crop in the scaled image, and its classes (nearest neighbour)."""
    across = [_nearest(stored, scaled) for stored, scaled in zip(labels.shape, size, strict=True)]
    for _ in range(TRIES):
        top, left = (draw.below(whole - part + 1) for whole, part in zip(size, kept, strict=True))
        # rows first: contiguous lines are fast to copy
        rows = labels[across[0][top : top + kept[0]]]
        cut: Labels = np.take(rows, across[1][left : left + kept[1]], axis=1)
        if is_varied(cut):
            break
    return top, left, cut


def _nearest(stored: int, scaled: int) -> npt.NDArray[np.intp]:
    """Index along the stored side for each index along the scaled one."""
    places: npt.NDArray[np.intp] = np.floor(np.arange(scaled) * (stored / scaled)).astype(np.intp)
    return np.minimum(places, stored - 1, out=places)


def is_varied(labels: Labels) -> bool:
    """True if there are several classes, none with three quarters of the evaluated pixels."""
    # Pillow counts levels several times as fast as numpy
    counts: Sequence[int] = Image.fromarray(labels).histogram()[:IGNORED]
    judged, most = sum(counts), max(counts)
    return 0 < most < judged and most / judged < MAX_OF_ONE


def window_starts(length: int, size: int, stride: int) -> list[int]:
    """Start of each window along a side: every `stride` pixels, the last flush with the edge."""
    if length <= size:
        return [0]
    count = math.ceil((length - size) / stride) + 1
    return [min(number * stride, length - size) for number in range(count)]
