"""Writes a file whole or not at all: under another name first, which a reader never sees."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path

UNFINISHED = ".part"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_whole(path: Path, content: bytes, *, beside: Path | None = None) -> None:
    """Makes the folders of `path` and puts the content there in one step; OSError where that cannot be done.

    What a killed process leaves behind ends in `UNFINISHED` and lies in `beside`, or else next to `path`. Nothing is
    synced: after a power cut a file may be torn.
    """
    unfinished = (beside or path.parent) / f".{secrets.token_hex(8)}{UNFINISHED}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_once(path: Path, content: bytes) -> None:
    """Whole or not at all, and FileExistsError if the name is taken, even by someone who writes it at this moment."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with unfinished.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(unfinished, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb"):  # a disk without hard links: take the name first, then fill it in one move
                pass
            unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    for folder in (path.parent, path.parent.parent):
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """The name must survive a power cut too, not only the content."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot sync a folder
            raise
    finally:
        os.close(opened)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
