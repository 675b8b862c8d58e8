"""RandAugment on bytes: a few operations drawn from fourteen, each a sample's own, all as strong as the recipe says."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from trainmark.datasets.bilinear import Bilinear
from trainmark.datasets.counter_rng import Draws
from trainmark.spec.errors import UsageError

Pixels = npt.NDArray[np.uint8]

STRENGTHS = 31
"""Magnitudes go from 0 to one less than this."""
_STREAM = 2  # ends the key, so that no crop and no mixing of pictures has the same random numbers
_LEVELS = np.arange(256)
_LUMA = (19595, 38470, 7471)  # Pillow's weights of red, green and blue in grey, in 1/65536


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One operation that a sample gets."""

    name: str
    negative: bool = False
    """The other way round: to the left, darker, less sharp."""


def choices(count: int, *, seed: int, epoch: int, index: int, view: int = 0) -> list[Choice]:
    """The operations of a sample, in order; a function of (seed, epoch, index, view) and nothing else."""
    draw = Draws(seed, epoch, index, view, _STREAM)
    found = []
    for _ in range(count):
        name = OPERATIONS[draw.below(len(OPERATIONS))]
        found.append(Choice(name=name, negative=name in _SIGNED and draw.uniform() < 0.5))
    return found


def strength(name: str, magnitude: int, size_px: int) -> float:
    """What a magnitude means for an operation: a slope, pixels, degrees, a share, bits that stay, a level."""
    if not 0 <= magnitude < STRENGTHS:
        raise UsageError(f"augmentation magnitude {magnitude} is not one of 0 to {STRENGTHS - 1}; 9 is usual")
    if name == "Posterize":
        return 8 - round(magnitude / ((STRENGTHS - 1) / 4))
    first, last = {
        "ShearX": (0.0, 0.3),
        "ShearY": (0.0, 0.3),
        "TranslateX": (0.0, 150 / 331 * size_px),
        "TranslateY": (0.0, 150 / 331 * size_px),
        "Rotate": (0.0, 30.0),
        "Brightness": (0.0, 0.9),
        "Color": (0.0, 0.9),
        "Contrast": (0.0, 0.9),
        "Sharpness": (0.0, 0.9),
        "Solarize": (255.0, 0.0),
    }.get(name, (0.0, 0.0))
    # in float32 as usual: an angle's last bits decide where a level is cut off
    return float(torch.linspace(first, last, STRENGTHS)[magnitude])


