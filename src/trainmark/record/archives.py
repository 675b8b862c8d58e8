"""Extracts files from untrusted archives: plain files only, inside the folder only, within limits.

Nothing is executed, no link is created or followed, and every refusal names the archive and the member.
"""

from __future__ import annotations

import errno
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from trainmark.record.atomic_files import UNFINISHED
from trainmark.record.errors import NotReadyError

_CHUNK = 1 << 20
_MAX_EXTENDED_HEADER = 64 << 10
_MAX_NAME_PART = 240  # bytes in one part of a name; 255 is the usual limit, and a temporary name needs a few more
_EXTENDED = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, *tarfile.GNU_TYPES)
_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)

_END_MARK: Any = vars(tarfile)["EOFHeaderError"]  # what a block of zeros raises


class Readable(Protocol):
    """A source of bytes; `b""` is the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """What one archive may hold at most; more is an attack or the wrong file."""

    files: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One plain file in an archive; its bytes must be read before the next member."""

    archive: str
    name: str
    size: int
    content: IO[bytes]
    offset: int = 0
    """Where its bytes begin in an archive that is not compressed."""

    def __str__(self) -> str:
        return f"{self.archive}: member {self.name!r}"

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self.content.read(size)
        except _DAMAGE as error:
            raise NotReadyError(f"{self} is cut off or damaged ({error}); fetch it again") from error


class _StrictTarInfo(tarfile.TarInfo):
    """A header whose damage is an error, where `tarfile` alone would take it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictTarInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0:
            raise tarfile.ReadError(f"member {info.name!r} has the size {info.size}")
        if info.type in _EXTENDED and info.size > _MAX_EXTENDED_HEADER:
            raise tarfile.ReadError(f"a header of {info.size} bytes, which no honest archive has")
        return info

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _StrictTarInfo:
        try:
            return super().fromtarfile(tar)
        except _END_MARK:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


class _Gate:
    """Admits members of one archive while their names and sizes are within limits."""

    def __init__(self, archive: str, limits: ArchiveLimits) -> None:
        self._archive, self._limits = archive, limits
        self._seen: set[str] = set()
        self._bytes = 0

    def admit(self, name: str, size: int) -> str:
        """The name, checked."""
        name, limits = str(safe_path(name, self._archive)), self._limits
        if name in self._seen:
            raise NotReadyError(f"{self._archive}: member {name!r} occurs twice; which one is meant is unknown")
        if size < 0:
            raise NotReadyError(f"{self._archive}: member {name!r} has the size {size}")
        self._seen.add(name)
        self._bytes += size
        if len(self._seen) > limits.files or self._bytes > limits.total_bytes:
            raise NotReadyError(
                f"{self._archive}: more than {limits.files} files or {limits.total_bytes} bytes, at member {name!r}; "
                "refused as too large"
            )
        return name


def tar_members(source: Path | Readable, archive: str, limits: ArchiveLimits) -> Iterator[Member]:
    """The plain files of a tar archive in order; folders are skipped, everything else is refused.

    `source` is a file, compressed or not, or a stream of its bytes; `archive` names it in errors. The end mark is
    required: an archive cut off between two members is refused too.
    """
    gate, after = _Gate(archive, limits), "at its very start"
    try:
        with _open_tar(source) as tar:
            for number, info in enumerate(tar):
                tar.members = []  # type: ignore[attr-defined]  # keep no list: an archive may hold millions
                if number > 3 * limits.files + 100:  # folders cost time, even if nothing is written
                    raise NotReadyError(f"{archive}: more than {number} headers for at most {limits.files} files")
                if kind := _refused_kind(info):
                    raise NotReadyError(
                        f"{archive}: member {info.name!r} is {kind}; only plain files are taken from archives"
                    )
                after = f"after member {info.name!r}"
                content = tar.extractfile(info)
                if content is not None:
                    name = gate.admit(info.name, info.size)
                    yield Member(archive=archive, name=name, size=info.size, content=content, offset=info.offset_data)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise NotReadyError(f"cannot read the archive {source}: {error.strerror}") from error
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise NotReadyError(
            f"{archive} is cut off or damaged {after}, or no tar archive ({reason}); fetch it again"
        ) from error


def _open_tar(source: Path | Readable) -> tarfile.TarFile:
    options: dict[str, Any] = {"tarinfo": _StrictTarInfo, "encoding": "utf-8"}
    if isinstance(source, Path):
        return tarfile.open(source, "r:*", **options)
    stream: Any = source
    can_seek = hasattr(stream, "seekable") and stream.seekable()
    return tarfile.open(fileobj=stream, mode="r:" if can_seek else "r|", **options)


def _refused_kind(info: tarfile.TarInfo) -> str:
    """The kind of a member that is neither a file nor a folder; empty for those."""
    if info.issym() or info.islnk():
        return "a link"
    if info.isdev():
        return "a device or a named pipe"
    if info.issparse():
        return "a sparse file"
    plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
    return "" if plain else f"of the unknown kind {info.type!r}"


def zip_members(archive: Path, limits: ArchiveLimits) -> Iterator[Member]:
    """The plain files of a zip archive in order, each verified by its checksum once read to its end; refuses what
    `tar_members` refuses."""
    gate = _Gate(archive.name, limits)
    try:
        file = zipfile.ZipFile(archive)
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:  # of a version not known yet
        reason = getattr(error, "strerror", None) or error
        raise NotReadyError(f"{archive} is no zip archive, or it is cut short ({reason}); fetch it again") from error
    with file:
        for info in file.infolist():
            is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            if not is_plain or info.flag_bits & 1:
                what = "encrypted" if is_plain else "a link or a device"
                raise NotReadyError(f"{archive.name}: member {info.filename!r} is {what}; only plain files are taken")
            if info.is_dir():
                continue
            name = gate.admit(info.filename, info.file_size)
            try:
                content = file.open(info)
            except (NotImplementedError, RuntimeError, zipfile.BadZipFile, OSError) as error:
                raise NotReadyError(
                    f"{archive.name}: member {name!r} cannot be read ({error}); fetch it again"
                ) from error
            with content:
                yield Member(archive=archive.name, name=name, size=info.file_size, content=content)


def safe_path(name: str, archive: str) -> PurePosixPath:
    """The member's path below the destination; a name that leads outside or is not printable is refused."""
    path, problem = PurePosixPath(name), ""
    if not name.isprintable():
        problem = "control or undecodable characters in its name"
    elif path.is_absolute():
        problem = "an absolute name; it would be written outside the folder"
    elif ".." in path.parts:
        problem = "'..' in its name; it would be written outside the folder"
    elif not path.parts:
        problem = "no name"
    elif any(len(part.encode()) > _MAX_NAME_PART for part in path.parts):
        problem = "too long a name"
    if problem:
        raise NotReadyError(f"{archive}: member {name[:100]!r} has {problem}")
    return path


