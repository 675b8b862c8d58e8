"""Reads files that others may have put in place: plain files only, without waiting for them, up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_RECORD_BYTES = 128 << 20
"""Of a record; one of 100,000 ranks has 30 MB."""
MAX_BYTES = 16 << 20
"""Of any other document of a run: plan, head, manifest, sample."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotPlainError(OSError):
    """A pipe, a device or a folder is in place of a file."""


def open_plain(path: Path) -> BinaryIO:
    """A plain file, or a link to one, open for reading; NotPlainError for anything else."""
    _check_plain(path.stat())  # opening a device may already do something
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_plain(os.fstat(opened))  # it may have been replaced meanwhile
    except OSError:
        os.close(opened)
        raise
    return os.fdopen(opened, "rb")


def read_plain(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a plain file; OSError where it is none, cannot be read or has more than `most` bytes."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"{size >> 20} MiB, and at most {most >> 20} are read")
        return file.read(most)


def _check_plain(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise NotPlainError(errno.EINVAL, f"{_KINDS.get(kind, 'something else')}, not a file")
