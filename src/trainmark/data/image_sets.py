"""Opens a classification set: images in class folders, as in ImageNet, or in tar shards, named as in WebDataset.

In a shard, a sample is an image `key.jpg` and a text `key.cls` with its class number. Headers are read once; the index
is cached until a shard's size or time changes. An image has the same index in either format, so training is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainmark.data import MANIFEST, read_counts
from trainmark.data.synthetic import cache_folder
from trainmark.record.archives import ArchiveLimits, Member, tar_members
from trainmark.record.atomic_files import write_atomic
from trainmark.record.errors import NotReadyError

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")
SUFFIXES = (".jpeg", ".jpg")
_LAYOUT = "expected train/<class>/*.JPEG and val/<class>/*.JPEG or train-000000.tar and val-000000.tar"
_THREADS = 16  # listing folders and reading headers wait on the file system, on a network one for long


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """The images of one split, ordered by class and name."""

    root: Path
    classes: tuple[str, ...]
    """Class names of the training split in label order."""
    labels: npt.NDArray[np.int64]
    holders: tuple[str, ...]
    """Class folders or shards, relative to the root."""
    holder: npt.NDArray[np.int64]
    """Which of them holds each image."""
    names: npt.NDArray[np.bytes_]
    """File names; a million Python strings would cost 100 MB per decoding process."""
    places: npt.NDArray[np.int64] | None = None
    """Of images in shards: offset and size."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Where an image is, as if a shard were a folder."""
        return f"{self.root}/{self.holders[self.holder[index]]}/{os.fsdecode(self.names[index])}"

    def read(self, index: int) -> bytes:
        """The bytes of an image; OSError if they cannot be read."""
        if self.places is None:
            return read_bytes(self.path(index))
        offset, size = self.places[index].tolist()
        data = read_bytes(f"{self.root}/{self.holders[self.holder[index]]}", offset, size)
        if len(data) < size:
            raise OSError("its shard was truncated")
        return data


def read_bytes(path: str, offset: int = 0, size: int | None = None) -> bytes:
    """A part of a file; by system calls, because file objects cost as much as reading an image."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, os.fstat(file).st_size if size is None else size, offset)
    finally:
        os.close(file)


def open_split(root: Path, split: Split) -> ImageSet:
    """The images of one split; NotReadyError if it is faulty or does not fit the training split."""
    return _open_shards(root, split) if has_shards(root) else _open_folders(root, split)


def class_names(root: Path) -> tuple[str, ...]:
    """The training set's classes in label order; NotReadyError if the other split has classes of its own."""
    if has_shards(root):
        train, _ = (_open_shards(root, split) for split in SPLITS)
        return train.classes
    return _class_names(root, "val")


