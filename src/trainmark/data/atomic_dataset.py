"""Makes a synthetic set in several processes and installs it atomically, even if makers are killed or run at once."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from trainmark.data import MANIFEST
from trainmark.record import cores
from trainmark.record.atomic_files import sync
from trainmark.record.cores import end_with_parent
from trainmark.record.errors import NotReadyError, UsageError

Progress = Callable[[int, int], None]
"""Called with the number of items made and the total."""

Item = TypeVar("Item")

WORTH_PROCESSES = 128
"""Number of items from which starting processes pays off."""
_MAX_PROCESSES = 16
_CHUNK = 16
_STALE_AFTER_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """Contents of a complete set, and how its manifest identifies it."""

    things: str
    """Its items in messages: "synthetic images"."""
    identity: Mapping[str, Any]
    """Manifest fields that determine every byte. Its "generator" begins with "trainmark "."""
    notes: Mapping[str, Any]
    """Further fields of the manifest."""
    patterns: tuple[str, ...]
    """Globs of its files, relative to the root."""
    files: int

    def matches(self, manifest: dict[str, Any]) -> bool:
        return self.identity.items() <= manifest.items()

    def measure(self, folder: Path) -> tuple[int, int]:
        """Number of its files in a folder, and their bytes."""
        sizes = [file.stat().st_size for pattern in self.patterns for file in folder.glob(pattern)]
        return len(sizes), sum(sizes)


def make_set(
    out: Path,
    spec: DatasetSpec,
    items: Sequence[Item],
    write: Callable[[Path, Item], None],
    *,
    finish: Callable[[Path], None] = lambda _: None,
    progress: Progress | None = None,
) -> None:
    """Makes the set in the folder `out`; returns at once if it is complete.

    `write` makes the files of one item below a folder, perhaps in another process, which must be able to import it;
    `finish` adds files, or packs those that were written. Several makers of the same set may run at once.
    """
    if _is_complete(out, spec):
        return
    _refuse_foreign(out, spec)
    _sweep(out)
    unfinished = _hidden_path(out)
    try:
        unfinished.mkdir(parents=True)
        # closed at once if `progress` raises: no process may still write when the folder is removed
        with contextlib.closing(_write_items(unfinished, write, items)) as counts:
            for done in counts:
                if progress is not None:
                    progress(done, len(items))
        finish(unfinished)
        _write_manifest(unfinished, spec)
        _install(unfinished, out, spec)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReadyError(f"cannot write the {spec.things} to {out}: {reason}; choose another folder") from error
    except BrokenProcessPool as error:
        raise NotReadyError(
            f"a process that makes the {spec.things} died, perhaps for want of memory; try again"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def check_range(option: str, number: int, least: int, most: int | None = None) -> None:
    if number < least or (most is not None and number > most):
        upward = "or more" if most is None else f"to {most}"
        raise UsageError(f"--{option} {number} is out of range; give {least} {upward}")


def _write_items(root: Path, write: Callable[[Path, Item], None], items: Sequence[Item]) -> Generator[int, None, None]:
    """Number of items made so far."""
    if len(items) < WORTH_PROCESSES:
        for done, item in enumerate(items, start=1):
            write(root, item)
            yield done
        return
    # spawned, not forked: the caller may have threads
    with ProcessPoolExecutor(
        min(_MAX_PROCESSES, cores.count_usable_cores()),
        mp_context=get_context("spawn"),
        initializer=end_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        try:
            for done, _ in enumerate(pool.map(partial(write, root), items, chunksize=_CHUNK), start=1):
                yield done
        finally:
            pool.shutdown(cancel_futures=True)


# Atomic installation


def _write_manifest(root: Path, spec: DatasetSpec) -> None:
    manifest = {**spec.identity, **spec.notes, "bytes": spec.measure(root)[1]}
    (root / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync(root / MANIFEST)
    sync(root)


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of any set made by trainmark; None if there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and str(manifest.get("generator")).startswith("trainmark ")
    return manifest if ours else None


def _is_complete(folder: Path, spec: DatasetSpec) -> bool:
    """Whether the folder is this set, with no file missing or truncated.

    Files are not synced one by one, which would take longer than making them; a power cut leaves truncated files,
    which the sum of sizes reveals.
    """
    manifest = _read_manifest(folder)
    if manifest is None or not spec.matches(manifest):
        return False
    try:
        return spec.measure(folder) == (spec.files, manifest.get("bytes"))
    except OSError:
        return False


def _refuse_foreign(folder: Path, spec: DatasetSpec) -> None:
    """Accepts an absent or empty folder, and a damaged copy of this set, which will be replaced."""
    manifest = _read_manifest(folder)
    if manifest is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotReadyError(f"{folder} exists and is not a set made by trainmark; choose another folder")
    if manifest is not None and not spec.matches(manifest):
        raise NotReadyError(f"{folder} holds another synthetic set; remove it or choose another folder")


def _install(unfinished: Path, out: Path, spec: DatasetSpec) -> None:
    """Renames the set to `out`, replacing a damaged one; keeps a complete one."""
    if _read_manifest(out) is not None and not _is_complete(out, spec):
        damaged = _hidden_path(out)
        with contextlib.suppress(FileNotFoundError):  # another process may move it too
            out.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        unfinished.rename(out)
    except OSError as error:
        # another process was faster with the same bytes
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _is_complete(out, spec):
            raise
    sync(out.parent)


def _hidden_path(out: Path) -> Path:
    """A unique hidden name in the same folder, so that renaming is atomic."""
    return out.parent / f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(out: Path) -> None:
    """Removes stale folders of killed makers."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)