class Destination:
    """A folder that files are written into; below it no symbolic link is followed.

    The folder itself may be reached through links: it is what the user named. Folders created before a refusal are
    removed again.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made = [path for path in (*reversed(root.parents), root) if not path.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"cannot write to the folder {root}: {error.strerror}") from error

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for path in reversed(self._made) if error is not None else ():
            with suppress(OSError):  # not empty
                path.rmdir()

    def write(self, path: PurePosixPath, source: Readable, size: int) -> bool:
        """Writes a file with mode 0644 atomically; False if a file of that size existed and was kept.

        Atomic against a kill only: nothing is synced to disk, as there may be a million files.
        """
        target = self._make_folder(path.parent) / path.name
        partial = target.with_name(f".{path.name}{UNFINISHED}")
        try:
            if _size_of_file(target) == size:
                return False
            if _size_of_file(partial) is not None:  # left by a killed process
                partial.unlink()
            try:
                _write_stream(partial, source, size, path.name)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
            partial.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NotReadyError(
                    f"the disk is full at {target}; free some space and start again to continue"
                ) from error
            raise NotReadyError(f"cannot write {target}: {error.strerror}") from error
        return True

    def _make_folder(self, path: PurePosixPath) -> Path:
        folder = self.root
        for part in path.parts:
            folder /= part
            try:
                folder.mkdir()
                self._made.append(folder)
            except FileExistsError:
                if folder.is_symlink() or not folder.is_dir():
                    raise NotReadyError(
                        f"cannot write {folder}: a link or a file is in place of a folder; remove it"
                    ) from None
            except OSError as error:
                raise NotReadyError(f"cannot write {folder}: {error.strerror}") from error
        return folder


def _size_of_file(path: Path) -> int | None:
    """The size of a plain file, None if there is none; anything else of that name is an OSError."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EEXIST, "a link, a folder or a device stands in its place; remove it")
    return status.st_size


def _write_stream(path: Path, source: Readable, left: int, name: str) -> None:
    with path.open("xb") as file:
        while left and (data := source.read(min(left, _CHUNK))):
            file.write(data)
            left -= len(data)
        if left:
            raise NotReadyError(f"the content of {name!r} ends {left} bytes early")
        os.fchmod(file.fileno(), 0o644)
