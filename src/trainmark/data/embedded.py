"""The data every installation can make for itself, so that a first run needs nothing from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainmark.data.set_counts import MANIFEST
from trainmark.spec.errors import UsageError, nearest


def cache_folder() -> Path:
    """Where generated data is kept between runs."""
    if chosen := os.environ.get("TRAINMARK_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


def folder(data_set: str) -> Path:
    """Where the embedded set of this name lies, or will lie."""
    if data_set != "imagenet":
        raise UsageError(f"data set {data_set!r} is not known; {nearest(data_set, ['imagenet'])}")
    from trainmark.data import make_imagenet

    return cache_folder() / make_imagenet.default_name()


def is_generated(root: Path, given: str | None) -> bool:
    """True for a set made by trainmark: the embedded one, or one a user made with `trainmark data make`."""
    return given is None or (root / MANIFEST).exists()


def ensure(data_set: str, root: Path, say: Callable[[str], None]) -> None:
    """Makes the embedded set if it is not there yet, and again if it was damaged."""
    from trainmark.data import make_imagenet

    if not (root / MANIFEST).exists():
        say(f"making the embedded {data_set} set in {root} (once, about 10 s on two cores)")
    make_imagenet.make(root)
