"""Indexes images in tar shards, named as in WebDataset.

A sample is an image `key.jpg` and a text `key.cls` with its class number. Headers are read once; the index is cached
until a shard's size or time changes. Images are in the same order as in class folders, so that training is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainmark.data.data_set import MANIFEST
from trainmark.data.image_folder import SUFFIXES, Split
from trainmark.data.synthetic import cache_folder
from trainmark.data.verification import problem
from trainmark.record.archives import ArchiveLimits, Member, tar_members
from trainmark.record.atomic_files import write_atomic
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError

SPLITS: tuple[Split, ...] = ("train", "val")
MAX_CLASSES = 30_000
CACHE = "shards"
"""Folder of the indexes in the cache."""

_NAME = re.compile(r"(?P<series>(?:.*[-_.])?(?P<split>train|val|validation)[-_])(?P<number>[0-9]+)(?:-of-[0-9]+)?\.tar")
_LIMITS = ArchiveLimits(files=20_000_000, total_bytes=4 << 40)
_HEADER_BUFFER = 4 << 10  # images are skipped, so a larger buffer would be wasted
_LONGEST_CLASS = 32
_THREADS = 16  # hides the latency of network file systems


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardSet:
    """The images of one split, ordered by class and name."""

    root: Path
    shards: tuple[str, ...]
    classes: tuple[str, ...]
    """Class names of the training split in label order."""
    labels: npt.NDArray[np.int64]
    names: bytes
    """Concatenated names, as in ImageSet."""
    name_ends: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    """Per image: shard number, offset, size."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """The image's path, as if its shard were a folder."""
        start = int(self.name_ends[index - 1]) if index else 0
        name = os.fsdecode(self.names[start : int(self.name_ends[index])])
        return f"{self.root}/{self.shards[self.places[index, 0]]}/{name}"

    def read(self, index: int) -> bytes:
        number, offset, size = self.places[index].tolist()
        file = os.open(f"{self.root}/{self.shards[number]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(file, size, offset)
        finally:
            os.close(file)
        if len(data) < size:
            raise OSError("its shard was truncated")
        return data


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardImage:
    """One image of a shard, with its offset and size."""

    label: int
    name: bytes
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class ShardContents:
    """Images and problems of one shard."""

    images: tuple[ShardImage, ...]
    problems: tuple[CheckResult, ...]


def has_shards(root: Path) -> bool:
    """Whether a folder holds shards rather than class folders."""
    return root.is_dir() and not (root / "train").is_dir() and any(map(_NAME.fullmatch, _list_names(root)))


def shard_names(root: Path, split: Split) -> tuple[str, ...]:
    """The shards of a split by number; NotReadyError for two series, or one with a gap."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for name in sorted(_list_names(root)):
        match = _NAME.fullmatch(name)
        if match and match["split"].startswith(split):  # validation is val, too
            other = found[match["series"]].setdefault(int(match["number"]), name)
            if other != name:
                raise NotReadyError(f"{root} holds {other} and {name}, which have the same number; keep one of them")
    if not found:
        raise NotReadyError(f"{root} holds no shards of {split}; expected files like {split}-000000.tar")
    if len(found) > 1:
        first, second = sorted(found)[:2]
        raise NotReadyError(f"{root} holds two series of shards, {first}* and {second}*; keep one of them")
    [numbered] = found.values()
    for number in range(min(numbered), max(numbered)):
        if number not in numbered:
            before = max(each for each in numbered if each < number)
            raise NotReadyError(f"{root} has no shard {number} after {numbered[before]}; fetch the missing ones")
    return tuple(numbered[number] for number in sorted(numbered))


def open_split(root: Path, split: Split) -> ShardSet:
    """The images of one split, from the cached index or the headers of all shards."""
    classes = _class_names(root)
    found = _load_index(root, split)
    first = int(np.searchsorted(found.labels, len(classes)))  # labels are in order
    if first < len(found):
        raise NotReadyError(f"{found.path(first)}: {_outside(int(found.labels[first]), len(classes))}")
    return replace(found, classes=classes)


def class_names(root: Path) -> tuple[str, ...]:
    """The training set's classes in label order; NotReadyError if either split is faulty."""
    train, _ = (open_split(root, split) for split in SPLITS)
    return train.classes


def _class_names(root: Path) -> tuple[str, ...]:
    """By the manifest, or numbered up to the largest label of the training split."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return tuple(json.loads((root / MANIFEST).read_text("utf-8"))["names"])
    return default_class_names(int(_load_index(root, "train").labels[-1]) + 1)


def default_class_names(count: int) -> tuple[str, ...]:
    """Class names where only numbers are known."""
    return tuple(f"class {number}" for number in range(count))


# Contents of a shard


def scan_shard(path: Path) -> ShardContents:
    """Reads a shard's headers and the class of every image."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    problems: list[CheckResult] = []
    try:
        with path.open("rb", buffering=_HEADER_BUFFER) as file:
            for member in tar_members(file, "the shard", _LIMITS):
                folder, slash, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                key, kind = f"{folder}{slash}{stem}", kind.lower()
                if f".{kind}" in SUFFIXES:
                    if key in images:
                        problems.append(problem(f"{path.name}/{key}", "there are two images of this name"))
                    images[key] = (member.name, member.offset, member.size)
                elif kind == "cls":
                    try:
                        labels[key] = _class_number(member)
                    except ValueError as error:
                        labels[key] = -1
                        problems.append(problem(f"{path.name}/{member.name}", str(error)))
    except OSError as error:
        problems.append(problem(path.name, f"cannot be read: {error.strerror}"))
    except NotReadyError as error:
        return ShardContents(images=(), problems=(*problems, problem(path.name, str(error))))
    for key in images.keys() - labels.keys():
        problems.append(problem(f"{path.name}/{images[key][0]}", f"has no class; expected {key}.cls in the shard"))
    for key in labels.keys() - images.keys():
        problems.append(problem(f"{path.name}/{key}.cls", "has no image in the shard"))
    if not images and not problems:
        problems.append(problem(path.name, "holds no images; expected files like name.jpg and name.cls"))
    kept = [
        ShardImage(label=labels[key], name=os.fsencode(name), offset=offset, size=size)
        for key, (name, offset, size) in images.items()
        if labels.get(key, -1) >= 0
    ]
    return ShardContents(images=tuple(kept), problems=tuple(sorted(problems, key=lambda found: found.subject)))


def scan_shards(root: Path, names: Sequence[str]) -> list[ShardContents]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(scan_shard, [root / name for name in names]))


