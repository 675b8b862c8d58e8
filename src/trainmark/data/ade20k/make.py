"""Writes the synthetic scenes: JPEG images and PNG masks laid out as ADE20K's, the same bytes for the same seed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import simplejpeg
from PIL import Image, ImageDraw

from trainmark.data.ade20k.reader import OBJECT_INFO
from trainmark.data.atomic_dataset import (
    DatasetSpec,
    Progress,
    WrittenFile,
    choose_processes,
    stage,
    write_chunks,
    write_file,
)
from trainmark.data.imagenet import renderer, shapes
from trainmark.record.errors import UsageError

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
SPLITS = ("training", "validation")

_CHUNK = 20
_WORTH_PROCESSES = 128
"""Number of scenes from which starting processes pays off."""


@dataclass(frozen=True, kw_only=True)
class _SceneContents:
    """Parameters that determine every byte of a set."""

    train: int
    val: int
    classes: int
    seed: int
    long_side: int

    def count(self, split: str) -> int:
        return self.train if split == SPLITS[0] else self.val

    @property
    def name(self) -> str:
        return f"scenes-v{VERSION}-{self.train}+{self.val}-{self.classes}c-{self.long_side}px-seed{self.seed}"


@dataclass(frozen=True)
class _SceneChunk:
    """Scenes of one split that one process draws."""

    split: str
    start: int
    stop: int


def make(
    out: Path,
    *,
    train: int = TRAIN,
    val: int = VAL,
    classes: int = CLASSES,
    seed: int = SEED,
    long_side: int = LONG_SIDE,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out` atomically; returns at once if it exists.

    Several processes may make the same set at once. `processes` (default: one per core) does not change the result.
    """
    contents = _make_contents(train, val, classes, seed, long_side)
    processes = choose_processes(processes, train + val, _WORTH_PROCESSES)
    stage(out, _spec(contents), partial(_write_scenes, contents=contents, processes=processes, progress=progress))


def default_name() -> str:
    """Folder name of the default set."""
    return _make_contents(TRAIN, VAL, CLASSES, SEED, LONG_SIDE).name


def _make_contents(train: int, val: int, classes: int, seed: int, long_side: int) -> _SceneContents:
    if min(train, val) < 1:
        raise UsageError("a synthetic set needs at least one scene to train on and one to evaluate on")
    if not 3 <= classes <= MAX_CLASSES:
        raise UsageError(f"scenes of {classes} classes were requested; give 3 to {MAX_CLASSES}, two are backgrounds")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    if not 32 <= long_side <= renderer.POOL_SIDE:
        raise UsageError(f"images of {long_side} px were requested; give 32 to {renderer.POOL_SIDE}")
    return _SceneContents(train=train, val=val, classes=classes, seed=seed, long_side=long_side)


def _spec(contents: _SceneContents) -> DatasetSpec:
    return DatasetSpec(
        things="synthetic scenes",
        identity={"generator": "trainmark scenes", "version": VERSION, **asdict(contents)},
        notes={
            "about": "Scenes drawn by trainmark, with masks; no photographs",
            "made_with": {"numpy": np.__version__, "pillow": PIL.__version__, "simplejpeg": simplejpeg.__version__},
        },
        patterns=("images/*/*.jpg", "annotations/*/*.png", OBJECT_INFO),
        files=2 * (contents.train + contents.val) + 1,
    )


def _write_scenes(root: Path, contents: _SceneContents, processes: int, progress: Progress | None) -> list[WrittenFile]:
    for split in SPLITS:
        for folder in ("images", "annotations"):
            (root / folder / split).mkdir(parents=True)
    counted = None if progress is None else partial(_count_scenes, progress)
    total = 2 * (contents.train + contents.val)
    draw = partial(_draw_chunk, root, contents)
    written = write_chunks(draw, list(_chunks(contents)), total=total, processes=processes, progress=counted)
    return [*written, write_file(root, OBJECT_INFO, _object_info(contents.classes).encode())]


def _count_scenes(progress: Progress, files: int, total: int) -> None:
    progress(files // 2, total // 2)


def _object_info(classes: int) -> str:
    """The table of classes, with ADE20K's columns; the shares are 0."""
    lines = ["Idx\tRatio\tTrain\tVal\tStuff\tName"]
    for label in range(1, classes + 1):
        lines.append(f"{label}\t0\t0\t0\t{int(label < FIRST_FORM)}\t{class_name(label)}")
    return "\n".join(lines) + "\n"


def _chunks(contents: _SceneContents) -> Iterator[_SceneChunk]:
    for split in SPLITS:
        count = contents.count(split)
        for start in range(0, count, _CHUNK):
            yield _SceneChunk(split, start, min(count, start + _CHUNK))


def _draw_chunk(root: Path, contents: _SceneContents, chunk: _SceneChunk) -> list[WrittenFile]:
    written = []
    short = {"training": "train", "validation": "val"}[chunk.split]
    for number in range(chunk.start, chunk.stop):
        # one generator per scene: no scene depends on another, nor on the process
        rng = np.random.default_rng([contents.seed, SPLITS.index(chunk.split), number])
        pixels, mask = draw(contents.classes, rng, long_side=contents.long_side)
        quality = int(rng.integers(86, 95))
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="420")
        name = f"ADE_{short}_{number + 1:08d}"
        png = io.BytesIO()
        Image.fromarray(mask).save(png, "PNG")
        written.append(write_file(root, f"images/{chunk.split}/{name}.jpg", data))
        written.append(write_file(root, f"annotations/{chunk.split}/{name}.png", png.getvalue()))
    return written
