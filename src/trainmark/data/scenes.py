"""Draws a photo-like picture of one form: only outline and surface tell its class, all else is chance.

Colours, backdrop, clutter, light, focus, noise, size, place, rotation and squash are drawn anew for every picture.
Pixels are computed with additions, multiplications, divisions, square roots and integer filters only, whose results
do not depend on the vector unit, so that machines with the same libraries draw the same bytes.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from trainmark.data.forms import Floats, Outline, Points, form

Pixels = NDArray[np.uint8]
Rng = np.random.Generator

ASPECTS = ((1.0, 0.75, 0.60), (0.75, 1.0, 0.16), (1.0, 0.667, 0.12), (1.0, 1.0, 0.06), (0.667, 1.0, 0.06))
"""Width and height as shares of the long side, and the share of pictures shaped so; most are landscape 4:3."""

MAX_TURN, MAX_SQUASH = 0.6, 0.25
"""How far an object leans from upright, in radians, and the share of its length that perspective may take."""

POOL_SIDE = 1024
"""Side of the square noise tiles every picture takes random windows of; no picture may be larger."""


def draw(index: int, rng: Rng, *, long_side: int = 500) -> Pixels:
    """One picture (height, width, RGB) of class `index`; everything but the class comes from `rng`."""
    _, outline, surface = form(index)
    pick = int(np.searchsorted(np.cumsum([share for *_, share in ASPECTS])[:-1], rng.random(), side="right"))
    width, height = (round(long_side * share) for share in ASPECTS[pick][:2])
    short = min(width, height)
    light = _direction(rng)

    picture = _backdrop(width, height, rng)

    # the object: where it is and how it lies
    radius = short * rng.uniform(0.33, 0.46)
    middle_x = width / 2 + short * rng.uniform(-0.12, 0.12)
    middle_y = height / 2 + short * rng.uniform(-0.12, 0.12)
    place = _pose(rng, radius)
    left, top = max(0, int(middle_x - radius * 1.3)), max(0, int(middle_y - radius * 1.3))
    right, bottom = min(width, int(middle_x + radius * 1.3)), min(height, int(middle_y + radius * 1.3))
    window = picture[:, top:bottom, left:right]
    origin = (middle_x - left, middle_y - top)

    mask = _mask(outline, place, origin, (right - left, bottom - top))
    soft = mask.filter(ImageFilter.BoxBlur(radius * 0.10))
    cover = _floats(mask) * np.float32(1 / 255)

    # its shadow on what lies behind
    reach = radius * rng.uniform(0.06, 0.16)
    shadow = _floats(_shifted(soft, -light[0] * reach, -light[1] * reach))
    window *= 1 - shadow * np.float32(rng.uniform(0.3, 0.6) / 255)

    # its surface, in its own coordinates, bent a little
    u, v = _object_coordinates(place, origin, (right - left, bottom - top))
    bend = _window(_smooth_pool(), right - left, bottom - top, rng) * np.float32(rng.uniform(0.02, 0.09))
    scale = np.float32(rng.uniform(0.85, 1.15))
    blotches = _window(_blotch_pool(short), right - left, bottom - top, rng)
    pattern = surface((u + bend) * scale, (v - bend) * scale, blotches)
    amount = np.clip(pattern * 8 + np.float32(0.5), 0, 1)

    # lit from one side: the blurred mask is a height map, its slope turns light into shade
    relief = _floats(soft.filter(ImageFilter.BoxBlur(radius * 0.06)))
    slope = np.zeros_like(relief)
    slope[:, 1:-1] += (relief[:, 2:] - relief[:, :-2]) * np.float32(-light[0])
    slope[1:-1] += (relief[2:] - relief[:-2]) * np.float32(-light[1])
    shade = 1 + slope * np.float32(rng.uniform(0.25, 0.5) * radius / 2550)
    shade += _window(_grain_pool(), right - left, bottom - top, rng) * np.float32(rng.uniform(0.04, 0.12))
    np.clip(shade, 0.2, 1.9, out=shade)
    for channel, (low, high) in enumerate(zip(*_two_colours(rng), strict=True)):
        paint = (amount * np.float32(high - low) + np.float32(low)) * shade
        window[channel] += (paint - window[channel]) * cover

    return _develop(picture, rng)


def _backdrop(width: int, height: int, rng: Rng) -> Floats:
    """What is behind the object, out of focus: uneven colour, perhaps a horizon, clutter of plain things."""
    near, far = _colour(rng, vivid=0.5), _colour(rng, vivid=0.5)
    small = (max(8, width // 3), max(8, height // 3))
    patches = np.stack([rng.integers(0, 256, (4, 5)) for _ in range(3)], axis=-1)
    mix = rng.uniform(0.08, 0.3)
    tint = [near[c] * (1 - mix) for c in range(3)]
    grid = np.clip(patches * (mix * 0.9) + np.array(tint), 0, 255).astype(np.uint8)
    canvas = Image.fromarray(grid).resize(small, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(canvas, "RGBA")
    if rng.random() < 0.5:
        line, tilt = small[1] * rng.uniform(0.35, 0.75), small[1] * rng.uniform(-0.08, 0.08)
        fill = (*(int(c) for c in far), int(rng.integers(120, 220)))
        pen.polygon([(0, line - tilt), (small[0], line + tilt), small, (0, small[1])], fill=fill)
    for _ in range(int(rng.integers(3, 9))):
        fill = (*(int(c) for c in _colour(rng, vivid=0.6)), int(rng.integers(60, 180)))
        pen.polygon(_pebble(rng, small), fill=fill)
    canvas = canvas.filter(ImageFilter.BoxBlur(small[0] * rng.uniform(0.003, 0.02)))
    picture = np.ascontiguousarray(
        np.asarray(canvas.resize((width, height), Image.Resampling.BICUBIC), np.float32).transpose(2, 0, 1)
    )
    picture *= 1 + _window(_grain_pool(), width, height, rng) * np.float32(rng.uniform(0.05, 0.18))
    return picture


def _develop(picture: Floats, rng: Rng) -> Pixels:
    """The camera: uneven light, white balance, exposure, sensor noise, eight bits."""
    height, width = picture.shape[1:]
    lamp = Image.fromarray(rng.integers(96, 256, (3, 4), np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    lit = _floats(lamp) * np.float32(0.4 / 176) + np.float32(rng.uniform(0.5, 0.8))
    noise = np.float32(rng.uniform(3.0, 9.0))
    out = np.empty((height, width, 3), np.uint8)
    luma_noise = _window(_sensor_pool(), width, height, rng) * noise
    for channel in range(3):
        plane = picture[channel] * lit
        plane *= np.float32(rng.uniform(0.88, 1.12))
        plane += luma_noise
        plane += _window(_sensor_pool(), width, height, rng) * (noise * np.float32(0.5))
        out[..., channel] = np.clip(plane, 0, 255, out=plane)
    return out


# Form and pose


Pose = tuple[float, float, float, float]
"""Takes object coordinates to pixels about the object's middle: x = a u + b v, y = c u + d v."""


