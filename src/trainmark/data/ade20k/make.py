"""Writes the synthetic scenes: JPEG images and PNG masks laid out as ADE20K's, the same bytes for the same seed."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from trainmark.data.ade20k.reader import OBJECT_INFO
from trainmark.data.atomic_dataset import DatasetSpec, Progress, check_range, make_set, write_file
from trainmark.data.imagenet import renderer, shapes

VOID, BACKGROUND, GROUND, FIRST_FORM = 0, 1, 2, 3
"""Mask values as in ADE20K: 0 is ignored, classes count from 1."""
OBJECTS = (3, 6)
RADIUS = (0.18, 0.36)
"""Minimum and maximum radius of an object, as a share of the image's short side."""
COVERED = (32, 224)
"""Coverage of 255: a pixel belongs to the object from the second value on, and is ignored between the two."""

Mask = npt.NDArray[np.uint8]


def class_name(label: int) -> str:
    """The name of a mask value."""
    return {BACKGROUND: "background", GROUND: "ground"}.get(label) or shapes.form(label - FIRST_FORM)[0]


def draw(classes: int, rng: renderer.Rng, *, long_side: int) -> tuple[renderer.Pixels, Mask]:
    """An image (height, width, RGB) and its mask (height, width), with labels from 1 to `classes`."""
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


VERSION = 1
"""Increased whenever the same seed gives other scenes."""

TRAIN, VAL, CLASSES, SEED, LONG_SIDE = 960, 80, 6, 0, 256
MAX_CLASSES = 150
SPLITS = {"training": "train", "validation": "val"}


def make(
    out: Path,
    *,
    train: int = TRAIN,
    val: int = VAL,
    classes: int = CLASSES,
    seed: int = SEED,
    long_side: int = LONG_SIDE,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out` atomically; returns at once if it exists."""
    check_range("train", train, 1)
    check_range("val", val, 1)
    check_range("classes", classes, 3, MAX_CLASSES)  # two are backgrounds
    check_range("seed", seed, 0)
    check_range("long-side", long_side, 32, renderer.POOL_SIDE)
    contents = {"train": train, "val": val, "classes": classes, "seed": seed, "long_side": long_side}
    spec = DatasetSpec(
        things="synthetic scenes",
        identity={"generator": "trainmark scenes", "version": VERSION, **contents},
        notes={
            "about": "Scenes drawn by trainmark, with masks; no photographs",
            "made_with": renderer.LIBRARIES,
        },
        patterns=("images/*/*.jpg", "annotations/*/*.png", OBJECT_INFO),
        files=2 * (train + val) + 1,
    )
    scenes = [(split, number) for split, name in SPLITS.items() for number in range(contents[name])]
    write = partial(_draw_scene, classes, seed, long_side)
    make_set(out, spec, scenes, write, finish=partial(_add_object_info, classes), progress=progress)


def default_name() -> str:
    """Folder name of the default set."""
    return f"scenes-v{VERSION}-{TRAIN}+{VAL}-{CLASSES}c-{LONG_SIDE}px-seed{SEED}"


def _draw_scene(classes: int, seed: int, long_side: int, root: Path, scene: tuple[str, int]) -> None:
    split, number = scene
    # one generator per scene: no scene depends on another, nor on the process
    rng = np.random.default_rng([seed, list(SPLITS).index(split), number])
    pixels, mask = draw(classes, rng, long_side=long_side)
    png = io.BytesIO()
    Image.fromarray(mask).save(png, "PNG")
    name = f"ADE_{SPLITS[split]}_{number + 1:08d}"
    write_file(root / "images" / split / f"{name}.jpg", renderer.encode(pixels, rng))
    write_file(root / "annotations" / split / f"{name}.png", png.getvalue())


def _add_object_info(classes: int, root: Path) -> None:
    """Adds the table of classes, with ADE20K's columns; the shares are 0."""
    lines = ["Idx\tRatio\tTrain\tVal\tStuff\tName"]
    for label in range(1, classes + 1):
        lines.append(f"{label}\t0\t0\t0\t{int(label < FIRST_FORM)}\t{class_name(label)}")
    write_file(root / OBJECT_INFO, ("\n".join(lines) + "\n").encode())
