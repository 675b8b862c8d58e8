"""Writes files and folders atomically: under a temporary name first, then by a rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from trainmark.record.errors import NotReadyError
from trainmark.record.foreign_files import open_plain

UNFINISHED = ".part"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomic(path: Path, content: bytes, *, beside: Path | None = None, synced: bool = False) -> None:
    """Writes a file in one step, creating its parent folders; OSError where that fails.

    A killed process leaves a file that ends in `UNFINISHED` in `beside`, by default next to `path`. Unless `synced`, a
    power cut may tear the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _unfinished_file(beside or path.parent, content, synced=synced) as unfinished:
        unfinished.replace(path)


@contextlib.contextmanager
def _unfinished_file(folder: Path, content: bytes, *, synced: bool) -> Iterator[Path]:
    """A file under a temporary name, gone at the end unless it was renamed."""
    unfinished = folder / f".{secrets.token_hex(8)}{UNFINISHED}"
    try:
        with unfinished.open("xb") as stream:
            stream.write(content)
            if synced:
                stream.flush()
                os.fsync(stream.fileno())
        yield unfinished
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_user_file(path: Path, content: bytes) -> None:
    """Writes to a path the user named: links are followed, pipes and devices written to, no folder is created.

    NotReadyError where that fails.
    """
    path = path.expanduser()
    try:
        if is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                stream.write(content)
            return
        file = path.resolve()
        if not file.parent.is_dir():
            raise NotReadyError(f"cannot write {path}: folder {file.parent} does not exist; create it first")
        write_atomic(file, content)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError before Python 3.13
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadyError(f"cannot write {path}: {reason}; choose another place") from error


def is_stream(path: Path) -> bool:
    """Whether the path is a pipe, a terminal or a device rather than a file to replace."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    # what a shell opened for us is there too, and must not be replaced even if it is a file
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or path.absolute().is_relative_to("/dev")


@contextlib.contextmanager
def atomic_folder(final: Path, *, beside: Path | None = None) -> Iterator[Path]:
    """A folder to fill, renamed to `final` at the end, replacing an existing one; an error leaves nothing behind.

    A killed process leaves a hidden folder that ends in `UNFINISHED`.
    """
    unfinished = (beside or final.parent) / f".{final.name}-{secrets.token_hex(4)}{UNFINISHED}"
    replaced = unfinished.with_name(f".{final.name}-{secrets.token_hex(4)}{UNFINISHED}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(replaced)  # fast, unlike removing it
        try:
            unfinished.rename(final)
        except OSError:
            if replaced.exists():
                replaced.rename(final)
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def write_once(path: Path, content: bytes) -> None:
    """Writes a file atomically; FileExistsError if the name is taken, even by a concurrent writer."""
    with _unfinished_file(path.parent, content, synced=True) as unfinished:
        try:
            os.link(unfinished, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb"):  # no hard links: take the name first, then replace it
                pass
            unfinished.replace(path)
    for folder in (path.parent, path.parent.parent):
        sync(folder)  # the name must survive a power cut, too


def sync(path: Path) -> None:
    """Flushes a file or a folder to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks cannot sync a folder
            raise
    finally:
        os.close(opened)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
