"""Renders a photo-like image of one form: only outline and surface depend on the class, all else is random.

Colours, backdrop, clutter, light, focus, noise, size, position, tilt and squash are random per image.
Pixels use only additions, multiplications, divisions, square roots and integer filters, whose results do not depend
on the processor's vector unit, so that machines with the same libraries render the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from trainmark.data.imagenet.shapes import Floats, Outline, Points, form

Pixels = NDArray[np.uint8]
Rng = np.random.Generator
Colour = tuple[float, float, float]
"""Red, green and blue, 0 to 255."""
Corners = list[tuple[float, float]]
"""Of a polygon, in pixels."""

ASPECTS = ((1.0, 0.75, 0.60), (0.75, 1.0, 0.16), (1.0, 0.667, 0.12), (1.0, 1.0, 0.06), (0.667, 1.0, 0.06))
"""Width and height as shares of the long side, and the share of images of this shape; most are landscape 4:3."""

RADIUS = (0.33, 0.46)
"""Minimum and maximum radius of the object as a share of the image's short side."""
OFF_CENTRE = 0.12
"""Maximum offset of the object from the image's centre, as a share of the short side."""
TURN = 0.6
"""Maximum rotation in radians."""
SQUASH = 0.25
"""Maximum shortening by perspective along some direction."""

POOL_SIDE = 1024
"""Side of the square noise tiles that images take random windows of; no image may be larger."""

LIBRARIES = {"numpy": np.__version__, "pillow": PIL.__version__, "simplejpeg": simplejpeg.__version__}
"""Whose versions may change bytes."""


def draw(index: int, rng: Rng, *, long_side: int = 500) -> Pixels:
    """One image (height, width, RGB) of class `index`; all else comes from `rng`."""
    width, height = random_size(long_side, rng)
    image, _ = backdrop(width, height, rng)
    short = min(width, height)
    x, y = (side / 2 + short * rng.uniform(-OFF_CENTRE, OFF_CENTRE) for side in (width, height))
    add_object(image, index, Pose.at(x, y, short * rng.uniform(*RADIUS), rng), rng)
    return develop(image, rng)


def encode(pixels: Pixels, rng: Rng) -> bytes:
    """An image as JPEG, of random quality."""
    return bytes(simplejpeg.encode_jpeg(pixels, quality=int(rng.integers(86, 95)), colorsubsampling="420"))


def random_size(long_side: int, rng: Rng) -> tuple[int, int]:
    """Width and height of an image."""
    width_share, height_share, _ = ASPECTS[rng.choice(len(ASPECTS), p=[share for *_, share in ASPECTS])]
    return round(long_side * width_share), round(long_side * height_share)


# The image's three layers; until developed, an image is (RGB, height, width)


