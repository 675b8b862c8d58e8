"""What people call the classes of an ImageNet-shaped folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from trainmark.datasets.imagenet import make, shapes

MAPPING = "LOC_synset_mapping.txt"
"""A file beside train/ and val/ whose lines are `n01440764 tench, Tinca tinca`; some copies of the set have it."""


def class_titles(folder: Path, classes: Sequence[str]) -> list[str]:
    """One for each class folder: its name in words where the set says one, else the folder's own."""
    known = {make.class_folder(index): shapes.form(index)[0] for index in range(len(classes))}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (folder / MAPPING).read_text(encoding="utf-8").splitlines():
            name, _, title = line.partition(" ")
            known[name] = title.strip() or name
    return [known.get(name, name) for name in classes]
