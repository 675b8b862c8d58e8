"""Which sets of images and masks are read: where their files lie, and what the numbers in their masks mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainmark.record.errors import NotReadyError

Split = Literal["train", "val"]
SPLITS: tuple[Split, Split] = ("train", "val")
Pairs = dict[str, str]
"""By the image, its mask; both below the root, with forward slashes, in the order of their names."""

IGNORED, STRANGE = 255, 254
"""What becomes of a mask's number: a class from 0 on, a pixel that is not judged, or a number no such mask may hold."""

OBJECT_INFO = "objectInfo150.txt"


@dataclass(frozen=True, kw_only=True)
class SceneCounts:
    """How large a set is; two with as many scenes count as the same size."""

    train: int
    val: int

    def __str__(self) -> str:
        return f"{self.train:,} train and {self.val:,} val scenes"


@dataclass(frozen=True, kw_only=True)
class SceneLayout:
    title: str
    folders: tuple[str, ...]
    """Below the root: all of them are there."""
    within: tuple[str, ...]
    """Where the archive keeps them: looked for below the folder that a user gives."""
    classes: int
    labels: Mapping[int, int]
    """By a mask's number the class; those left out are strange."""
    list_pairs: Callable[[Path, Split], Pairs]
    names: Callable[[Path], tuple[str, ...]]
    whole: SceneCounts

    def lookup(self, classes: int) -> bytes:
        """Of every number a byte can hold, what becomes of it in a set of so many classes."""
        found = bytearray([STRANGE]) * 256
        for number, label in self.labels.items():
            found[number] = label if label == IGNORED or label < classes else STRANGE
        return bytes(found)


def find(folder: Path) -> tuple[SceneLayout, Path]:
    """Which set a folder holds, and its root; refuses others in a sentence."""
    for layout in LAYOUTS:
        for below in (".", *layout.within):
            root = folder / below
            if all((root / name).is_dir() for name in layout.folders):
                return layout, root
    if _is_full_ade20k(folder):
        raise NotReadyError(
            f"{folder} is the full ADE20K, whose masks have three channels and over 3,000 classes; its 150 classes are "
            "another release: `trainmark data prepare ade20k --zip ADEChallengeData2016.zip` unpacks that"
        )
    known = "; ".join(f"{layout.title} has {', '.join(layout.folders)}" for layout in LAYOUTS)
    raise NotReadyError(f"{folder} is no set of images with masks that is known: {known}")


def files(folder: Path, suffix: str) -> list[str]:
    """Names of a folder's files that end so, sorted; NotReadyError where it cannot be listed."""
    try:
        return sorted(name.name for name in folder.iterdir() if name.name.endswith(suffix) and name.name[0] != ".")
    except OSError as error:
        raise NotReadyError(f"{folder} cannot be listed: {error.strerror}") from error


def _is_full_ade20k(folder: Path) -> bool:
    """By its index, or by images in folders of their scenes with `_seg.png` beside them."""
    if any(folder.glob("index_ade20k.*")) or any(folder.glob("*/index_ade20k.*")):
        return True
    pattern = "images/training/*/*/*_seg.png", "images/ADE/training/*/*/*_seg.png"
    return any(next(root.glob(word), None) for root in (folder, *_folders(folder)) for word in pattern)


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


# ADE20K's 150 classes


_ADE_SPLITS = {"train": "training", "val": "validation"}


def _ade_pairs(root: Path, split: Split) -> Pairs:
    part = _ADE_SPLITS[split]
    names = files(root / "images" / part, ".jpg")
    return {f"images/{part}/{name}": f"annotations/{part}/{name.removesuffix('.jpg')}.png" for name in names}


def _ade_names(root: Path) -> tuple[str, ...]:
    """From the table beside the images, whose last column is the name; numbers where there is none."""
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


def _voc_pairs(root: Path, split: Split) -> Pairs:
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
"""The numbers of the raw masks that are judged; they become 0 to 18 in this order."""


def _cityscapes_pairs(root: Path, split: Split) -> Pairs:
    found: Pairs = {}
    for city in sorted(path.name for path in _folders(root / "leftImg8bit" / split)):
        for name in files(root / "leftImg8bit" / split / city, "_leftImg8bit.png"):
            mask = name.replace("_leftImg8bit.png", "_gtFine_labelIds.png")
            found[f"leftImg8bit/{split}/{city}/{name}"] = f"gtFine/{split}/{city}/{mask}"
    return found


LAYOUTS = (
    SceneLayout(
        title="ADE20K",
        folders=("images/training", "images/validation", "annotations/training", "annotations/validation"),
        within=("ADEChallengeData2016",),
        classes=150,
        labels={0: IGNORED, **{number: number - 1 for number in range(1, 151)}},
        list_pairs=_ade_pairs,
        names=_ade_names,
        whole=SceneCounts(train=20_210, val=2_000),
    ),
    SceneLayout(
        title="VOC2012",
        folders=("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"),
        within=("VOC2012", "VOCdevkit/VOC2012"),
        classes=len(VOC_CLASSES),
        labels={IGNORED: IGNORED, **{number: number for number in range(len(VOC_CLASSES))}},
        list_pairs=_voc_pairs,
        names=lambda _: VOC_CLASSES,
        whole=SceneCounts(train=1_464, val=1_449),
    ),
    SceneLayout(
        title="Cityscapes",
        folders=("leftImg8bit/train", "leftImg8bit/val", "gtFine/train", "gtFine/val"),
        within=(),
        classes=len(CITYSCAPES_IDS),
        labels={
            **dict.fromkeys((*range(34), IGNORED), IGNORED),
            **{number: label for label, number in enumerate(CITYSCAPES_IDS)},
        },
        list_pairs=_cityscapes_pairs,
        names=lambda _: tuple(CITYSCAPES_IDS.values()),
        whole=SceneCounts(train=2_975, val=500),
    ),
)