class Augmenter:
    """Changes square pictures in place, through buffers that are used again; make one a process or thread.

    Every operation gives what Pillow's gives, bit for bit. Where a picture is sheared or turned, pixels are
    interpolated (bilinear), as in the published runs; what comes from outside is black.
    """

    def __init__(self, *, size_px: int, operations: int, magnitude: int) -> None:
        self._count = operations
        self._strengths = {name: strength(name, magnitude, size_px) for name in OPERATIONS}
        self._size = size_px
        self._whole = _Floats(size_px * size_px)
        self._inner = _Floats((size_px - 2) ** 2)
        self._sums = [np.empty((size_px - shorter, 3 * size_px), np.uint16) for shorter in (0, 2)]
        self._inner_sums = [np.empty((size_px - 2, 3 * size_px - 6), np.uint16) for _ in range(2)]
        self._bilinear = Bilinear(size_px)
        self._doubles = np.empty((size_px, 3 * size_px))
        self._mask = np.empty((size_px, size_px, 3), np.bool_)

    def augment(self, pixels: Pixels, *, seed: int, epoch: int, index: int, view: int = 0) -> None:
        """Gives a contiguous picture (size, size, 3) the operations of its sample."""
        for choice in choices(self._count, seed=seed, epoch=epoch, index=index, view=view):
            self.apply(choice, pixels)

    def apply(self, choice: Choice, pixels: Pixels) -> None:
        level = self._strengths[choice.name]
        _METHODS[choice.name](self, pixels, -level if choice.negative else level)

    def _identity(self, pixels: Pixels, level: float) -> None:
        pass

    def _shear_x(self, pixels: Pixels, level: float) -> None:
        self._bilinear.shear_x(pixels, math.tan(_by_way_of_degrees(level)))

    def _shear_y(self, pixels: Pixels, level: float) -> None:
        angle = _by_way_of_degrees(level)
        self._bilinear.shear_y(pixels, math.sin(angle) / math.cos(angle))

    def _translate_x(self, pixels: Pixels, level: float) -> None:
        self._shift(pixels, int(level))

    def _translate_y(self, pixels: Pixels, level: float) -> None:
        self._shift(pixels.swapaxes(0, 1), int(level))

    def _shift(self, pixels: Pixels, by_px: int) -> None:
        """Moves rows right by whole pixels, which no interpolation changes."""
        if by_px > 0:
            pixels[:, by_px:] = pixels[:, :-by_px]
            pixels[:, :by_px] = 0
        elif by_px < 0:
            pixels[:, :by_px] = pixels[:, -by_px:]
            pixels[:, by_px:] = 0

    def _rotate(self, pixels: Pixels, level: float) -> None:
        self._bilinear.rotate(pixels, level)

    def _brightness(self, pixels: Pixels, level: float) -> None:
        _look_up(pixels, _blended_levels(0, 1 + level))

    def _color(self, pixels: Pixels, level: float) -> None:
        self._whole.read(pixels)
        self._whole.blend(self._whole.grey(), 1 + level, pixels)

    def _contrast(self, pixels: Pixels, level: float) -> None:
        counts = np.array(Image.fromarray(pixels).convert("L").histogram())
        mean = float(counts @ _LEVELS) / (self._size * self._size)
        _look_up(pixels, _blended_levels(math.floor(mean + 0.5), 1 + level))

    def _sharpness(self, pixels: Pixels, level: float) -> None:
        inside = pixels.reshape(self._size, -1)[1:-1, 3:-3]  # Pillow leaves the outermost pixels as they are
        self._inner.read(inside)
        self._inner.blend(self._inner.other(self._smooth(pixels)), 1 + level, inside)

    def _smooth(self, pixels: Pixels) -> npt.NDArray[np.uint16]:
        """The mean of each inner pixel, five times, and its eight neighbours."""
        wide, rows = self._sums
        total, centre = self._inner_sums
        np.copyto(wide, pixels.reshape(self._size, -1))
        np.add(wide[:-2], wide[1:-1], out=rows)
        np.add(rows, wide[2:], out=rows)
        np.add(rows[:, :-6], rows[:, 3:-3], out=total)
        np.add(total, rows[:, 6:], out=total)
        np.left_shift(wide[1:-1, 3:-3], 2, out=centre)
        np.add(total, centre, out=total)
        np.add(total, 6, out=total)  # no sum lies half way between two multiples of 13
        return np.floor_divide(total, 13, out=total)

    def _posterize(self, pixels: Pixels, level: float) -> None:
        np.bitwise_and(pixels, 0xFF << (8 - int(level)) & 0xFF, out=pixels)

    def _solarize(self, pixels: Pixels, level: float) -> None:
        # no branch: ones are turned into 255, and a level's exclusive or with 255 is its opposite
        mask = np.greater_equal(pixels, math.ceil(level), out=self._mask).view(np.uint8)
        np.negative(mask, out=mask)
        np.bitwise_xor(pixels, mask, out=pixels)

    def _auto_contrast(self, pixels: Pixels, level: float) -> None:
        rows = pixels.reshape(self._size, -1)
        # whole rows first: numpy reduces long rows quickly and groups of three slowly
        low = rows.min(axis=0).reshape(-1, 3).min(axis=0).astype(np.float64)
        high = rows.max(axis=0).reshape(-1, 3).max(axis=0).astype(np.float64)
        if (low == 0).all() and (high == 255).all():
            return
        flat = high == low  # a channel of one level stays as it is
        scale = np.where(flat, 1.0, 255.0 / np.where(flat, 1.0, high - low))
        offset = np.where(flat, 0.0, -low * scale)
        # in float64 like Pillow's table: the ends of the range must not fall to the level below
        np.multiply(rows, np.tile(scale, self._size), out=self._doubles)
        np.add(self._doubles, np.tile(offset, self._size), out=self._doubles)
        np.copyto(rows, self._doubles, casting="unsafe")

    def _equalize(self, pixels: Pixels, level: float) -> None:
        # counting levels is what numpy does slowly: Pillow, copies there and back included, takes half the time
        np.copyto(pixels, np.asarray(ImageOps.equalize(Image.fromarray(pixels))))


