"""Opens a set of images with masks and reads one of either, whichever of the known sets it is."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from trainmark.data.ade20k import layouts
from trainmark.data.ade20k.layouts import IGNORED, STRANGE, SceneCounts, SceneLayout, Split
from trainmark.data.data_set import MANIFEST
from trainmark.data.jpeg import MAX_PIXELS, BadImage
from trainmark.record.errors import NotReadyError

Labels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class SceneSet:
    """One split: which image has which mask, and what the masks mean."""

    root: Path
    layout: SceneLayout
    names: tuple[str, ...]
    """Of the classes."""
    images: tuple[str, ...]
    masks: tuple[str, ...]
    """Of the images, in their order; below the root, as those."""
    lookup: Labels
    """Of every number in a mask the class, or that it is not judged, or strange."""

    def __len__(self) -> int:
        return len(self.images)

    def path(self, index: int) -> str:
        return f"{self.root}/{self.images[index]}"

    def mask_path(self, index: int) -> str:
        return f"{self.root}/{self.masks[index]}"

    def labels(self, data: bytes) -> Labels:
        """The classes (height, width) that the bytes of a mask mean; BadImage where they are no such mask."""
        numbers = decode_mask(data)
        found: Labels = self.lookup[numbers]
        if (found == STRANGE).any():
            number = int(numbers[found == STRANGE][0])
            raise BadImage(f"its mask holds {number}, which is no class of {self.layout.title}'s {len(self.names)}")
        return found


def open_split(folder: Path, split: Split) -> SceneSet:
    layout, root = layouts.find(folder)
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


def expected(folder: Path) -> SceneCounts | None:
    """What a whole set would hold: by its manifest, or of a set that is nearly as large as the published one."""
    layout, root = layouts.find(folder)
    path = root / MANIFEST
    try:
        values = json.loads(path.read_text("utf-8"))
        return SceneCounts(train=int(values["train"]), val=int(values["val"]))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{path} does not give 'train' and 'val'; make the set again") from error
    found = len(layout.list_pairs(root, "train"))
    # a part that somebody cut out is far smaller; a little below is the whole set with some of it missing
    return layout.whole if layout.whole.train * 0.9 < found <= layout.whole.train else None


def decode_mask(data: bytes) -> Labels:
    """The numbers (height, width) of a mask as they are stored; BadImage where it is none of one channel and 8 bits."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.size[0] * image.size[1] > MAX_PIXELS:
                raise BadImage(f"its mask's header claims {image.size[0]}x{image.size[1]} pixels")
            if image.mode not in ("L", "P"):
                of_full = "; the full ADE20K has such masks, and is another data set" if image.mode == "RGB" else ""
                raise BadImage(f"its mask is no PNG of one channel and 8 bits (Pillow calls it {image.mode}){of_full}")
            # of a palette the numbers are wanted, not the colours
            return np.asarray(image)
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("its mask is no PNG" if data else "its mask is empty") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, Image.DecompressionBombError) as error:
        raise BadImage(f"its mask cannot be decoded: {error or type(error).__name__}") from error


def shares(labels: Labels, classes: int) -> npt.NDArray[np.int64]:
    """Pixels of each class, those that are not judged left out."""
    counts = np.bincount(labels.reshape(-1), minlength=IGNORED + 1)
    kept: npt.NDArray[np.int64] = counts[:classes]
    return kept
