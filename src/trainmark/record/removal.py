"""Removes runs and their files from a store; lists the files and bytes first."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.errors import NotReadyError, UsageError

if TYPE_CHECKING:
    from trainmark.record.store import Store


@dataclass(frozen=True, kw_only=True)
class Removable:
    """One removable thing with all its files."""

    name: str
    paths: tuple[Path, ...]
    """Existing paths, in the order of removal."""

    @property
    def size_bytes(self) -> int:
        return sum(map(_size, self.paths))


def find_run_files(store: Store, run_id: str) -> Removable:
    """All files of a run; its record goes last, so that an interrupted removal can be repeated."""
    from trainmark.record.series import ENDING

    pages = [store.folder / "reports" / name for name in (f"{run_id}.html", f"report-{run_id}.html")]
    paths = [
        store.runs / run_id,
        store.samples / run_id,
        *pages,
        store.records / f"{run_id}{ENDING}",
        store.path(run_id),
    ]
    return Removable(name=run_id, paths=_keep_existing(paths))


def find_checkpoints(store: Store, run_id: str) -> Removable:
    """The checkpoints of a run; its record and events stay."""
    return Removable(name=f"checkpoints of {run_id}", paths=_keep_existing([store.runs / run_id / "checkpoints"]))


def remove(thing: Removable, within: Path) -> None:
    """Deletes the paths; a link's target stays, and a path outside of the folder is refused."""
    for path in thing.paths:
        if within.resolve() not in path.parent.resolve().parents and within.resolve() != path.parent.resolve():
            raise UsageError(f"{path} is outside of {within} and is not removed")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise NotReadyError(f"{path} cannot be removed: {error.strerror}") from error


def _keep_existing(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if os.path.lexists(path))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as themselves."""
    total = 0
    with contextlib.suppress(OSError):  # removed meanwhile
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            total = sum(_size(Path(entry.path)) for entry in entries)
    return total