# The size of a set


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Size of a set."""

    classes: int
    train: int
    val: int

    def __str__(self) -> str:
        return f"{self.classes} classes, {self.train} train and {self.val} val files"


IMAGENET_1K = Counts(classes=1000, train=1_281_167, val=50_000)


def expected_counts(root: Path, classes: Sequence[str]) -> Counts | None:
    """Counts of the complete set, by its manifest or those of ImageNet-1k; None if unknown."""
    if made := read_counts(root, "classes", "train", "val"):
        return Counts(**made)
    # a subset of ImageNet has a few hundred classes; slightly below 1000 means that some are missing
    like_imagenet = all(re.fullmatch(r"n[0-9]{8}|class [0-9]+", name) for name in classes)
    return IMAGENET_1K if like_imagenet and 900 < len(classes) <= 1000 else None


# Class folders


def _open_folders(root: Path, split: Split) -> ImageSet:
    classes = _class_names(root, split)
    folders = classes if split == "train" else list_classes(root, split)
    with ThreadPoolExecutor(_THREADS) as pool:
        listings = list(pool.map(_list_images, [root / split / folder for folder in folders]))
    for folder, listing in zip(folders, listings, strict=True):
        if not listing:
            raise NotReadyError(f"class folder {root / split / folder} holds no images; expected files *.JPEG")
    label_of = {name: label for label, name in enumerate(classes)}
    labels = np.array([label_of[folder] for folder in folders], np.int64)
    counts = [len(listing) for listing in listings]
    return ImageSet(
        root=root,
        classes=classes,
        labels=np.repeat(labels, counts),
        holders=tuple(f"{split}/{folder}" for folder in folders),
        holder=np.repeat(np.arange(len(folders)), counts),
        names=np.array([name for listing in listings for name in listing]),
    )


def _class_names(root: Path, split: Split) -> tuple[str, ...]:
    classes = list_classes(root, "train")
    strangers = sorted(set(list_classes(root, split)) - set(classes))
    if strangers:
        raise NotReadyError(
            f"{root / split} has {len(strangers)} class folders that train does not have, the first is "
            f"{strangers[0]!r}; expected a subset of train's {len(classes)}"
        )
    return classes


def list_classes(root: Path, split: Split) -> tuple[str, ...]:
    """The class folders of a split, sorted."""
    folder = root / split
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed ({error.strerror}); {_LAYOUT} under {root}") from error
    if not names:
        raise NotReadyError(f"{folder} holds no class folders; {_LAYOUT} under {root}")
    return tuple(names)


def _list_images(folder: Path) -> list[bytes]:
    # no stat per file, which would cost minutes on a network file system
    names = _list_names(folder)
    return sorted(os.fsencode(name) for name in names if name.lower().endswith(SUFFIXES) and name[0] != ".")


def _list_names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed ({error.strerror})") from error


# Shards

MAX_CLASSES = 30_000
CACHE = "shards"
"""Folder of the indexes in the cache."""

_SHARD = re.compile(
    r"(?P<series>(?:.*[-_.])?(?P<split>train|val|validation)[-_])(?P<number>[0-9]+)(?:-of-[0-9]+)?\.tar"
)
_LIMITS = ArchiveLimits(files=20_000_000, total_bytes=4 << 40)
_HEADER_BUFFER = 4 << 10  # images are skipped, so a larger buffer would be wasted
_LONGEST_CLASS = 32

Fault = tuple[str, str]
"""A file relative to the root, and what is wrong with it."""


class ShardImage(NamedTuple):
    label: int
    name: bytes
    offset: int
    size: int


class ShardContents(NamedTuple):
    images: list[ShardImage]
    faults: list[Fault]


def has_shards(root: Path) -> bool:
    """Whether a folder holds shards rather than class folders."""
    return root.is_dir() and not (root / "train").is_dir() and any(map(_SHARD.fullmatch, _list_names(root)))


def shard_names(root: Path, split: Split) -> tuple[str, ...]:
    """The shards of a split by number; NotReadyError for two series, or one with a gap."""
    matches = [match for match in map(_SHARD.fullmatch, sorted(_list_names(root))) if match]
    # validation is val, too
    found = sorted(
        (match["series"], int(match["number"]), match[0]) for match in matches if match["split"].startswith(split)
    )
    if not found:
        raise NotReadyError(f"{root} holds no shards of {split}; expected files like {split}-000000.tar")
    for (series, number, name), (next_series, next_number, next_name) in pairwise(found):
        if series != next_series:
            raise NotReadyError(f"{root} holds two series of shards, {series}* and {next_series}*; keep one of them")
        if number == next_number:
            raise NotReadyError(f"{root} holds {name} and {next_name}, which have the same number; keep one of them")
        if number + 1 != next_number:
            raise NotReadyError(f"{root} has no shard {number + 1} after {name}; fetch the missing ones")
    return tuple(name for _, _, name in found)


def _open_shards(root: Path, split: Split) -> ImageSet:
    """One split, from the cached index or the headers of all shards."""
    found = _load_index(root, split)
    classes = found.classes or default_class_names(int(_load_index(root, "train").labels[-1]) + 1)
    first = int(np.searchsorted(found.labels, len(classes)))  # labels are in order
    if first < len(found):
        raise NotReadyError(f"{found.path(first)}: {describe_class(int(found.labels[first]), len(classes))}")
    return replace(found, classes=classes)


def default_class_names(count: int) -> tuple[str, ...]:
    """Class names where only numbers are known."""
    return tuple(f"class {number}" for number in range(count))


def describe_class(label: int, classes: int) -> str:
    return f"is of class {label}; expected 0 to {classes - 1}"


def scan_shard(path: Path) -> ShardContents:
    """Reads a shard's headers and the class of every image."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, int] = {}
    faults: list[Fault] = []
    try:
        with path.open("rb", buffering=_HEADER_BUFFER) as file:
            for member in tar_members(file, "the shard", _LIMITS):
                folder, slash, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                key, kind = f"{folder}{slash}{stem}", kind.lower()
                if f".{kind}" in SUFFIXES:
                    if key in images:
                        faults.append((f"{path.name}/{key}", "there are two images of this name"))
                    images[key] = (member.name, member.offset, member.size)
                elif kind == "cls":
                    labels[key], fault = _read_class(member)
                    faults += [(f"{path.name}/{member.name}", fault)] if fault else []
    except OSError as error:
        faults.append((path.name, f"cannot be read: {error.strerror}"))
    except NotReadyError as error:
        return ShardContents([], [*faults, (path.name, str(error))])
    for key in images.keys() - labels.keys():
        faults.append((f"{path.name}/{images[key][0]}", f"has no class; expected {key}.cls in the shard"))
    for key in labels.keys() - images.keys():
        faults.append((f"{path.name}/{key}.cls", "has no image in the shard"))
    if not images and not faults:
        faults.append((path.name, "holds no images; expected files like name.jpg and name.cls"))
    kept = [
        ShardImage(labels[key], os.fsencode(name), offset, size)
        for key, (name, offset, size) in images.items()
        if labels.get(key, -1) >= 0
    ]
    return ShardContents(kept, sorted(faults))


