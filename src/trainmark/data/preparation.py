"""Prepares a set from its published archives: checksums, disk space, locking, and keeping what an earlier try wrote."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainmark.record.archives import Destination, Member
from trainmark.record.errors import NotReadyError

PROGRESS_EVERY_BYTES = 64 << 20


ReportProgress = Callable[[str, int, int], None]
"""Called with the phase, which is `checksum` or the part of the set that is unpacked, and its bytes done and in all."""


@contextmanager
def prepare_folder(out: Path, archives: Iterable[Path], *, source: str, ratio: float) -> Iterator[Destination]:
    """Locks the folder for one preparation, if the archives exist and the disk has space.

    `source` is where they are downloaded; unpacked, they take `ratio` times their size.
    """
    for archive in archives:
        if not archive.is_file():
            raise NotReadyError(f"archive {archive} does not exist; download it from {source}")
    with Destination(out) as destination, lock_folder(out):
        there = sum(file.lstat().st_size for file in out.rglob("*"))
        needed = max(0, int(ratio * sum(archive.stat().st_size for archive in archives)) - there)
        free = shutil.disk_usage(out).free
        if free < needed:
            raise NotReadyError(
                f"{out} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB more are needed; "
                "free some or choose another disk"
            )
        yield destination


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    files: Counter[str]
    """Files in the destination, by their top folder."""
    written: int
    """Files that did not exist before."""


def unpack(
    members: Iterable[Member],
    place: Callable[[Member], PurePosixPath],
    destination: Destination,
    report: ReportProgress,
    *,
    total_bytes: int,
    phase: str = "unpack",
) -> Unpacked:
    """Writes each member to `place(member)`, unless a file of its size is there; `total_bytes` is an estimate."""
    files: Counter[str] = Counter()
    written = done_bytes = reported = 0
    for member in members:
        where = place(member)
        written += destination.write(where, member, member.size)
        files[where.parts[0]] += 1
        done_bytes += member.size
        if done_bytes - reported >= PROGRESS_EVERY_BYTES:
            reported, total_bytes = done_bytes, max(total_bytes, done_bytes)
            report(phase, done_bytes, total_bytes)
    report(phase, done_bytes, done_bytes)
    return Unpacked(files=files, written=written)


def check_md5(archive: Path, wanted: str, report: ReportProgress) -> None:
    """NotReadyError if the archive's md5 differs."""
    digest = hashlib.md5(usedforsecurity=False)  # published by the authors; against damage, not forgery
    try:
        with archive.open("rb", buffering=0) as file:
            total_bytes, done_bytes, reported = os.fstat(file.fileno()).st_size, 0, 0
            while data := file.read(4 << 20):
                digest.update(data)
                done_bytes += len(data)
                if done_bytes - reported >= PROGRESS_EVERY_BYTES or done_bytes == total_bytes:
                    reported = done_bytes
                    report("checksum", done_bytes, total_bytes)
    except OSError as error:
        raise NotReadyError(f"cannot read {archive}: {error.strerror}") from error
    found = digest.hexdigest()
    if found != wanted:
        raise NotReadyError(
            f"{archive} has md5 {found}, not {wanted}; it is another file or was damaged, fetch it again"
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
