"""Writes a file or a folder whole or not at all: under another name first, which a reader never sees."""

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

UNFINISHED = ".part"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_atomic(path: Path, content: bytes, *, beside: Path | None = None, synced: bool = False) -> None:
    """Makes the folders of `path` and puts the content there in one step; OSError where that cannot be done.

    What a killed process leaves behind ends in `UNFINISHED` and lies in `beside`, or else next to `path`. Unless it is
    `synced`, after a power cut a file may be torn.
    """
    unfinished = (beside or path.parent) / f".{secrets.token_hex(8)}{UNFINISHED}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as stream:
            stream.write(content)
            if synced:
                stream.flush()
                os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_user_file(path: Path, content: bytes) -> None:
    """To a place the user names: a link is followed, a pipe or a device is written to, and no folder is made.

    NotReadyError where that cannot be done.
    """
    path = path.expanduser()
    try:
        if is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                stream.write(content)
            return
        file = path.resolve()
        if not file.parent.is_dir():
            raise NotReadyError(f"cannot write {path}: there is no folder {file.parent}; make it, or choose another")
        write_atomic(file, content)
    except (OSError, RuntimeError) as error:  # links that lead to each other are a RuntimeError before Python 3.13
        reason = getattr(error, "strerror", None) or str(error)
        raise NotReadyError(f"cannot write {path}: {reason}; choose another place") from error


def is_stream(path: Path) -> bool:
    """Whether what is there is no file to be replaced: a pipe, a terminal, a device, `/dev/stdout`."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    # what a shell has opened for us is named there too, and is not ours to replace even where it is a file
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or path.absolute().is_relative_to("/dev")


@contextlib.contextmanager
def atomic_folder(final: Path, *, beside: Path | None = None) -> Iterator[Path]:
    """A folder to fill, which becomes `final` in one step at the end; what went wrong before leaves nothing behind.

    A folder that is there already is replaced. What a killed process leaves is hidden and ends in `UNFINISHED`.
    """
    unfinished = (beside or final.parent) / f".{final.name}-{secrets.token_hex(4)}{UNFINISHED}"
    replaced = unfinished.with_name(f".{final.name}-{secrets.token_hex(4)}{UNFINISHED}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            final.rename(replaced)  # which takes no time, as removing it would
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
        sync(folder)  # the name must survive a power cut too, not only the content


def sync(path: Path) -> None:
    """A file or a folder is on disk when this returns."""
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
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
