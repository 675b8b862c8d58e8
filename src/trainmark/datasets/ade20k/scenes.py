"""Draws a scene and its mask: a few objects that overlap, before a background, perhaps above a ground.

Objects are the forms of the synthetic pictures, any of them anywhere, the later before the earlier; what a pixel shows
is known from what was painted last. Colours are chance, so that only outline, surface and place tell a class.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from trainmark.datasets.imagenet import renderer, shapes

VOID, BACKGROUND, GROUND, FIRST_FORM = 0, 1, 2, 3
"""What masks say, as ADE20K's do: 0 is not judged, and classes count from 1."""
OBJECTS = (3, 6)
RADIUS = (0.18, 0.36)
"""Of an object, as a share of the picture's short side, least and most."""
COVERED = (32, 224)
"""A pixel is the object's from the second on, of 255; between the two it is neither's, and not judged."""

Mask = npt.NDArray[np.uint8]


def class_name(label: int) -> str:
    """Of what a mask says."""
    return {BACKGROUND: "background", GROUND: "ground"}.get(label) or shapes.form(label - FIRST_FORM)[0]


def draw(classes: int, rng: renderer.Rng, *, long_side: int) -> tuple[renderer.Pixels, Mask]:
    """A picture (height, width, RGB) and its mask (height, width), with labels from 1 to `classes`."""
    width, height = renderer.random_size(long_side, rng)
    image, ground = renderer.backdrop(width, height, rng)
    canvas = Image.new("L", (width, height), BACKGROUND)
    if ground:
        ImageDraw.Draw(canvas).polygon(ground, fill=GROUND)
    mask = np.array(canvas)
    short = min(width, height)
    for _ in range(int(rng.integers(OBJECTS[0], OBJECTS[1] + 1))):
        form = int(rng.integers(0, classes - GROUND))
        x, y = width * rng.uniform(0.08, 0.92), height * rng.uniform(0.08, 0.92)
        pose = renderer.Pose.at(x, y, short * rng.uniform(*RADIUS), rng)
        place, cover = renderer.add_object(image, form, pose, rng)
        mask[place][cover >= COVERED[0]] = VOID
        mask[place][cover >= COVERED[1]] = FIRST_FORM + form
    return renderer.develop(image, rng), mask
