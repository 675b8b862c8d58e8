"""Writes the embedded picture set: an ImageNet-shaped tree of real JPEG files, the same bytes for the same seed."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import simplejpeg

from trainmark.data import forms, scenes
from trainmark.data.set_counts import MANIFEST
from trainmark.spec.errors import NotReadyError, UsageError

VERSION = 1
"""Counts up whenever the same seed gives other pictures."""

CLASSES, TRAIN_PER_CLASS, VAL_PER_CLASS, SEED, LONG_SIDE = 10, 96, 40, 0, 500
MAX_CLASSES = 1000
SPLITS = ("train", "val")

Progress = Callable[[int, int], None]
"""Told how many pictures are written and how many there will be."""

_CHUNK = 10
_MAX_PROCESSES = 16
_WORTH_PROCESSES = 128
"""Pictures from which on drawing takes longer than starting processes to draw them."""
_LEFT_OVER_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What a set holds; two sets that agree in this agree in every byte."""

    classes: int
    train_per_class: int
    val_per_class: int
    seed: int
    long_side: int
    """Pixels along the longer side of every picture."""

    def per_class(self, split: str) -> int:
        return self.train_per_class if split == "train" else self.val_per_class

    @property
    def total(self) -> int:
        return self.classes * (self.train_per_class + self.val_per_class)

    @property
    def name(self) -> str:
        counts = f"{self.classes}x{self.train_per_class}+{self.val_per_class}"
        return f"pictures-v{VERSION}-{counts}-{self.long_side}px-seed{self.seed}"


@dataclass(frozen=True)
class _Chunk:
    """Some pictures of one class, drawn and written by one process."""

    split: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Written:
    path: str
    """Below the root, with forward slashes."""
    size: int
    sha256: str


