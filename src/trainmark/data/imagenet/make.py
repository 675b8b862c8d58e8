"""Writes the synthetic image set as ImageNet-shaped folders or shards of JPEG files, deterministic per seed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import PIL
import simplejpeg

from trainmark.data.atomic_dataset import (
    DatasetSpec,
    Progress,
    WrittenFile,
    choose_processes,
    stage,
    write_chunks,
    write_file,
)
from trainmark.data.image_sets import ImageSet, Split, open_split
from trainmark.data.imagenet import renderer, shapes
from trainmark.record.errors import UsageError

VERSION = 1
"""Increased whenever the same seed gives other images."""

CLASSES, TRAIN_PER_CLASS, VAL_PER_CLASS, SEED, LONG_SIDE = 10, 96, 40, 0, 500
MAX_CLASSES = 1000
SPLITS: tuple[Split, ...] = ("train", "val")

_CHUNK = 10
_WORTH_PROCESSES = 128
"""Number of images from which starting processes pays off."""


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """Parameters that determine every byte of a set."""

    classes: int
    train_per_class: int
    val_per_class: int
    seed: int
    long_side: int
    """Pixels along the longer side of every image."""

    def per_class(self, split: str) -> int:
        return self.train_per_class if split == "train" else self.val_per_class

    @property
    def total(self) -> int:
        return self.classes * (self.train_per_class + self.val_per_class)

    @property
    def name(self) -> str:
        counts = f"{self.classes}x{self.train_per_class}+{self.val_per_class}"
        return f"pictures-v{VERSION}-{counts}-{self.long_side}px-seed{self.seed}"


@dataclass(frozen=True)
class _Chunk:
    """Images of one class that one process draws."""

    split: str
    index: int
    start: int
    stop: int


def make(
    out: Path,
    *,
    classes: int = CLASSES,
    train_per_class: int = TRAIN_PER_CLASS,
    val_per_class: int = VAL_PER_CLASS,
    seed: int = SEED,
    long_side: int = LONG_SIDE,
    shards: int = 0,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out` atomically; returns at once if it exists.

    With `shards`, each split is that many tar files instead of folders.
    Several processes may make the same set at once. `processes` (default: one per core) does not change the result.
    """
    contents = _make_contents(classes, train_per_class, val_per_class, seed, long_side)
    processes = choose_processes(processes, contents.total, _WORTH_PROCESSES)
    fewest = contents.classes * min(train_per_class, val_per_class)
    if not 0 <= shards <= fewest:
        raise UsageError(
            f"{shards} shards of each split were requested; give 1 to {fewest}, no more than it has images"
        )
    write = partial(_write_images, contents=contents, processes=processes, progress=progress)
    if shards:
        stage(out, _shard_spec(contents, shards), partial(_write_shards, write=write, shards=shards))
    else:
        stage(out, _spec(contents), write)


def default_name() -> str:
    """Folder name of the default set."""
    return _make_contents(CLASSES, TRAIN_PER_CLASS, VAL_PER_CLASS, SEED, LONG_SIDE).name


def class_folder(index: int) -> str:
    """The folder of class `index`, shaped like a WordNet id and far above the numbers WordNet uses."""
    return f"n{90_000_000 + index}"


def _make_contents(classes: int, train_per_class: int, val_per_class: int, seed: int, long_side: int) -> _Contents:
    if not 1 <= classes <= MAX_CLASSES:
        raise UsageError(f"a synthetic set of {classes} classes was requested; give 1 to {MAX_CLASSES}")
    if min(train_per_class, val_per_class) < 1:
        raise UsageError("a synthetic set needs at least one image of each class to train on and one to evaluate on")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    if not 32 <= long_side <= renderer.POOL_SIDE:
        raise UsageError(f"images of {long_side} px were requested; give 32 to {renderer.POOL_SIDE}")
    return _Contents(
        classes=classes, train_per_class=train_per_class, val_per_class=val_per_class, seed=seed, long_side=long_side
    )


def _spec(contents: _Contents) -> DatasetSpec:
    return DatasetSpec(
        things="synthetic images",
        identity={"generator": "trainmark pictures", "version": VERSION, **asdict(contents)},
        notes={
            "about": "Pictures drawn by trainmark; no photographs",
            "train": contents.classes * contents.train_per_class,
            "val": contents.classes * contents.val_per_class,
            "made_with": {"numpy": np.__version__, "pillow": PIL.__version__, "simplejpeg": simplejpeg.__version__},
            "names": {class_folder(index): shapes.form(index)[0] for index in range(contents.classes)},
        },
        patterns=tuple(f"{split}/*/*.JPEG" for split in SPLITS),
        files=contents.total,
    )


def _shard_spec(contents: _Contents, shards: int) -> DatasetSpec:
    folders = _spec(contents)
    return replace(
        folders,
        identity={**folders.identity, "generator": "trainmark pictures in shards", "shards": shards},
        patterns=tuple(f"{split}-*.tar" for split in SPLITS),
        files=len(SPLITS) * shards,
    )


def _write_shards(root: Path, write: Callable[[Path], list[WrittenFile]], shards: int) -> list[WrittenFile]:
    drawn = root / "folders"
    write(drawn)
    written = [shard for split in SPLITS for shard in pack(drawn, split, root, shards=shards)]
    shutil.rmtree(drawn)
    return written


# Drawing


def _write_images(root: Path, contents: _Contents, processes: int, progress: Progress | None) -> list[WrittenFile]:
    for split in SPLITS:
        for index in range(contents.classes):
            (root / split / class_folder(index)).mkdir(parents=True)
    draw = partial(_draw_chunk, root, contents)
    chunks = list(_chunks(contents))
    return write_chunks(draw, chunks, total=contents.total, processes=processes, progress=progress)


def _chunks(contents: _Contents) -> Iterator[_Chunk]:
    for split in SPLITS:
        count = contents.per_class(split)
        for index in range(contents.classes):
            for start in range(0, count, _CHUNK):
                yield _Chunk(split, index, start, min(count, start + _CHUNK))


def _draw_chunk(root: Path, contents: _Contents, chunk: _Chunk) -> list[WrittenFile]:
    written = []
    for number in range(chunk.start, chunk.stop):
        # one generator per image: no image depends on another, nor on the process
        rng = np.random.default_rng([contents.seed, SPLITS.index(chunk.split), chunk.index, number])
        pixels = renderer.draw(chunk.index, rng, long_side=contents.long_side)
        quality = int(rng.integers(86, 95))
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="420")
        folder = class_folder(chunk.index)
        written.append(write_file(root, f"{chunk.split}/{folder}/{folder}_{number}.JPEG", data))
    return written


def pack(root: Path, split: Split, out: Path, *, shards: int) -> Iterator[WrittenFile]:
    """Packs a split into shuffled shards `split-000000.tar`, ... in `out`."""
    images = open_split(root, split)
    mixed = np.random.default_rng(0).permutation(len(images))
    for number in range(shards):
        path = out / f"{split}-{number:06}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
            for index in mixed[number::shards].tolist():
                _add_image(shard, images, index)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        yield WrittenFile(path.name, path.stat().st_size, digest.hexdigest())


def _add_image(shard: tarfile.TarFile, images: ImageSet, index: int) -> None:
    key = PurePosixPath(images.path(index)).stem
    for name, data in ((f"{key}.jpg", images.read(index)), (f"{key}.cls", str(images.labels[index]).encode())):
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
