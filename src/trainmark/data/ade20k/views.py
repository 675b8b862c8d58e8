"""Random training views of an image and its mask: scaled, cropped and flipped alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image

from trainmark.data.ade20k import photometric
from trainmark.data.ade20k.layouts import IGNORED
from trainmark.data.ade20k.photometric import Distortion
from trainmark.data.ade20k.reader import Labels, SceneSet
from trainmark.data.distributed_sampler import CounterRng
from trainmark.data.image_folder import read_bytes
from trainmark.data.jpeg import BadImage, JpegDecoder, Pixels

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
        photometric.distort(whole, how)
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
