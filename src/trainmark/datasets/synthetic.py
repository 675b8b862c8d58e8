"""The data every installation can make for itself, so that a first run needs nothing from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trainmark.datasets.imagenet.counts import MANIFEST
from trainmark.spec.errors import UsageError, nearest


@dataclass(frozen=True, kw_only=True)
class _Maker:
    """Who makes a set, and how long that takes."""

    module: str
    """Has `make(folder)` and `default_name()`; loaded only when asked, for it brings numpy."""
    takes: str


_MAKERS = {
    "imagenet": _Maker(module="trainmark.datasets.imagenet.make", takes="about 10 s on two cores"),
    "ljspeech": _Maker(module="trainmark.datasets.ljspeech.make", takes="about 10 s on two cores"),
}


def cache_folder() -> Path:
    """Where generated data is kept between runs."""
    if chosen := os.environ.get("TRAINMARK_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainmark"


def folder(data_set: str) -> Path:
    """Where the embedded set of this name lies, or will lie."""
    name: str = _loaded(_maker(data_set)).default_name()
    return cache_folder() / name


def is_generated(root: Path, given: str | None) -> bool:
    """True for a set made by trainmark: the embedded one, or one a user made with `trainmark data make`."""
    return given is None or (root / MANIFEST).exists()


def ensure(data_set: str, root: Path, say: Callable[[str], None]) -> None:
    """Makes the embedded set if it is not there yet, and again if it was damaged."""
    maker = _maker(data_set)
    if not (root / MANIFEST).exists():
        say(f"making the embedded {data_set} set in {root} (once, {maker.takes})")
    _loaded(maker).make(root)


def _maker(data_set: str) -> _Maker:
    if data_set not in _MAKERS:
        raise UsageError(f"data set {data_set!r} is not known; {nearest(data_set, _MAKERS)}")
    return _MAKERS[data_set]


def _loaded(maker: _Maker) -> Any:
    return import_module(maker.module)
