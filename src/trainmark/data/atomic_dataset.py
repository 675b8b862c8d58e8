"""Makes a synthetic set appear whole or not at all, whichever maker is killed and however many make it at once."""

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
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from trainmark.data.data_set import MANIFEST
from trainmark.record import cores
from trainmark.record.atomic_files import sync
from trainmark.record.cores import end_with_parent
from trainmark.record.errors import NotReadyError

Progress = Callable[[int, int], None]
"""Told how many items are written and how many there will be."""

Chunk = TypeVar("Chunk")

_MAX_PROCESSES = 16
_LEFT_OVER_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What a set will be once it is whole, and how its manifest tells it from others."""

    things: str
    """What a user calls its items: "synthetic images"."""
    identity: Mapping[str, Any]
    """Of the manifest: two sets that agree in this agree in every byte. Its "generator" begins with "trainmark "."""
    notes: Mapping[str, Any]
    """What else the manifest says."""
    patterns: tuple[str, ...]
    """Below the root, where its files are."""
    files: int

    def is_told_by(self, manifest: dict[str, Any]) -> bool:
        return self.identity.items() <= manifest.items()


@dataclass(frozen=True)
class WrittenFile:
    path: str
    """Below the root, with forward slashes."""
    size: int
    sha256: str


def stage(out: Path, plan: DatasetSpec, fill: Callable[[Path], list[WrittenFile]]) -> None:
    """Lets `fill` write the files of a set to a hidden folder, then renames that to `out`; at once if it is there."""
    if _holds(out, plan):
        return
    _refuse_what_is_not_ours(out, plan)
    _sweep(out)
    unfinished = _beside(out)
    try:
        unfinished.mkdir(parents=True)
        _write_manifest(unfinished, plan, fill(unfinished))
        _install(unfinished, out, plan)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReadyError(f"cannot write the {plan.things} to {out}: {reason}; choose another folder") from error
    except BrokenProcessPool as error:
        raise NotReadyError(
            f"a process that makes the {plan.things} died, perhaps for want of memory; try again"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


# Writing the files


def write_file(root: Path, path: str, data: bytes) -> WrittenFile:
    (root / path).write_bytes(data)
    return WrittenFile(path, len(data), hashlib.sha256(data).hexdigest())


def write_chunks(
    write: Callable[[Chunk], list[WrittenFile]],
    chunks: Sequence[Chunk],
    *,
    total: int,
    processes: int,
    progress: Progress | None,
) -> list[WrittenFile]:
    """What `write`, which other processes must be able to import, wrote for every chunk."""
    written: list[WrittenFile] = []
    # closed at once if `progress` raises: nobody may still be writing when the folder is removed
    with contextlib.closing(_parts(write, chunks, processes)) as parts:
        for part in parts:
            written += part
            if progress is not None:
                progress(len(written), total)
    return written


def every_core() -> int:
    """How many processes are worth starting here."""
    return min(_MAX_PROCESSES, cores.count_usable_cores())


def _parts(
    write: Callable[[Chunk], list[WrittenFile]], chunks: Sequence[Chunk], processes: int
) -> Generator[list[WrittenFile], None, None]:
    if processes == 1:
        for chunk in chunks:
            yield write(chunk)
        return
    # spawned, not forked: whoever calls may have threads running
    pool = ProcessPoolExecutor(
        min(processes, len(chunks)),
        mp_context=get_context("spawn"),
        initializer=end_with_parent,
        initargs=(os.getpid(),),
    )
    with pool:
        futures = [pool.submit(write, chunk) for chunk in chunks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


# A set is there whole or not at all


def _write_manifest(root: Path, plan: DatasetSpec, written: list[WrittenFile]) -> None:
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(written, key=lambda file: file.path))
    manifest = {
        **plan.identity,
        **plan.notes,
        "bytes": sum(file.size for file in written),
        # of the output of sha256sum for all files in the order of their paths
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }
    with (root / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync(root)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a set that trainmark made, whatever its contents; None if there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and str(manifest.get("generator")).startswith("trainmark ")
    return manifest if ours else None


def _holds(folder: Path, plan: DatasetSpec) -> bool:
    """Whether the folder is such a set with no file missing or cut off.

    Files are not synced to disk one by one, which would take longer than making them; a machine that lost power
    leaves files too short, and the sum of their sizes tells.
    """
    manifest = _manifest(folder)
    if manifest is None or not plan.is_told_by(manifest):
        return False
    try:
        sizes = [file.stat().st_size for pattern in plan.patterns for file in folder.glob(pattern)]
    except OSError:
        return False
    return (len(sizes), sum(sizes)) == (plan.files, manifest.get("bytes"))


def _refuse_what_is_not_ours(folder: Path, plan: DatasetSpec) -> None:
    """Lets an absent or empty folder pass, and a damaged set of this plan, which will be replaced."""
    manifest = _manifest(folder)
    if manifest is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotReadyError(f"{folder} is there and is no set that trainmark made; choose another folder")
    if manifest is not None and not plan.is_told_by(manifest):
        raise NotReadyError(f"{folder} holds another synthetic set; remove it or choose another folder")


def _install(unfinished: Path, out: Path, plan: DatasetSpec) -> None:
    """Renames the set to where it belongs, over a damaged one if need be; leaves a whole one that is there alone."""
    for _ in range(3):
        try:
            unfinished.rename(out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            sync(out.parent)
            return
        if _holds(out, plan):
            return  # another process was faster, and its bytes are the same
        _refuse_what_is_not_ours(out, plan)
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