class _Floats:
    """A picture in float32, which holds every number of these operations that should be whole."""

    def __init__(self, count: int) -> None:
        self._image = torch.empty(count, 3)
        self._other = torch.empty(count, 3)
        self._luma = torch.tensor(_LUMA, dtype=torch.float32) / 65536

    def read(self, pixels: Pixels) -> None:
        self._image.view(pixels.shape).copy_(torch.from_numpy(pixels))

    def other(self, values: npt.NDArray[np.uint16]) -> Tensor:
        """A second picture to blend with."""
        np.copyto(self._other.view(values.shape).numpy(), values)
        return self._other

    def grey(self) -> Tensor:
        """The picture without colour, still three channels."""
        levels = torch.mv(self._image, self._luma).add_(0.5).floor_().numpy()
        for channel in range(3):  # one strided copy for each takes a third of one that broadcasts
            np.copyto(self._other.numpy()[:, channel], levels)
        return self._other

    def blend(self, base: Tensor, factor: float, out: Pixels) -> None:
        """Writes base + factor x (picture - base), cut to whole levels; uses the picture up."""
        blended = _blend(self._image, base, factor)
        np.copyto(out, blended.view(out.shape).numpy(), casting="unsafe")  # torch takes seven times as long


def _blend(levels: Tensor, base: Tensor | int, factor: float) -> Tensor:
    """base + factor x (levels - base) within the range of levels, in place.

    One rounding after each step, as Pillow has it: a fused multiply-add ends at another level here and there.
    """
    blended = levels.sub_(base).mul_(factor).add_(base)
    return blended.clamp_(0, 255) if factor > 1 else blended


@functools.lru_cache(maxsize=512)
def _blended_levels(base: int, factor: float) -> bytes:
    """What each level becomes if it is blended with one and the same other."""
    return bytes(_blend(torch.arange(256.0), base, factor).to(torch.uint8).tolist())


def _look_up(pixels: Pixels, table: bytes) -> None:
    # bytes have a loop for this, which takes half as long as arithmetic in floats and writes to no other memory
    levels = pixels.data.cast("B")
    levels[:] = levels.tobytes().translate(table)


def _by_way_of_degrees(slope: float) -> float:
    """The angle of a slope as the usual definition has it, last bits included."""
    return math.radians(math.degrees(math.atan(slope)))


_METHODS: dict[str, Callable[[Augmenter, Pixels, float], None]] = {
    "Identity": Augmenter._identity,
    "ShearX": Augmenter._shear_x,
    "ShearY": Augmenter._shear_y,
    "TranslateX": Augmenter._translate_x,
    "TranslateY": Augmenter._translate_y,
    "Rotate": Augmenter._rotate,
    "Brightness": Augmenter._brightness,
    "Color": Augmenter._color,
    "Contrast": Augmenter._contrast,
    "Sharpness": Augmenter._sharpness,
    "Posterize": Augmenter._posterize,
    "Solarize": Augmenter._solarize,
    "AutoContrast": Augmenter._auto_contrast,
    "Equalize": Augmenter._equalize,
}
OPERATIONS = tuple(_METHODS)
"""In the usual order, each as likely as any other."""
_SIGNED = frozenset(OPERATIONS[1:10])