def find_duplicates(names: Sequence[str], contents: Iterable[ShardContents]) -> Iterable[CheckResult]:
    """Images of the same name in two shards."""
    seen: dict[bytes, str] = {}
    for shard, held in zip(names, contents, strict=True):
        for image in held.images:
            if image.name in seen:
                subject = f"{shard}/{os.fsdecode(image.name)}"
                yield problem(subject, f"an image of this name is also in {seen[image.name]}")
            seen[image.name] = shard


def find_unknown_classes(
    names: Sequence[str], contents: Iterable[ShardContents], classes: int
) -> Iterable[CheckResult]:
    """Images whose class the set does not have."""
    for shard, held in zip(names, contents, strict=True):
        for image in held.images:
            if image.label >= classes:
                yield problem(f"{shard}/{os.fsdecode(image.name)}", _outside(image.label, classes))


def _outside(label: int, classes: int) -> str:
    return f"is of class {label}; expected 0 to {classes - 1}"


def _class_number(member: Member) -> int:
    text = member.read(_LONGEST_CLASS).decode("ascii", "replace").strip()
    if member.size > _LONGEST_CLASS or not text.isdigit() or int(text) >= MAX_CLASSES:
        raise ValueError(f"holds {text!r}, which is not a class number; expected 0, 1, 2 ...")
    return int(text)


def _list_names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed ({error.strerror})") from error


# The index


_ARRAYS = ("labels", "name_ends", "places")


def _load_index(root: Path, split: Split) -> ShardSet:
    """One split, without class names."""
    names = shard_names(root, split)
    stamp = json.dumps([_stamp(root / name) for name in names])
    place = hashlib.sha256(os.fsencode(root.absolute() / split)).hexdigest()[:32]
    file = cache_folder() / CACHE / f"{place}.npz"
    # an unreadable index is rebuilt
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), file.open("rb") as stream:
        kept = np.load(stream)
        if bytes(kept["stamp"]).decode() == stamp:
            arrays = {name: kept[name] for name in _ARRAYS}
            return ShardSet(root=root, shards=names, classes=(), names=bytes(kept["names"]), **arrays)
    found = _build_index(root, names)
    arrays = {name: getattr(found, name) for name in _ARRAYS}
    for name, text in (("stamp", stamp.encode()), ("names", found.names)):
        arrays[name] = np.frombuffer(text, np.uint8)
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    with contextlib.suppress(OSError):  # without a cache, headers are read again
        write_atomic(file, packed.getvalue())
    return found


def _stamp(shard: Path) -> tuple[str, int, int]:
    try:
        now = shard.stat()
    except OSError as error:
        raise NotReadyError(f"shard {shard} cannot be read: {error.strerror}") from error
    return shard.name, now.st_size, now.st_mtime_ns


def _build_index(root: Path, names: tuple[str, ...]) -> ShardSet:
    contents = scan_shards(root, names)
    for found in (*(each for held in contents for each in held.problems), *find_duplicates(names, contents)):
        raise NotReadyError(f"{root}/{found}")
    rows = sorted(
        (image.label, image.name, number, image.offset, image.size)
        for number, held in enumerate(contents)
        for image in held.images
    )
    return ShardSet(
        root=root,
        shards=names,
        classes=(),
        labels=np.array([row[0] for row in rows], np.int64),
        names=b"".join(row[1] for row in rows),
        name_ends=np.cumsum([len(row[1]) for row in rows], dtype=np.int64),
        places=np.array([row[2:] for row in rows], np.int64),
    )
