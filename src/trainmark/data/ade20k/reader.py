"""Segmentation sets of known layouts: where files are, what the values in their masks mean, and reading them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from trainmark.data import read_counts
from trainmark.data.jpeg import MAX_PIXELS, BadImage
from trainmark.record.errors import NotReadyError

Labels = npt.NDArray[np.uint8]
Split = Literal["train", "val"]
SPLITS: tuple[Split, Split] = ("train", "val")
Pairs = dict[str, str]
"""Image to mask; both relative to the root with forward slashes, sorted by name."""

IGNORED, UNKNOWN = 255, 254
"""Labels beside the classes, which count from 0: an ignored pixel, and a value that no such mask may hold."""

OBJECT_INFO = "objectInfo150.txt"


@dataclass(frozen=True, kw_only=True)
class SceneCounts:
    """Size of a set in scenes; equality compares these alone."""

    train: int
    val: int
    ignored: float | None = field(default=None, compare=False)
    """Share of ignored pixels; None where masks were not read."""

    def __str__(self) -> str:
        counts = f"{self.train:,} train and {self.val:,} val scenes"
        return counts if self.ignored is None else f"{counts}, {100 * self.ignored:.1f} % of their pixels ignored"


@dataclass(frozen=True, kw_only=True)
class SceneLayout:
    title: str
    folders: tuple[str, ...]
    """Relative to the root; all must exist."""
    within: tuple[str, ...]
    """Where an unpacked archive keeps them, relative to the folder that a user gives."""
    labels: Mapping[int, int]
    """Mask value to class; other values are UNKNOWN."""
    list_pairs: Callable[[Path, Split], Pairs]
    names: Callable[[Path], tuple[str, ...]]
    published: SceneCounts

    def lookup(self, classes: int) -> bytes:
        """The label of each of the 256 mask values in a set of this many classes."""
        found = bytearray([UNKNOWN]) * 256
        for number, label in self.labels.items():
            found[number] = label if label == IGNORED or label < classes else UNKNOWN
        return bytes(found)


def find_layout(folder: Path) -> tuple[SceneLayout, Path]:
    """The layout of a folder, and its root; NotReadyError if it has none of them."""
    for layout in LAYOUTS:
        for below in (".", *layout.within):
            root = folder / below
            if all((root / name).is_dir() for name in layout.folders):
                return layout, root
    known = "; ".join(f"{layout.title} has {', '.join(layout.folders)}" for layout in LAYOUTS)
    raise NotReadyError(
        f"{folder} is not a known segmentation set: {known}; the full ADE20K, of 3,000 classes, is another release"
    )


def list_files(folder: Path, suffix: str) -> list[str]:
    """Sorted names of a folder's files with this suffix; NotReadyError if it cannot be listed."""
    try:
        return sorted(name.name for name in folder.iterdir() if name.name.endswith(suffix) and name.name[0] != ".")
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed: {error.strerror}") from error


# ADE20K's 150 classes

_ADE_SPLITS = {"train": "training", "val": "validation"}


def _list_ade_pairs(root: Path, split: Split) -> Pairs:
    part = _ADE_SPLITS[split]
    names = list_files(root / "images" / part, ".jpg")
    return {f"images/{part}/{name}": f"annotations/{part}/{name.removesuffix('.jpg')}.png" for name in names}


def _read_ade_names(root: Path) -> tuple[str, ...]:
    """Names from the last column of the table beside the images; numbers if there is no table."""
    try:
        lines = (root / OBJECT_INFO).read_text("utf-8", errors="replace").splitlines()[1:]
    except FileNotFoundError:
        return tuple(f"class {number}" for number in range(1, 151))
    except OSError as error:
        raise NotReadyError(f"{root / OBJECT_INFO} cannot be read: {error.strerror}") from error
    names = tuple(line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip())
    if not 2 <= len(names) <= 150:
        raise NotReadyError(f"{root / OBJECT_INFO} names {len(names)} classes; ADE20K's names 150")
    return names


# Pascal VOC 2012

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def _list_voc_pairs(root: Path, split: Split) -> Pairs:
    listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    try:
        names = listed.read_text("utf-8").split()
    except OSError as error:
        raise NotReadyError(f"{listed} cannot be read: {error.strerror}") from error
    return {f"JPEGImages/{name}.jpg": f"SegmentationClass/{name}.png" for name in sorted(names)}


# Cityscapes

CITYSCAPES_IDS = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
"""Values of the raw masks that are evaluated; they become classes 0 to 18 in this order."""


