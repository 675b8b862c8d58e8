"""Takes runs and what they left out of a store: tells first what would go and how many bytes that is."""

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
    """One thing that can go, with all its files."""

    name: str
    paths: tuple[Path, ...]
    """Those that are there, in the order in which they go."""

    @property
    def size_bytes(self) -> int:
        return sum(map(_size, self.paths))


def find_run_files(store: Store, run_id: str) -> Removable:
    """A run with everything of it. Its record goes last: where this is cut short, the run can be named again."""
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
    """What a run could be resumed from; its record and events stay."""
    return Removable(name=f"checkpoints of {run_id}", paths=_keep_existing([store.runs / run_id / "checkpoints"]))


def remove(thing: Removable, within: Path) -> None:
    """For good. A link is taken away and what it points to stays; a path outside of the folder is refused."""
    for path in thing.paths:
        if within.resolve() not in path.parent.resolve().parents and within.resolve() != path.parent.resolve():
            raise UsageError(f"{path} lies outside of {within}, and nothing there is taken away")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise NotReadyError(f"{path} cannot be taken away: {error.strerror}") from error


def _keep_existing(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if os.path.lexists(path))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as themselves."""
    total = 0
    with contextlib.suppress(OSError):  # what goes away while we count needs no counting
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            total = sum(_size(Path(entry.path)) for entry in entries)
    return total
