"""How many classes and pictures a set should have, from its manifest or from what is known of ImageNet-1k."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark.datasets.data_set import MANIFEST
from trainmark.spec.errors import NotReadyError


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How large a set is."""

    classes: int
    train: int
    val: int

    def __str__(self) -> str:
        return f"{self.classes} classes, {self.train} train and {self.val} val files"


IMAGENET_1K = Counts(classes=1000, train=1_281_167, val=50_000)


def read_manifest(root: Path) -> Counts | None:
    """What the maker of the set says it wrote; None where there is no manifest."""
    path = root / MANIFEST
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(f"cannot read {path}: {error}") from error
    try:
        values = json.loads(text)
        numbers = {key: values[key] for key in ("classes", "train", "val")}
    except (ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{path} does not give 'classes', 'train' and 'val'; make the set again") from error
    for key, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise NotReadyError(f"{path}: {key!r} is {number!r}, which is no count; make the set again")
    return Counts(**numbers)


def expected(root: Path, classes: Sequence[str]) -> Counts | None:
    """What a whole set would hold; None where nothing is known of it."""
    manifest = read_manifest(root)
    if manifest is not None:
        return manifest
    # a subset of ImageNet has a few hundred classes; a little below 1000 is the whole set with some of it missing
    like_imagenet = all(re.fullmatch(r"n[0-9]{8}|class [0-9]+", name) for name in classes)
    return IMAGENET_1K if like_imagenet and 900 < len(classes) <= 1000 else None
