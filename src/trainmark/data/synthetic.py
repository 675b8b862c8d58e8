"""The synthetic sets, so that a first run needs no download."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainmark import data as datasets
from trainmark.data import MANIFEST


def cache_folder() -> Path:
    """Where synthetic data is cached between runs."""
    if chosen := os.environ.get("TRAINMARK_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


def folder(data_set: str) -> Path:
    """Folder of the synthetic set of this name."""
    return cache_folder() / datasets.find(data_set).default_name()


def is_synthetic(root: Path, given: str | None) -> bool:
    """True for a set made by trainmark: the default one, or one of `trainmark data make`."""
    return given is None or (root / MANIFEST).exists()


def ensure(data_set: str, root: Path, say: Callable[[str], None]) -> None:
    """Makes the synthetic set if it is missing or damaged."""
    known = datasets.find(data_set)
    if not (root / MANIFEST).exists():
        say(f"making the synthetic {data_set} set in {root} (once, {known.takes})")
    known.make(root)
