"""Packs folders of classes into tar shards, named as WebDataset does; the same bytes for the same pictures."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from trainmark.datasets.atomic_dataset import WrittenFile
from trainmark.datasets.image_folder import ImageSet, Split, open_split


def pack(root: Path, split: Split, out: Path, *, shards: int) -> Iterator[WrittenFile]:
    """Writes `split-000000.tar` and so on to `out`, each with pictures of many classes."""
    images = open_split(root, split)
    mixed = np.random.default_rng(0).permutation(len(images))
    for number in range(shards):
        path = out / f"{split}-{number:06}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
            for index in mixed[number::shards].tolist():
                _add(shard, images, index)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        yield WrittenFile(path.name, path.stat().st_size, digest.hexdigest())


def _add(shard: tarfile.TarFile, images: ImageSet, index: int) -> None:
    key = PurePosixPath(images.path(index)).stem
    for name, data in ((f"{key}.jpg", images.read(index)), (f"{key}.cls", str(images.labels[index]).encode())):
        header = tarfile.TarInfo(name)
        header.size = len(data)
        shard.addfile(header, io.BytesIO(data))
