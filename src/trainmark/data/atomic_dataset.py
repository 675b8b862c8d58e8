"""Writes a synthetic set atomically, even if makers are killed or run concurrently."""

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
from trainmark.record.errors import NotReadyError, UsageError

Progress = Callable[[int, int], None]
"""Called with the number of items written and the total."""

Chunk = TypeVar("Chunk")

_MAX_PROCESSES = 16
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


@dataclass(frozen=True)
class WrittenFile:
    path: str
    """Relative to the root, with forward slashes."""
    size: int
    sha256: str


def stage(out: Path, plan: DatasetSpec, fill: Callable[[Path], list[WrittenFile]]) -> None:
    """Lets `fill` write the set to a hidden folder, then renames it to `out`; returns at once if `out` is complete."""
    if _is_complete(out, plan):
        return
    _refuse_foreign(out, plan)
    _sweep(out)
    unfinished = _hidden_path(out)
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
    """Files written for all chunks by `write`, which other processes must be able to import."""
    written: list[WrittenFile] = []
    # closed at once if `progress` raises: no process may still write when the folder is removed
    with contextlib.closing(_run_chunks(write, chunks, processes)) as parts:
        for part in parts:
            written += part
            if progress is not None:
                progress(len(written), total)
    return written


def choose_processes(requested: int | None, items: int, pays_from: int) -> int:
    """The requested number of processes, or one per core if there are enough items for them to pay off."""
    if requested is not None and requested < 1:
        raise UsageError(f"{requested} processes were requested; give 1 or more")
    return requested or (min(_MAX_PROCESSES, cores.count_usable_cores()) if items >= pays_from else 1)


def _run_chunks(
    write: Callable[[Chunk], list[WrittenFile]], chunks: Sequence[Chunk], processes: int
) -> Generator[list[WrittenFile], None, None]:
    if processes == 1:
        for chunk in chunks:
            yield write(chunk)
        return
    # spawned, not forked: the caller may have threads
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


# Atomic installation


def _write_manifest(root: Path, plan: DatasetSpec, written: list[WrittenFile]) -> None:
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in sorted(written, key=lambda file: file.path))
    manifest = {
        **plan.identity,
        **plan.notes,
        "bytes": sum(file.size for file in written),
        # hash of sha256sum's output for all files, sorted by path
        "sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }
    with (root / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync(root)


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of any set made by trainmark; None if there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and str(manifest.get("generator")).startswith("trainmark ")
    return manifest if ours else None


def _is_complete(folder: Path, plan: DatasetSpec) -> bool:
    """Whether the folder is this set, with no file missing or truncated.

    Files are not synced one by one, which would take longer than making them; a power cut leaves truncated files,
    which the sum of sizes reveals.
    """
    manifest = _read_manifest(folder)
    if manifest is None or not plan.matches(manifest):
        return False
    try:
        sizes = [file.stat().st_size for pattern in plan.patterns for file in folder.glob(pattern)]
    except OSError:
        return False
    return (len(sizes), sum(sizes)) == (plan.files, manifest.get("bytes"))


def _refuse_foreign(folder: Path, plan: DatasetSpec) -> None:
    """Accepts an absent or empty folder, and a damaged copy of this set, which will be replaced."""
    manifest = _read_manifest(folder)
    if manifest is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotReadyError(f"{folder} exists and is not a set made by trainmark; choose another folder")
    if manifest is not None and not plan.matches(manifest):
        raise NotReadyError(f"{folder} holds another synthetic set; remove it or choose another folder")


def _install(unfinished: Path, out: Path, plan: DatasetSpec) -> None:
    """Renames the set to `out`, replacing a damaged one; keeps a complete one."""
    for _ in range(3):
        try:
            unfinished.rename(out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            sync(out.parent)
            return
        if _is_complete(out, plan):
            return  # another process was faster with the same bytes
        _refuse_foreign(out, plan)
        damaged = _hidden_path(out)
        with contextlib.suppress(FileNotFoundError):  # another process may move it too
            out.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    raise NotReadyError(f"{out} keeps changing; try again when other processes have ended")


def _hidden_path(out: Path) -> Path:
    """A unique hidden name in the same folder, so that renaming is atomic."""
    return out.parent / f".{out.name}.{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(out: Path) -> None:
    """Removes stale folders of killed makers."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)
