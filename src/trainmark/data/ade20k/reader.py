"""Opens a segmentation set of any known layout and reads its images and masks."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from trainmark.data.ade20k import layouts
from trainmark.data.ade20k.layouts import IGNORED, UNKNOWN, SceneCounts, SceneLayout, Split
from trainmark.data.data_set import MANIFEST
from trainmark.data.jpeg import MAX_PIXELS, BadImage
from trainmark.record.errors import NotReadyError

Labels = npt.NDArray[np.uint8]


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


def expected_counts(folder: Path) -> SceneCounts | None:
    """Counts of the complete set, by its manifest or, for a set nearly as large, the published ones; else None."""
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
    counts = np.bincount(labels.reshape(-1), minlength=IGNORED + 1)
    kept: npt.NDArray[np.int64] = counts[:classes]
    return kept
