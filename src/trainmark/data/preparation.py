"""Prepares a set from its published archives: checksums, disk space, locking, and resuming."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Generic, TypeVar

from trainmark.record.archives import Destination, Member
from trainmark.record.errors import NotReadyError

STATE = PurePosixPath(".trainmark-prepare")
"""In the prepared set: what is finished and which archives were checked. Safe to remove."""

PROGRESS_EVERY_BYTES = 64 << 20

Size = TypeVar("Size")


@dataclass(frozen=True, kw_only=True)
class Prepared(Generic[Size]):
    """Contents of the prepared folder, and the number of files this call wrote."""

    found: Size
    written: int

    def __str__(self) -> str:
        return f"{self.found}, {self.written:,} files written now"


@dataclass(frozen=True, kw_only=True)
class ArchiveProgress:
    """Progress of one phase: `checksum`, or the part of the set that is unpacked."""

    phase: str
    done_bytes: int
    total_bytes: int
    files: int = 0


Report = Callable[[ArchiveProgress], None]


@contextmanager
def prepare_folder(
    out: Path,
    archives: Mapping[Path, str],
    *,
    needed_bytes: Callable[[], float],
    folders: tuple[str, ...],
    free_bytes: Callable[[Path], int] | None,
) -> Iterator[Destination]:
    """Locks the folder for one preparation, if the archives exist and the disk has space.

    `archives` maps each to its download page; `needed_bytes` is the size of the complete set in its `folders`.
    """
    check_archives(archives)
    with Destination(out) as destination, lock_folder(out):
        _check_space(out, needed_bytes(), folders, free_bytes)
        yield destination


def check_archives(archives: Mapping[Path, str]) -> None:
    for archive, source in archives.items():
        if not archive.is_file():
            raise NotReadyError(f"archive {archive} does not exist; download it from {source}")


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    sizes: Mapping[PurePosixPath, int]
    """Size of every file in the destination."""
    written: int
    """Files that did not exist before."""

    def total_bytes(self, folder: PurePosixPath) -> int:
        return sum(size for place, size in self.sizes.items() if place.parent == folder)


def unpack(
    members: Iterable[Member],
    place: Callable[[Member], PurePosixPath],
    destination: Destination,
    report: Report = lambda _: None,
    *,
    phase: str = "unpack",
    total_bytes: int = 0,
) -> Unpacked:
    """Writes each member to `place(member)`; `total_bytes` is an estimate for the report."""
    sizes: dict[PurePosixPath, int] = {}
    written = done_bytes = reported = 0
    for member in members:
        where = place(member)
        written += destination.write(where, member, member.size)
        sizes[where] = member.size
        done_bytes += member.size
        if done_bytes - reported >= PROGRESS_EVERY_BYTES:
            reported, total_bytes = done_bytes, max(total_bytes, done_bytes)
            report(ArchiveProgress(phase=phase, done_bytes=done_bytes, total_bytes=total_bytes, files=len(sizes)))
    report(ArchiveProgress(phase=phase, done_bytes=done_bytes, total_bytes=done_bytes, files=len(sizes)))
    return Unpacked(sizes=sizes, written=written)


def check_md5(
    archive: Path,
    wanted: str | None,
    destination: Destination,
    progress: Report,
    mistaken: Mapping[str, str] | None = None,
) -> None:
    """Checks the archive's md5, once while it is unchanged; `mistaken` describes files of other md5s."""
    if wanted is None:
        return
    status = archive.stat()
    marker = STATE / f"{archive.name}.json"
    seen = {"md5": wanted, "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    if read_json(destination, marker) == seen:  # checked already and unchanged since
        return
    compare_md5(archive, wanted, progress, mistaken)
    write_json(destination, marker, seen)


def compare_md5(archive: Path, wanted: str, progress: Report, mistaken: Mapping[str, str] | None = None) -> None:
    """Reads the archive; NotReadyError if its md5 differs."""
    found = _md5_of(archive, progress)
    if found == wanted:
        return
    if mistaken and found in mistaken:
        raise NotReadyError(f"{archive} is {mistaken[found]}")
    raise NotReadyError(f"{archive} has md5 {found}, not {wanted}; it is another file or was damaged, fetch it again")


def _md5_of(path: Path, progress: Report) -> str:
    digest = hashlib.md5(usedforsecurity=False)  # published by the authors; against damage, not forgery
    try:
        with path.open("rb", buffering=0) as file:
            total_bytes, done_bytes, reported = os.fstat(file.fileno()).st_size, 0, 0
            while data := file.read(4 << 20):
                digest.update(data)
                done_bytes += len(data)
                if done_bytes - reported >= PROGRESS_EVERY_BYTES or done_bytes == total_bytes:
                    reported = done_bytes
                    progress(ArchiveProgress(phase="checksum", done_bytes=done_bytes, total_bytes=total_bytes))
    except OSError as error:
        raise NotReadyError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def _check_space(
    out: Path, whole_bytes: float, folders: tuple[str, ...], free_bytes: Callable[[Path], int] | None
) -> None:
    """NotReadyError if the disk is too small for a set of `whole_bytes`, less what its `folders` in `out` hold."""
    there = sum(_bytes_below(out / folder) for folder in folders)
    needed = max(0, int(whole_bytes) - there)
    free = (free_bytes or _free_bytes)(out)
    if free < needed:
        raise NotReadyError(
            f"{out} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB more are needed; "
            "free some or choose another disk"
        )


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _bytes_below(folder: Path) -> int:
    return sum(
        (Path(where) / name).lstat().st_size for where, _, names in os.walk(folder, followlinks=False) for name in names
    )


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Holds a lock: two preparations of one folder would remove each other's unfinished files."""
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotReadyError(f"another preparation is running in {out}; wait for it or stop it") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(folder)


def read_json(destination: Destination, path: PurePosixPath) -> object:
    """State written by an earlier run; None if missing."""
    try:
        return json.loads(destination.read(path) or b"null")
    except ValueError:
        return None  # damaged: the work is done again


def write_json(destination: Destination, path: PurePosixPath, value: object) -> None:
    """Writes state for a later run."""
    data = json.dumps(value).encode()
    destination.write(path, io.BytesIO(data), len(data), keep=False)