def backdrop(width: int, height: int, rng: Rng) -> tuple[Floats, Corners]:
    """A background out of focus: uneven colour, perhaps a horizon, clutter; and the corners of the ground below the
    horizon, if there is one."""
    small = (max(8, width // 3), max(8, height // 3))
    uneven = rng.uniform(0.08, 0.3)
    patches = rng.integers(0, 256, (4, 5, 3)) * uneven + np.array(_colour(rng, vivid=0.5)) * (1 - uneven)
    canvas = Image.fromarray(patches.astype(np.uint8)).resize(small, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(canvas, "RGBA")
    ground: Corners = []
    if rng.random() < 0.5:
        line, tilt = small[1] * rng.uniform(0.35, 0.75), small[1] * rng.uniform(-0.08, 0.08)
        ground = [(0.0, line - tilt), (small[0], line + tilt), small, (0.0, small[1])]
        pen.polygon(ground, fill=_ink(_colour(rng, vivid=0.5), rng.uniform(0.5, 0.85)))
    for _ in range(int(rng.integers(3, 9))):
        pen.polygon(_pebble(small, rng), fill=_ink(_colour(rng, vivid=0.6), rng.uniform(0.25, 0.7)))
    canvas = canvas.filter(ImageFilter.BoxBlur(small[0] * rng.uniform(0.003, 0.02)))
    canvas = canvas.resize((width, height), Image.Resampling.BILINEAR)
    relief = 1 + _window(_grain(), width, height, rng) * np.float32(rng.uniform(0.05, 0.18))
    image = np.empty((3, height, width), np.float32)
    for plane, channel in zip(image, canvas.split(), strict=True):
        np.multiply(_floats(channel), relief, out=plane)
    return image, [(x * width / small[0], y * height / small[1]) for x, y in ground]


def add_object(image: Floats, index: int, pose: Pose, rng: Rng) -> tuple[tuple[slice, slice], Pixels]:
    """Paints an object of class `index`; returns its rows and columns, and the coverage of each pixel there."""
    _, outline, surface = form(index)
    height, width = image.shape[1:]
    across, down = _box(pose, width, height)
    window = image[:, down, across]
    size = (across.stop - across.start, down.stop - down.start)
    pose = pose.move(-across.start, -down.start)

    mask = _mask(outline, pose, size)
    blurred = mask.filter(ImageFilter.BoxBlur(pose.radius * 0.1))
    light = rng.uniform(0, 2 * math.pi)
    light_x, light_y = math.cos(light), math.sin(light)

    reach = pose.radius * rng.uniform(0.06, 0.16)
    shadow = _floats(_shift(blurred, -light_x * reach, -light_y * reach))
    window *= 1 - shadow * np.float32(rng.uniform(0.3, 0.6) / 255)

    # the blurred mask is a height map: edges facing the light are bright, the others dark
    heights = _floats(blurred.filter(ImageFilter.BoxBlur(pose.radius * 0.06)))
    slope = np.zeros_like(heights)
    slope[:, 1:-1] += (heights[:, :-2] - heights[:, 2:]) * np.float32(light_x)
    slope[1:-1] += (heights[:-2] - heights[2:]) * np.float32(light_y)
    shade = 1 + slope * np.float32(rng.uniform(0.25, 0.5) * pose.radius / 2550)
    shade += _window(_grain(), *size, rng) * np.float32(rng.uniform(0.04, 0.12))
    np.clip(shade, 0.2, 1.9, out=shade)

    # the pattern is bent and stretched a little
    u, v = pose.object_coordinates(*size)
    bend = _window(_swell(), *size, rng) * np.float32(rng.uniform(0.02, 0.09))
    stretch = np.float32(rng.uniform(0.85, 1.15))
    blotches = _window(_blotches(min(width, height)), *size, rng)
    pattern = surface((u + bend) * stretch, (v - bend) * stretch, blotches)
    mixture = np.clip(pattern * 8 + np.float32(0.5), 0, 1)

    cover = _floats(mask) * np.float32(1 / 255)
    for plane, first, second in zip(window, *_two_colours(rng), strict=True):
        paint = (mixture * np.float32(second - first) + np.float32(first)) * shade
        plane += (paint - plane) * cover
    return (down, across), np.asarray(mask)


def develop(image: Floats, rng: Rng) -> Pixels:
    """The camera: light falling off to one side and to the corners, white balance, sensor noise, eight bits."""
    height, width = image.shape[1:]
    corner = rng.uniform(0, 0.15)
    x, y = np.linspace(-1, 1, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    light_x = x * np.float32(rng.uniform(-0.2, 0.2)) - x * x * np.float32(corner) + np.float32(rng.uniform(0.9, 1.2))
    light_y = y * np.float32(rng.uniform(-0.2, 0.2)) - y * y * np.float32(corner)
    light = light_x + light_y
    noise = rng.uniform(3, 9)
    grey_noise = _window(_sensor(), width, height, rng) * np.float32(noise)
    pixels = np.empty((height, width, 3), np.uint8)
    for channel, plane in enumerate(image):
        plane *= light
        plane *= np.float32(rng.uniform(0.88, 1.12))
        plane += grey_noise
        plane += _window(_sensor(), width, height, rng) * np.float32(noise / 2)
        pixels[..., channel] = np.clip(plane, 0, 255, out=plane)
    return pixels


# Pose and outline


@dataclass(frozen=True)
class Pose:
    """Where an object lies: (u, v) of its own coordinates is the pixel (x + a u + b v, y + c u + d v)."""

    x: float
    y: float
    radius: float
    a: float
    b: float
    c: float
    d: float

    @classmethod
    def at(cls, x: float, y: float, radius: float, rng: Rng) -> Pose:
        """Perhaps mirrored, then rotated, then squashed along any direction."""
        mirror = 1 if rng.random() < 0.5 else -1
        turn, lean = rng.uniform(-TURN, TURN), rng.uniform(0, math.pi)
        cos_turn, sin_turn, cos_lean, sin_lean = math.cos(turn), math.sin(turn), math.cos(lean), math.sin(lean)
        lost = rng.uniform(0, SQUASH)
        xx, xy, yy = 1 - lost * cos_lean * cos_lean, -lost * cos_lean * sin_lean, 1 - lost * sin_lean * sin_lean
        return cls(
            x,
            y,
            radius,
            a=radius * mirror * (xx * cos_turn + xy * sin_turn),
            b=radius * (xy * cos_turn - xx * sin_turn),
            c=radius * mirror * (xy * cos_turn + yy * sin_turn),
            d=radius * (yy * cos_turn - xy * sin_turn),
        )

    def move(self, right: float, down: float) -> Pose:
        return Pose(self.x + right, self.y + down, self.radius, self.a, self.b, self.c, self.d)

    def place(self, points: Points, scale: int) -> list[tuple[float, float]]:
        return [
            ((self.x + self.a * u + self.b * v) * scale, (self.y + self.c * u + self.d * v) * scale) for u, v in points
        ]

    def object_coordinates(self, width: int, height: int) -> tuple[Floats, Floats]:
        """The u and v of every pixel."""
        x = np.arange(width, dtype=np.float32) - np.float32(self.x)
        y = (np.arange(height, dtype=np.float32) - np.float32(self.y))[:, None]
        area = self.a * self.d - self.b * self.c
        u = x * np.float32(self.d / area) - y * np.float32(self.b / area)
        v = y * np.float32(self.a / area) - x * np.float32(self.c / area)
        return u, v


def _box(pose: Pose, width: int, height: int) -> tuple[slice, slice]:
    """Columns and rows of an object and its shadow."""
    reach = pose.radius * 1.3
    across = slice(max(0, int(pose.x - reach)), min(width, int(pose.x + reach)))
    down = slice(max(0, int(pose.y - reach)), min(height, int(pose.y + reach)))
    return across, down


def _mask(outline: Outline, pose: Pose, size: tuple[int, int]) -> Image.Image:
    """Where the object is, 0 to 255, drawn at twice the size for smooth edges."""
    canvas = Image.new("L", (size[0] * 2, size[1] * 2))
    pen = ImageDraw.Draw(canvas)
    for part in outline.parts:
        pen.polygon(pose.place(part, 2), fill=255)
    for hole in outline.holes:
        pen.polygon(pose.place(hole, 2), fill=0)
    return canvas.reduce(2)


def _pebble(size: tuple[int, int], rng: Rng) -> list[tuple[float, float]]:
    """A rounded shape anywhere in the image, from pebble to stick."""
    x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
    length, slimness = size[0] * rng.uniform(0.04, 0.3), rng.uniform(0.1, 1)
    turn = rng.uniform(0, math.pi)
    along, across = length * math.cos(turn), length * math.sin(turn)
    corners = []
    for i, bump in enumerate(rng.uniform(0.8, 1.2, 12)):
        u, v = bump * math.cos(math.pi * i / 6), bump * slimness * math.sin(math.pi * i / 6)
        corners.append((x + u * along - v * across, y + u * across + v * along))
    return corners


# Colour


def _colour(rng: Rng, *, vivid: float) -> Colour:
    """Any hue, saturation up to `vivid`, any brightness but the extremes."""
    hue, saturation, value = rng.uniform(0, 6), rng.uniform(0.03, vivid), rng.uniform(45, 245)
    red, green, blue = (min(1.0, max(0.0, abs((hue + shift) % 6 - 3) - 1)) for shift in (0, 4, 2))
    return (
        value * (1 - saturation * (1 - red)),
        value * (1 - saturation * (1 - green)),
        value * (1 - saturation * (1 - blue)),
    )


def _two_colours(rng: Rng) -> tuple[Colour, Colour]:
    """Two colours far enough apart in brightness for a pattern to show."""
    first = _colour(rng, vivid=0.75)
    while True:
        second = _colour(rng, vivid=0.75)
        if abs(_brightness(first) - _brightness(second)) > 70:
            return first, second


def _brightness(colour: Colour) -> float:
    return 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2]


def _ink(colour: Colour, opacity: float) -> tuple[int, int, int, int]:
    red, green, blue = (int(channel) for channel in colour)
    return red, green, blue, int(255 * opacity)


# Noise, computed once per process


@cache
def _sensor() -> Floats:
    """Near-normal noise of about unit spread, smeared a little as a camera's is."""
    parts = np.random.default_rng(1).integers(-128, 128, (4, POOL_SIDE, POOL_SIDE), np.int16).astype(np.float32)
    noise = parts[0] + parts[1] + parts[2] + parts[3]
    noise += np.float32(0.5) * (np.roll(noise, 1, 0) + np.roll(noise, 1, 1))
    scaled: Floats = noise * np.float32(1 / 181)
    return scaled


@cache
def _grain() -> Floats:
    """Structure at every size, as surfaces in nature have."""
    return _octaves(2, cells=4, octaves=7)


@cache
def _swell() -> Floats:
    """Slow undulation, to bend patterns with."""
    return _octaves(3, cells=8, octaves=1)


@cache
def _blotches(short_side: int) -> Floats:
    """Patches an eighth of an image wide, for surfaces that are irregular."""
    return _octaves(4, cells=max(2, round(POOL_SIDE / (0.12 * short_side))), octaves=1)


def _octaves(seed: int, *, cells: int, octaves: int) -> Floats:
    """A tile of smooth noise with `cells` bumps a side, and weaker noise of half the size, and so on."""
    rng = np.random.default_rng(seed)
    tile = np.zeros((POOL_SIDE, POOL_SIDE), np.float32)
    for octave in range(octaves):
        bumps = rng.integers(0, 256, (cells << octave, cells << octave), np.uint8)
        layer = Image.fromarray(bumps).resize((POOL_SIDE, POOL_SIDE), Image.Resampling.BICUBIC)
        tile += (_floats(layer) - 128) * np.float32(0.72**octave / 128)
    return tile


def _window(tile: Floats, width: int, height: int, rng: Rng) -> Floats:
    """A random window of the tile."""
    x, y = int(rng.integers(0, POOL_SIDE - width + 1)), int(rng.integers(0, POOL_SIDE - height + 1))
    return tile[y : y + height, x : x + width]


def _floats(image: Image.Image) -> Floats:
    return np.asarray(image, np.float32)


def _shift(image: Image.Image, right: float, down: float) -> Image.Image:
    moved = Image.new("L", image.size)
    moved.paste(image, (round(right), round(down)))
    return moved