def _pose(rng: Rng, radius: float) -> Pose:
    """Perhaps mirrored, turned up to a third of a right angle either way, then squashed along any direction."""
    mirror = 1.0 if rng.random() < 0.5 else -1.0
    turn, lean = rng.uniform(-MAX_TURN, MAX_TURN), rng.uniform(0, math.pi)
    cos_turn, sin_turn = math.cos(turn), math.sin(turn)
    lost, cos_lean, sin_lean = rng.uniform(0, MAX_SQUASH), math.cos(lean), math.sin(lean)
    xx, xy, yy = 1 - lost * cos_lean * cos_lean, -lost * cos_lean * sin_lean, 1 - lost * sin_lean * sin_lean
    return (
        radius * mirror * (xx * cos_turn + xy * sin_turn),
        radius * (xy * cos_turn - xx * sin_turn),
        radius * mirror * (xy * cos_turn + yy * sin_turn),
        radius * (yy * cos_turn - xy * sin_turn),
    )


def _mask(outline: Outline, pose: Pose, origin: tuple[float, float], size: tuple[int, int]) -> Image.Image:
    """Where the object is, 0 to 255, drawn at twice the size for smooth edges."""
    canvas = Image.new("L", (size[0] * 2, size[1] * 2))
    pen = ImageDraw.Draw(canvas)

    def placed(points: Points) -> list[tuple[float, float]]:
        a, b, c, d = pose
        return [((a * x + b * y + origin[0]) * 2, (c * x + d * y + origin[1]) * 2) for x, y in points]

    for part in outline.parts:
        pen.polygon(placed(part), fill=255)
    for hole in outline.holes:
        pen.polygon(placed(hole), fill=0)
    return canvas.reduce(2)