def make(
    out: Path,
    *,
    classes: int = CLASSES,
    train_per_class: int = TRAIN_PER_CLASS,
    val_per_class: int = VAL_PER_CLASS,
    seed: int = SEED,
    long_side: int = LONG_SIDE,
    processes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out`, which appears whole or not at all; returns at once if it is there already.

    Several processes may make the same set at once. `processes` does not change a byte; left out, every core draws.
    """
    contents = _checked(classes, train_per_class, val_per_class, seed, long_side)
    if processes is not None and processes < 1:
        raise UsageError(f"{processes} processes were asked for; give 1 or more")
    if _holds(out, contents):
        return
    _refuse_what_is_not_ours(out, contents)
    _sweep(out)
    unfinished = _beside(out)
    try:
        unfinished.mkdir(parents=True)
        written = _write_pictures(unfinished, contents, processes, progress)
        _write_manifest(unfinished, contents, written)
        _install(unfinished, out, contents)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReadyError(f"cannot write the generated pictures to {out}: {reason}; choose another folder") from error
    except BrokenProcessPool as error:
        raise NotReadyError(
            "a process that draws the generated pictures died, perhaps for want of memory; try again"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def default_name() -> str:
    """What the folder of the default set is called."""
    return _checked(CLASSES, TRAIN_PER_CLASS, VAL_PER_CLASS, SEED, LONG_SIDE).name


def class_folder(index: int) -> str:
    """The folder of class `index`, shaped like a WordNet id and far above the numbers WordNet uses."""
    return f"n{90_000_000 + index}"


def _checked(classes: int, train_per_class: int, val_per_class: int, seed: int, long_side: int) -> _Contents:
    if not 1 <= classes <= MAX_CLASSES:
        raise UsageError(f"a generated set of {classes} classes was asked for; give 1 to {MAX_CLASSES}")
    if min(train_per_class, val_per_class) < 1:
        raise UsageError("a generated set needs at least one picture of each class to train on and one to evaluate on")
    if seed < 0:
        raise UsageError(f"seed {seed} is negative; give 0 or more")
    if not 32 <= long_side <= scenes.POOL_SIDE:
        raise UsageError(f"pictures of {long_side} px were asked for; give 32 to {scenes.POOL_SIDE}")
    return _Contents(
        classes=classes, train_per_class=train_per_class, val_per_class=val_per_class, seed=seed, long_side=long_side
    )


# Drawing


def _write_pictures(
    root: Path, contents: _Contents, processes: int | None, progress: Progress | None
) -> list[_Written]:
    for split in SPLITS:
        for index in range(contents.classes):
            (root / split / class_folder(index)).mkdir(parents=True)
    chunks = list(_chunks(contents))
    written: list[_Written] = []
    # closed at once if `progress` raises: nobody may still be writing when the folder is removed
    with contextlib.closing(_drawn(root, contents, chunks, processes)) as parts:
        for part in parts:
            written += part
            if progress is not None:
                progress(len(written), contents.total)
    return sorted(written, key=lambda file: file.path)


def _chunks(contents: _Contents) -> Iterator[_Chunk]:
    for split in SPLITS:
        count = contents.per_class(split)
        for index in range(contents.classes):
            for start in range(0, count, _CHUNK):
                yield _Chunk(split, index, start, min(count, start + _CHUNK))


def _drawn(
    root: Path, contents: _Contents, chunks: list[_Chunk], processes: int | None
) -> Generator[list[_Written], None, None]:
    if processes is None:
        worth_it = contents.total >= _WORTH_PROCESSES
        processes = min(_MAX_PROCESSES, len(os.sched_getaffinity(0))) if worth_it else 1
    if processes == 1:
        for chunk in chunks:
            yield _draw_chunk(root, contents, chunk)
        return
    # spawned, not forked: whoever calls may have threads running
    with ProcessPoolExecutor(min(processes, len(chunks)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_draw_chunk, root, contents, chunk) for chunk in chunks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _draw_chunk(root: Path, contents: _Contents, chunk: _Chunk) -> list[_Written]:
    written = []
    for number in range(chunk.start, chunk.stop):
        # a picture's own generator: no picture depends on another, nor on who draws it
        rng = np.random.default_rng([contents.seed, SPLITS.index(chunk.split), chunk.index, number])
        pixels = scenes.draw(chunk.index, rng, long_side=contents.long_side)
        quality = int(rng.integers(86, 95))
        data = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling="420")
        folder = class_folder(chunk.index)
        path = f"{chunk.split}/{folder}/{folder}_{number}.JPEG"
        (root / path).write_bytes(data)
        written.append(_Written(path, len(data), hashlib.sha256(data).hexdigest()))
    return written


# A set is there whole or not at all


def _write_manifest(root: Path, contents: _Contents, written: list[_Written]) -> None:
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in written)
    manifest = {
        "about": "Pictures drawn by trainmark; no photographs",
        **_identity(contents),
        "train": contents.classes * contents.train_per_class,
        "val": contents.classes * contents.val_per_class,
        "bytes": sum(file.size for file in written),
        # of the output of sha256sum for all pictures in the order of their paths
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "made_with": {"numpy": np.__version__, "pillow": PIL.__version__, "simplejpeg": simplejpeg.__version__},
        "names": {class_folder(index): forms.form(index)[0] for index in range(contents.classes)},
    }
    with (root / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(root)


def _identity(contents: _Contents) -> dict[str, Any]:
    return {"generator": "trainmark pictures", "version": VERSION, **asdict(contents)}


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a set that trainmark made, whatever its contents; None if there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and manifest.get("generator") == "trainmark pictures"
    return manifest if ours else None


def _holds(folder: Path, contents: _Contents) -> bool:
    """Whether the folder is such a set with no file missing or cut off.

    Pictures are not synced to disk one by one, which would take longer than drawing them; a machine that lost power
    leaves files too short, and the sum of their sizes tells.
    """
    manifest = _manifest(folder)
    if manifest is None or not _identity(contents).items() <= manifest.items():
        return False
    try:
        sizes = [file.stat().st_size for split in SPLITS for file in (folder / split).glob("*/*.JPEG")]
    except OSError:
        return False
    return (len(sizes), sum(sizes)) == (contents.total, manifest.get("bytes"))


def _refuse_what_is_not_ours(folder: Path, contents: _Contents) -> None:
    """Lets an absent or empty folder pass, and a damaged set of these contents, which will be replaced."""
    manifest = _manifest(folder)
    if manifest is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotReadyError(f"{folder} is there and is no set that trainmark made; choose another folder")
    if manifest is not None and not _identity(contents).items() <= manifest.items():
        raise NotReadyError(f"{folder} holds another generated set; remove it or choose another folder")


def _install(unfinished: Path, out: Path, contents: _Contents) -> None:
    """Renames the set to where it belongs, over a damaged one if need be; leaves a whole one that is there alone."""
    for _ in range(3):
        try:
            unfinished.rename(out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            _sync_folder(out.parent)
            return
        if _holds(out, contents):
            return  # another process was faster, and its bytes are the same
        _refuse_what_is_not_ours(out, contents)
        damaged = _beside(out)
        with contextlib.suppress(FileNotFoundError):  # another process moves it too
            out.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    raise NotReadyError(f"{out} keeps changing under other processes' hands; try again when they have ended")


def _beside(out: Path) -> Path:
    """A hidden name in the same folder, so that renaming is one step; no two are alike."""
    return out.parent / f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(out: Path) -> None:
    """Removes what makers killed long ago left behind."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _LEFT_OVER_S:
                shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
