"""Shears and turns square pictures as Pillow's bilinear transform does, bit for bit but many pixels at a time.

Pillow interpolates in float64 and cuts off the fraction of a level. Float32 does for nearly all pixels: a shear's
weights are moved to where its rounding cannot reach another level, a rotation's doubtful levels are computed again.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
_Array = npt.NDArray[np.float64]
_Matrix = tuple[float, float, float, float, float, float]

_ROUNDING_64 = 1e-9
"""Far more than float64 errs in these sums."""
_ROUNDING_32 = 2.0**-13
"""More than float32 errs in interpolating levels up to 255 three times: below 2**-15 each time, and as much once more
where it begins with rounded ones."""


class Bilinear:
    """Moves pictures of one size in place, through buffers that are used again; what comes from outside is black."""

    def __init__(self, size_px: int) -> None:
        self._size = size_px
        self._moved = torch.zeros(size_px * (size_px + 1) * 3)
        self._sheared = torch.empty(size_px, 3 * size_px)
        count = size_px * size_px
        self._corners = [np.empty(count, np.int32) for _ in range(4)]
        self._corner_levels = [torch.empty(4 * count) for _ in range(4)]
        self._turned = np.empty(count, np.int32)
        self._least = np.empty(4 * count, np.uint8)

    def shear_x(self, pixels: Pixels, slope: float) -> None:
        """Takes each row from further right, by `slope` times its distance from the upper edge."""
        plan = _shear(self._size, slope, False)
        if plan is None:
            _shear_by_pillow(pixels, (1, slope, 0, 0, 1, 0))
            return
        moved = self._moved.view(self._size, -1)
        self._move_lines(plan, pixels, moved.view(self._size, -1, 3).numpy())
        self._interpolate(moved[:, :-3], moved[:, 3:], plan, pixels)

    def shear_y(self, pixels: Pixels, slope: float) -> None:
        """Takes each column from further down, by `slope` times its distance from the left edge."""
        plan = _shear(self._size, slope, True)
        if plan is None:
            _shear_by_pillow(pixels, (1, 0, 0, slope, 1, 0))
            return
        moved = self._moved.view(self._size + 1, -1)
        columns = moved.view(self._size + 1, -1, 3).numpy().swapaxes(0, 1)
        self._move_lines(plan, pixels.swapaxes(0, 1), columns)
        self._interpolate(moved[:-1], moved[1:], plan, pixels)

    def rotate(self, pixels: Pixels, degrees: float) -> None:
        """Turns the picture counter-clockwise around its middle."""
        plan = _rotation(self._size, degrees)
        # Pillow packs and unpacks pixels of 32 bits, which are quicker to gather, ten times as fast as numpy
        packed = np.frombuffer(Image.fromarray(pixels).tobytes("raw", "RGBX"), np.int32)
        for places, corner, levels in zip(plan.places, self._corners, self._corner_levels, strict=True):
            np.take(packed, places, out=corner, mode="wrap")  # every place is valid; "wrap" only spares the look
            levels.copy_(torch.from_numpy(corner.view(np.uint8)))
        upper, upper_right, lower, lower_right = self._corner_levels
        levels = upper.lerp_(upper_right, plan.x_weights)
        levels.lerp_(lower.lerp_(lower_right, plan.x_weights), plan.y_weights)
        most = self._turned.view(np.uint8)
        np.copyto(most, levels.add_(_ROUNDING_32).numpy(), casting="unsafe")
        np.copyto(self._least, levels.sub_(2 * _ROUNDING_32).numpy(), casting="unsafe")
        self._decide(np.flatnonzero((most != self._least) & self._uneven()), plan)
        np.bitwise_and(self._turned, plan.mask, out=self._turned)
        turned = Image.frombytes("RGB", (self._size, self._size), self._turned, "raw", "RGBX")
        np.copyto(pixels, np.asarray(turned))

    def _move_lines(self, plan: _Shear, pixels: Pixels, moved: npt.NDArray[np.float32]) -> None:
        """Writes each line, shifted, and one pixel more: the neighbours of every pixel between them.

        At the edge of the picture its last pixel is its own neighbour. What lies outside is left as it was.
        """
        size = self._size
        for first, last, shift in plan.shifts:
            if shift >= 0:
                moved[first:last, : size - shift] = pixels[first:last, shift:]
                moved[first:last, size - shift] = pixels[first:last, -1]
            else:
                moved[first:last, -shift:] = pixels[first:last, : size + shift + 1]
                moved[first:last, -shift - 1] = pixels[first:last, 0]

    def _interpolate(self, here: Tensor, neighbours: Tensor, plan: _Shear, out: Pixels) -> None:
        torch.lerp(here, neighbours, plan.weights, out=self._sheared)
        rows = out.reshape(self._size, -1)
        np.copyto(rows, self._sheared.numpy(), casting="unsafe")
        np.bitwise_and(rows, plan.mask, out=rows)

    def _uneven(self) -> npt.NDArray[np.bool_]:
        """Where the four corners are not all the same level, which would be exact in any arithmetic."""
        upper, upper_right, lower, lower_right = (corner.view(np.uint8) for corner in self._corners)
        uneven: npt.NDArray[np.bool_] = upper != upper_right
        uneven |= lower != lower_right
        uneven |= upper != lower
        return uneven

    def _decide(self, at: npt.NDArray[np.intp], plan: _Rotation) -> None:
        """Computes some levels in Pillow's order and precision."""
        upper, upper_right, lower, lower_right = (
            corner.view(np.uint8)[at].astype(np.float64) for corner in self._corners
        )
        x, y = plan.x_fractions[at // 4], plan.y_fractions[at // 4]
        upper += (upper_right - upper) * x
        lower += (lower_right - lower) * x
        self._turned.view(np.uint8)[at] = upper + (lower - upper) * y


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shear:
    shifts: tuple[tuple[int, int, int], ...]
    """(first line, last line, whole pixels) of each stretch of lines that are moved equally far."""
    weights: Tensor
    """Of each value's neighbour."""
    mask: Pixels
    """0 where a value comes from outside."""


@functools.lru_cache(maxsize=8)
def _shear(size: int, slope: float, columns: bool) -> _Shear | None:
    """None where Pillow should be asked: the last bits of float64 decide a level, or a line leaves the picture."""
    if abs(slope) >= 1:
        return None
    middles = np.arange(size) + 0.5
    places = middles + slope * middles[:, None]
    inside = (places >= 0) & (places < size)
    whole, fractions = _parts(places)
    least, most = fractions.min(axis=1, keepdims=True), fractions.max(axis=1, keepdims=True)
    # the interpolated level is floor(level + difference * fraction), which is the same for all fractions between two
    # neighbours among the fractions of 1 to 255; in the middle between those, no product comes near a whole number
    differences = np.arange(1, 256)
    below = np.floor(differences * least - _ROUNDING_64)
    if (below != np.floor(differences * most + _ROUNDING_64)).any():
        return None
    weights = ((below / differences).max(axis=1) + ((below + 1) / differences).min(axis=1)) / 2
    shifts = []
    for shift, lines in groupby(range(size), lambda line: int(whole[line, 0])):
        stretch = list(lines)
        shifts.append((stretch[0], stretch[-1] + 1, shift))
    as_stored = (1, 0, 2) if columns else (0, 1, 2)
    spread = [
        np.ascontiguousarray(np.broadcast_to(values[:, :, None], (size, size, 3)).transpose(as_stored))
        for values in (weights[:, None].astype(np.float32), np.where(inside, 255, 0).astype(np.uint8))
    ]
    return _Shear(
        shifts=tuple(shifts),
        weights=torch.from_numpy(spread[0]).view(size, -1),
        mask=spread[1].reshape(size, -1),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rotation:
    places: tuple[npt.NDArray[np.intp], ...]
    """Where each pixel's four corners are: upper left and right, lower left and right."""
    x_fractions: _Array
    y_fractions: _Array
    x_weights: Tensor
    """The fractions for each of a pixel's four bytes, in float32."""
    y_weights: Tensor
    mask: npt.NDArray[np.int32]
    """0 where a pixel comes from outside."""


@functools.lru_cache(maxsize=4)
def _rotation(size: int, degrees: float) -> _Rotation:
    angle = -math.radians(degrees % 360)
    # rounded as Pillow does before it walks the picture
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    middle = size / 2
    left, top = cosine * -middle + sine * -middle + middle, -sine * -middle + cosine * -middle + middle
    y, x = np.mgrid[:size, :size] + 0.5
    from_x, from_y = cosine * x + sine * y + left, -sine * x + cosine * y + top
    inside = (from_x >= 0) & (from_x < size) & (from_y >= 0) & (from_y < size)
    columns, x_fractions = _parts(from_x)
    rows, y_fractions = _parts(from_y)
    places = tuple(
        np.where(inside, size * np.clip(rows + below, 0, size - 1) + np.clip(columns + right, 0, size - 1), 0)
        for below in (0, 1)
        for right in (0, 1)
    )
    return _Rotation(
        places=tuple(place.reshape(-1).astype(np.intp) for place in places),
        x_fractions=x_fractions.reshape(-1),
        y_fractions=y_fractions.reshape(-1),
        x_weights=torch.from_numpy(x_fractions.reshape(-1).repeat(4).astype(np.float32)),
        y_weights=torch.from_numpy(y_fractions.reshape(-1).repeat(4).astype(np.float32)),
        mask=np.where(inside, -1, 0).reshape(-1).astype(np.int32),
    )


def _parts(places: _Array) -> tuple[_Array, _Array]:
    """The pixel whose middle is the last before each place, and how far from there it is to the next one's."""
    places = places - 0.5
    whole = np.floor(places)
    return whole, places - whole


def _shear_by_pillow(pixels: Pixels, matrix: _Matrix) -> None:
    image = Image.fromarray(pixels)
    sheared = image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    np.copyto(pixels, np.asarray(sheared))