def _object_coordinates(pose: Pose, origin: tuple[float, float], size: tuple[int, int]) -> tuple[Floats, Floats]:
    a, b, c, d = pose
    determinant = a * d - b * c
    x = np.arange(size[0], dtype=np.float32) - np.float32(origin[0])
    y = (np.arange(size[1], dtype=np.float32) - np.float32(origin[1]))[:, None]
    u = x * np.float32(d / determinant) - y * np.float32(b / determinant)
    v = y * np.float32(a / determinant) - x * np.float32(c / determinant)
    return u, v


def _pebble(rng: Rng, size: tuple[int, int]) -> list[tuple[float, float]]:
    """A rounded thing of no particular form, from pebble to stick."""
    middle_x, middle_y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
    long, thin = size[0] * rng.uniform(0.04, 0.3), rng.uniform(0.1, 1.0)
    turn = rng.uniform(0, math.pi)
    bumps = rng.uniform(0.8, 1.2, 12)
    points = []
    for i, bump in enumerate(bumps):
        t = 2 * math.pi * i / 12
        x, y = long * bump * math.cos(t), long * thin * bump * math.sin(t)
        points.append(
            (middle_x + x * math.cos(turn) - y * math.sin(turn), middle_y + x * math.sin(turn) + y * math.cos(turn))
        )
    return points


# Colour and light


def _colour(rng: Rng, *, vivid: float = 0.75) -> tuple[float, float, float]:
    """Any hue, saturation up to `vivid`, any brightness but the extremes; channels 0 to 255."""
    hue, saturation, value = rng.uniform(0, 6), rng.uniform(0.03, vivid), rng.uniform(45, 245)
    channels = [min(1.0, max(0.0, abs((hue + shift) % 6 - 3) - 1)) for shift in (0, 4, 2)]
    red, green, blue = (value * (1 - saturation * (1 - level)) for level in channels)
    return red, green, blue


def _brightness(colour: tuple[float, float, float]) -> float:
    return 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2]


def _two_colours(rng: Rng) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Two colours far enough apart in brightness for a pattern to show."""
    first = _colour(rng)
    while True:
        second = _colour(rng)
        if abs(_brightness(first) - _brightness(second)) > 70:
            return first, second


def _direction(rng: Rng) -> tuple[float, float]:
    turn = rng.uniform(0, 2 * math.pi)
    return math.cos(turn), math.sin(turn)


# Noise, made once a process


@cache
def _sensor_pool() -> Floats:
    """Near-normal noise of unit spread, slightly smeared as a camera's is."""
    rng = np.random.default_rng(1)
    parts = rng.integers(-128, 128, (4, POOL_SIDE, POOL_SIDE), np.int16).astype(np.float32)
    noise = parts[0] + parts[1] + parts[2] + parts[3]
    noise = noise + np.float32(0.5) * (np.roll(noise, 1, 0) + np.roll(noise, 1, 1))
    return noise * np.float32(1 / 181)


@cache
def _grain_pool() -> Floats:
    """Noise with structure at every size, as surfaces in nature have, about -1 to 1."""
    return _octaves(2, (4, 8, 16, 32, 64, 128, 256), falloff=0.72)


@cache
def _smooth_pool() -> Floats:
    return _octaves(3, (8,), falloff=1.0)


@cache
def _blotch_pool(short: int) -> Floats:
    return _octaves(4, (round(POOL_SIDE / (short * 0.12)),), falloff=1.0)


def _octaves(seed: int, cells: tuple[int, ...], *, falloff: float) -> Floats:
    rng = np.random.default_rng(seed)
    total = np.zeros((POOL_SIDE, POOL_SIDE), np.float32)
    gain = 1.0
    for count in cells:
        grid = Image.fromarray(rng.integers(0, 256, (count, count), np.uint8))
        layer = _floats(grid.resize((POOL_SIDE, POOL_SIDE), Image.Resampling.BICUBIC))
        total += (layer - 128) * np.float32(gain / 128)
        gain *= falloff
    return total


def _window(pool: Floats, width: int, height: int, rng: Rng) -> Floats:
    x = int(rng.integers(0, POOL_SIDE - width + 1))
    y = int(rng.integers(0, POOL_SIDE - height + 1))
    return pool[y : y + height, x : x + width]


def _floats(image: Image.Image) -> Floats:
    return np.asarray(image, np.float32)


def _shifted(image: Image.Image, right: float, down: float) -> Image.Image:
    moved = Image.new("L", image.size)
    moved.paste(image, (round(right), round(down)))
    return moved
