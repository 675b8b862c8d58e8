"""Writes the synthetic image set as ImageNet-shaped folders or shards of JPEG files, deterministic per seed."""

from __future__ import annotations

import contextlib
import io
import shutil
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from trainmark.data.atomic_dataset import DatasetSpec, Progress, check_range, make_set, write_file
from trainmark.data.image_sets import SPLITS, Split, open_split
from trainmark.data.imagenet import renderer, shapes

VERSION = 1
"""Increased whenever the same seed gives other images."""

CLASSES, TRAIN_PER_CLASS, VAL_PER_CLASS, SEED, LONG_SIDE = 10, 96, 40, 0, 500
MAX_CLASSES = 1000


def make(
    out: Path,
    *,
    classes: int = CLASSES,
    train_per_class: int = TRAIN_PER_CLASS,
    val_per_class: int = VAL_PER_CLASS,
    seed: int = SEED,
    long_side: int = LONG_SIDE,
    shards: int = 0,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out` atomically; returns at once if it exists.

    With `shards`, each split is that many tar files instead of folders. `long_side` is that of every image in pixels.
    """
    check_range("classes", classes, 1, MAX_CLASSES)
    check_range("train-per-class", train_per_class, 1)
    check_range("val-per-class", val_per_class, 1)
    check_range("seed", seed, 0)
    check_range("long-side", long_side, 32, renderer.POOL_SIDE)
    check_range("shards", shards, 0, classes * min(train_per_class, val_per_class))
    counts = {"train": train_per_class, "val": val_per_class}
    sharded = {"generator": "trainmark pictures in shards", "shards": shards} if shards else {}
    spec = DatasetSpec(
        things="synthetic images",
        identity={
            "generator": "trainmark pictures",
            "version": VERSION,
            "classes": classes,
            "train_per_class": train_per_class,
            "val_per_class": val_per_class,
            "seed": seed,
            "long_side": long_side,
            **sharded,
        },
        notes={
            "about": "Pictures drawn by trainmark; no photographs",
            "train": classes * train_per_class,
            "val": classes * val_per_class,
            "made_with": renderer.LIBRARIES,
            "names": {class_folder(index): shapes.form(index)[0] for index in range(classes)},
        },
        patterns=tuple(f"{split}-*.tar" if shards else f"{split}/*/*.JPEG" for split in SPLITS),
        files=len(SPLITS) * shards or classes * (train_per_class + val_per_class),
    )
    images = [(split, c, number) for split in SPLITS for c in range(classes) for number in range(counts[split])]
    finish = partial(_pack_all, shards)
    make_set(out, spec, images, partial(_draw_image, seed, long_side), finish=finish, progress=progress)


def default_name() -> str:
    """Folder name of the default set."""
    counts = f"{CLASSES}x{TRAIN_PER_CLASS}+{VAL_PER_CLASS}"
    return f"pictures-v{VERSION}-{counts}-{LONG_SIDE}px-seed{SEED}"


def class_folder(index: int) -> str:
    """The folder of class `index`, shaped like a WordNet id and far above the numbers WordNet uses."""
    return f"n{90_000_000 + index}"


def _draw_image(seed: int, long_side: int, root: Path, image: tuple[Split, int, int]) -> None:
    split, index, number = image
    # one generator per image: no image depends on another, nor on the process
    rng = np.random.default_rng([seed, SPLITS.index(split), index, number])
    pixels = renderer.draw(index, rng, long_side=long_side)
    folder = class_folder(index)
    write_file(root / split / folder / f"{folder}_{number}.JPEG", renderer.encode(pixels, rng))


def _pack_all(shards: int, root: Path) -> None:
    for split in SPLITS if shards else ():
        pack(root, split, root, shards=shards)
    for split in SPLITS if shards else ():
        shutil.rmtree(root / split)


def pack(root: Path, split: Split, out: Path, *, shards: int) -> None:
    """Packs a split into shuffled shards `split-000000.tar`, ... in `out`."""
    images = open_split(root, split)
    mixed = np.random.default_rng(0).permutation(len(images))
    for number in range(shards):
        with tarfile.open(out / f"{split}-{number:06}.tar", "w", format=tarfile.PAX_FORMAT) as shard:
            for index in mixed[number::shards].tolist():
                key = PurePosixPath(images.path(index)).stem
                label = str(images.labels[index]).encode()
                for name, data in ((f"{key}.jpg", images.read(index)), (f"{key}.cls", label)):
                    header = tarfile.TarInfo(name)
                    header.size = len(data)
                    shard.addfile(header, io.BytesIO(data))


MAPPING = "LOC_synset_mapping.txt"
"""Beside train/ and val/ in some copies, with lines `n01440764 tench, Tinca tinca`."""


def class_titles(folder: Path, classes: Sequence[str]) -> list[str]:
    """Class names in words where the set has them, else folder names."""
    known = {class_folder(index): shapes.form(index)[0] for index in range(len(classes))}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (folder / MAPPING).read_text(encoding="utf-8").splitlines():
            name, _, title = line.partition(" ")
            known[name] = title.strip() or name
    return [known.get(name, name) for name in classes]