def _read_class(member: Member) -> tuple[int, str]:
    """A class number, or -1 and what is wrong."""
    text = member.read(_LONGEST_CLASS).decode("ascii", "replace").strip()
    if member.size > _LONGEST_CLASS or not text.isdigit() or int(text) >= MAX_CLASSES:
        return -1, f"holds {text!r}, which is not a class number; expected 0, 1, 2 ..."
    return int(text), ""


def find_duplicates(names: Iterable[str], contents: Iterable[ShardContents]) -> Iterator[Fault]:
    """Images of the same name in two shards."""
    seen: dict[bytes, str] = {}
    for shard, held in zip(names, contents, strict=True):
        for image in held.images:
            if image.name in seen:
                yield f"{shard}/{os.fsdecode(image.name)}", f"an image of this name is also in {seen[image.name]}"
            seen[image.name] = shard


_ARRAYS = ("labels", "holder", "names", "places")
_INDEX_VERSION = 2


def _load_index(root: Path, split: Split) -> ImageSet:
    """One split, with class names if its manifest has them."""
    shards = shard_names(root, split)
    stamp = json.dumps([_INDEX_VERSION, *(_stamp(root / name) for name in shards)]).encode()
    place = hashlib.sha256(os.fsencode(root.absolute() / split)).hexdigest()[:32]
    file = cache_folder() / CACHE / f"{place}.npz"
    classes: tuple[str, ...] = ()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        classes = tuple(json.loads((root / MANIFEST).read_text("utf-8"))["names"])
    # an unreadable index is rebuilt
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), file.open("rb") as stream:
        kept = np.load(stream)
        if bytes(kept["stamp"]) == stamp:
            arrays = {name: kept[name] for name in _ARRAYS}
            return ImageSet(root=root, classes=classes, holders=shards, **arrays)
    found = replace(_build_index(root, shards), classes=classes)
    arrays = {name: getattr(found, name) for name in _ARRAYS}
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, stamp=np.frombuffer(stamp, np.uint8), **arrays)
    with contextlib.suppress(OSError):  # without a cache, headers are read again
        write_atomic(file, packed.getvalue())
    return found


def _stamp(shard: Path) -> tuple[str, int, int]:
    try:
        now = shard.stat()
    except OSError as error:
        raise NotReadyError(f"shard {shard} cannot be read: {error.strerror}") from error
    return shard.name, now.st_size, now.st_mtime_ns


def _build_index(root: Path, shards: tuple[str, ...]) -> ImageSet:
    with ThreadPoolExecutor(_THREADS) as pool:
        contents = list(pool.map(scan_shard, [root / name for name in shards]))
    for subject, text in (*(fault for held in contents for fault in held.faults), *find_duplicates(shards, contents)):
        raise NotReadyError(f"{root}/{subject}: {text}")
    rows = sorted((image, number) for number, held in enumerate(contents) for image in held.images)
    return ImageSet(
        root=root,
        classes=(),
        labels=np.array([image.label for image, _ in rows], np.int64),
        holders=shards,
        holder=np.array([number for _, number in rows], np.int64),
        names=np.array([image.name for image, _ in rows]),
        places=np.array([(image.offset, image.size) for image, _ in rows], np.int64),
    )
