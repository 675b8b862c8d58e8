"""Lists images in class folders, as in ImageNet."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainmark.record.errors import NotReadyError

Split = Literal["train", "val"]

SUFFIXES = (".jpeg", ".jpg")
_LAYOUT = "expected train/<class>/*.JPEG and val/<class>/*.JPEG or train-000000.tar and val-000000.tar"
_LISTING_THREADS = 16  # listing a folder waits on the file system, on a network one for long


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """The images of one split, in an order that does not depend on the file system."""

    root: Path
    split: Split
    classes: tuple[str, ...]
    """Class names of the training split in label order."""
    labels: npt.NDArray[np.int64]
    names: bytes
    """Concatenated file names: a million Python strings would cost 100 MB per decoding process."""
    name_ends: npt.NDArray[np.int64]
    """End offset of each name in `names`."""

    def __len__(self) -> int:
        return len(self.labels)

    def relative_path(self, index: int) -> str:
        """The image's path relative to the root."""
        start = int(self.name_ends[index - 1]) if index else 0
        name = os.fsdecode(self.names[start : int(self.name_ends[index])])
        return f"{self.split}/{self.classes[self.labels[index]]}/{name}"

    def path(self, index: int) -> str:
        """Where the image is."""
        return f"{self.root}/{self.relative_path(index)}"

    def read(self, index: int) -> bytes:
        return read_bytes(self.path(index))


def read_bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path per image costs as much as reading it
        return file.readall()


def open_split(root: Path, split: Split) -> ImageSet:
    """Lists one split; NotReadyError if a folder is missing, empty or does not fit the other split."""
    classes = class_names(root, split)
    folders = classes if split == "train" else _class_folders(root, split)
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        listings = list(pool.map(_image_names, [root / split / folder for folder in folders]))
    for folder, listing in zip(folders, listings, strict=True):
        if not listing:
            raise NotReadyError(f"class folder {root / split / folder} holds no images; expected files *.JPEG")
    label_of = {name: label for label, name in enumerate(classes)}
    lengths = [len(name) for listing in listings for name in listing]
    return ImageSet(
        root=root,
        split=split,
        classes=classes,
        labels=np.repeat(
            np.array([label_of[folder] for folder in folders], dtype=np.int64),
            [len(listing) for listing in listings],
        ),
        names=b"".join(name for listing in listings for name in listing),
        name_ends=np.cumsum(lengths, dtype=np.int64),
    )


def class_names(root: Path, split: Split = "val") -> tuple[str, ...]:
    """The training set's classes in label order; NotReadyError if the other split has classes of its own."""
    classes = _class_folders(root, "train")
    strangers = sorted(set(_class_folders(root, split)) - set(classes))
    if strangers:
        raise NotReadyError(
            f"{root / split} has {len(strangers)} class folders that train does not have, the first is "
            f"{strangers[0]!r}; expected a subset of train's {len(classes)}"
        )
    return classes


def _class_folders(root: Path, split: Split) -> tuple[str, ...]:
    folder = root / split
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed ({error.strerror}); {_LAYOUT} under {root}") from error
    if not names:
        raise NotReadyError(f"{folder} holds no class folders; {_LAYOUT} under {root}")
    return tuple(names)


def _image_names(folder: Path) -> list[bytes]:
    # no stat per file, which would cost minutes on a network file system
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed ({error.strerror})") from error
    return sorted(os.fsencode(name) for name in names if name.lower().endswith(SUFFIXES) and name[0] != ".")