def _list_cityscapes_pairs(root: Path, split: Split) -> Pairs:
    found: Pairs = {}
    for city in sorted(path.name for path in (root / "leftImg8bit" / split).iterdir() if path.is_dir()):
        for name in list_files(root / "leftImg8bit" / split / city, "_leftImg8bit.png"):
            mask = name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
            found[f"leftImg8bit/{split}/{city}/{name}"] = f"gtFine/{split}/{city}/{mask}"
    return found


LAYOUTS = (
    SceneLayout(
        title="ADE20K",
        folders=("images/training", "images/validation", "annotations/training", "annotations/validation"),
        within=("ADEChallengeData2016",),
        labels={0: IGNORED, **{number: number - 1 for number in range(1, 151)}},
        list_pairs=_list_ade_pairs,
        names=_read_ade_names,
        published=SceneCounts(train=20_210, val=2_000),
    ),
    SceneLayout(
        title="VOC2012",
        folders=("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"),
        within=("VOC2012", "VOCdevkit/VOC2012"),
        labels={IGNORED: IGNORED, **{number: number for number in range(len(VOC_CLASSES))}},
        list_pairs=_list_voc_pairs,
        names=lambda _: VOC_CLASSES,
        published=SceneCounts(train=1_464, val=1_449),
    ),
    SceneLayout(
        title="Cityscapes",
        folders=("leftImg8bit/train", "leftImg8bit/val", "gtFine/train", "gtFine/val"),
        within=(),
        labels={
            **dict.fromkeys((*range(34), IGNORED), IGNORED),
            **{number: label for label, number in enumerate(CITYSCAPES_IDS)},
        },
        list_pairs=_list_cityscapes_pairs,
        names=lambda _: tuple(CITYSCAPES_IDS.values()),
        published=SceneCounts(train=2_975, val=500),
    ),
)


# Reading


@dataclass(frozen=True, kw_only=True, eq=False)
class SceneSet:
    """One split: images, their masks, and the meaning of mask values."""

    root: Path
    layout: SceneLayout
    names: tuple[str, ...]
    """Class names."""
    images: tuple[str, ...]
    masks: tuple[str, ...]
    """In the order of the images; relative to the root, as those."""
    lookup: Labels
    """Mask value to class, IGNORED or UNKNOWN."""

    def __len__(self) -> int:
        return len(self.images)

    def path(self, index: int) -> str:
        return f"{self.root}/{self.images[index]}"

    def mask_path(self, index: int) -> str:
        return f"{self.root}/{self.masks[index]}"

    def labels(self, data: bytes) -> Labels:
        """The classes (height, width) of an encoded mask; BadImage if it is not one of this set."""
        numbers = decode_mask(data)
        found: Labels = self.lookup[numbers]
        if (found == UNKNOWN).any():
            number = int(numbers[found == UNKNOWN][0])
            raise BadImage(f"its mask holds {number}, which is no class of {self.layout.title}'s {len(self.names)}")
        return found


def open_split(folder: Path, split: Split) -> SceneSet:
    layout, root = find_layout(folder)
    names = layout.names(root)
    pairs = layout.list_pairs(root, split)
    if not pairs:
        raise NotReadyError(f"{root} holds no {split} images of {layout.title}")
    return SceneSet(
        root=root,
        layout=layout,
        names=names,
        images=tuple(pairs),
        masks=tuple(pairs.values()),
        lookup=np.frombuffer(layout.lookup(len(names)), np.uint8),
    )


def expected_counts(folder: Path) -> SceneCounts | None:
    """Counts of the complete set, by its manifest or, for a set nearly as large, the published ones; else None."""
    layout, root = find_layout(folder)
    if made := read_counts(root, "train", "val"):
        return SceneCounts(**made)
    found = len(layout.list_pairs(root, "train"))
    # a subset is far smaller; slightly fewer means the published set with some of it missing
    return layout.published if layout.published.train * 0.9 < found <= layout.published.train else None


def decode_mask(data: bytes) -> Labels:
    """The stored values (height, width) of a mask; BadImage unless it has one channel of 8 bits."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.size[0] * image.size[1] > MAX_PIXELS:
                raise BadImage(f"its mask's header claims {image.size[0]}x{image.size[1]} pixels")
            if image.mode not in ("L", "P"):
                of_full = "; the full ADE20K has such masks, and is another data set" if image.mode == "RGB" else ""
                raise BadImage(f"its mask is no PNG of one channel and 8 bits (Pillow calls it {image.mode}){of_full}")
            # the indices of a palette, not its colours
            return np.asarray(image)
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("its mask is no PNG" if data else "its mask is empty") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, Image.DecompressionBombError) as error:
        raise BadImage(f"its mask cannot be decoded: {error or type(error).__name__}") from error


def count_pixels(labels: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Pixels per class, without ignored ones."""
    return np.bincount(labels.reshape(-1), minlength=IGNORED + 1)[:classes]
