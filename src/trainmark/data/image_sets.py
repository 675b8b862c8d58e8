"""Opens a classification set, in class folders or in tar shards."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trainmark.data import image_folder, image_shards
from trainmark.data.image_folder import Split


class Images(Protocol):
    """The images of one split; an image has the same index in either format."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the training split in label order."""

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...

    def __len__(self) -> int: ...

    def path(self, index: int, /) -> str:
        """Where an image is, for messages."""

    def read(self, index: int, /) -> bytes:
        """The bytes of an image; OSError or BadImage if they cannot be read."""


def open_split(root: Path, split: Split) -> Images:
    if image_shards.has_shards(root):
        return image_shards.open_split(root, split)
    return image_folder.open_split(root, split)


def class_names(root: Path) -> tuple[str, ...]:
    """The training set's classes in label order; NotReadyError if the other split has classes of its own."""
    return image_shards.class_names(root) if image_shards.has_shards(root) else image_folder.class_names(root)
