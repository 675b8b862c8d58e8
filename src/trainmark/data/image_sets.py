"""Opens a set of images that each have one class, in folders or in tar shards, whichever lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainmark.data import image_folder, image_shards
from trainmark.data.image_folder import Split


class Images(Protocol):
    """The images of one split; an image has the same number wherever the set lies."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; both splits carry the training set's."""

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    def __len__(self) -> int: ...

    def path(self, index: int, /) -> str:
        """Where an image is, for sentences."""

    def read(self, index: int, /) -> bytes:
        """The bytes of an image; OSError or BadImage where they cannot be had."""


def open_split(root: Path, split: Split) -> Images:
    if image_shards.lie_in(root):
        return image_shards.open_split(root, split)
    return image_folder.open_split(root, split)


def class_names(root: Path) -> tuple[str, ...]:
    """The training set's classes in label order; refuses a set whose other split has classes of its own."""
    return image_shards.class_names(root) if image_shards.lie_in(root) else image_folder.class_names(root)
