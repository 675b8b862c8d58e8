"""Takes files out of archives that nobody vouches for: only plain files, only inside the folder, only so many.

A tar is read front to back, block by block, so it may be a pipe, a compressed file or a member of another
archive; `tarfile` reads single headers, the walk is ours, because `tarfile` takes damage in the middle of an archive
for its end. A zip is read by its own list of contents. Nothing is executed, no link is made or followed, and every
refusal names the archive and the member.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Protocol

from trainmark.spec.errors import NotReadyError
from trainmark.spec.whole_files import UNFINISHED

_BLOCK = 512
_CHUNK = 1 << 20
_WORTH_SEEKING = 8 << 10
"""Bytes from which on passing over them is quicker by a seek than by reading."""
_LONGEST_EXTENDED_HEADER = 64 << 10
_LONGEST_PART = 240  # bytes in one part of a name; 255 is the usual limit, and a temporary name needs a few more

_REFUSED_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGLINK: "a link",
}


class Readable(Protocol):
    """Anything that gives bytes in order; `b""` is the end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class ArchiveLimits:
    """What one archive may hold at most; more is taken for an attack or the wrong file."""

    files: int
    total_bytes: int


class Member:
    """One plain file in an archive: its checked name, its size, and its bytes, to be read before the next member."""

    def __init__(self, archive: str, name: str, size: int, source: Readable) -> None:
        self.archive = archive
        self.name = name
        self.size = size
        self._source = source
        self._left = size

    def __str__(self) -> str:
        return f"{self.archive}: member {self.name!r}"

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes of this member; `b""` at its end."""
        wanted = min(size, self._left)
        if not wanted:
            return b""
        data = _read(self._source, wanted, self.archive)
        if not data:
            raise NotReadyError(f"{self} is cut off {self._left} bytes before its end; fetch the archive again")
        self._left -= len(data)
        return data

    def skip(self, size: int) -> None:
        """Passes over bytes without reading them where the archive allows it."""
        size = min(size, self._left)
        _skip(self._source, size, self.archive)
        self._left -= size

    def finish(self) -> None:
        """Passes over what was not read, and the padding behind."""
        self.skip(self._left)
        _skip(self._source, -self.size % _BLOCK, self.archive)


def members(source: Readable, archive: str, limits: ArchiveLimits) -> Iterator[Member]:
    """The plain files of a tar archive in order; folders are passed over, everything else is refused.

    `archive` names it in errors. A member that is itself a tar can be given as the next `source`. The end mark must be
    there: an archive cut off between two members is refused like one cut off within.
    """
    seen: set[str] = set()
    total_bytes = 0
    overrides: dict[str, str] = {}
    after = "at its very start"
    headers = 0
    while (block := _block(source, archive, after)) is not None:
        headers += 1
        if headers > 3 * limits.files + 100:  # folders and extended headers cost time, even if nothing is written
            raise NotReadyError(f"{archive}: more than {headers - 1} headers for at most {limits.files} files")
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise NotReadyError(
                f"{archive} is no tar archive or is damaged {after} ({error}); fetch it again"
            ) from error
        if header.size < 0:
            raise NotReadyError(f"{archive}: member {header.name!r} has the size {header.size}")
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
            overrides |= _extended_header(source, header, archive)
            continue
        name, size = overrides.get("path", header.name), _size(overrides, header, archive)
        is_file, is_folder = header.type in (tarfile.REGTYPE, tarfile.AREGTYPE), header.isdir()
        overrides = {}
        if not is_file and not is_folder:
            kind = _REFUSED_KINDS.get(header.type, f"of the unknown kind {header.type!r}")
            raise NotReadyError(f"{archive}: member {name!r} is {kind}; only plain files are taken from archives")
        if is_folder and size:
            raise NotReadyError(f"{archive}: folder {name!r} has a size; the archive is damaged")
        after = f"after member {name!r}"
        if is_folder:
            continue
        name = str(safe_path(name, archive))
        if name in seen:
            raise NotReadyError(f"{archive}: member {name!r} occurs twice; which one is meant cannot be known")
        seen.add(name)
        total_bytes += size
        if len(seen) > limits.files:
            raise NotReadyError(f"{archive}: more than {limits.files} files, at member {name!r}; refused as too many")
        if total_bytes > limits.total_bytes:
            raise NotReadyError(
                f"{archive}: more than {limits.total_bytes} bytes unpacked, at member {name!r}; refused as too large"
            )
        member = Member(archive, name, size, source)
        yield member
        member.finish()


def zip_members(archive: Path, limits: ArchiveLimits) -> Iterator[Member]:
    """The plain files of a zip archive in its order, each held to its checksum once it is read to its end; folders are
    passed over, and all that `members` refuses is refused here."""
    try:
        file = zipfile.ZipFile(archive)
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotReadyError(f"{archive} is no zip archive, or it is cut short ({reason}); fetch it again") from error
    seen: set[str] = set()
    total_bytes = 0
    with file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise NotReadyError(
                    f"{archive.name}: member {info.filename!r} is a link or a device; only plain files are taken"
                )
            if info.is_dir():
                continue
            if info.flag_bits & 1:
                raise NotReadyError(
                    f"{archive.name}: member {info.filename!r} is encrypted; only plain files are taken"
                )
            name = str(safe_path(info.filename, archive.name))
            if name in seen:
                raise NotReadyError(f"{archive.name}: member {name!r} occurs twice; which one is meant cannot be known")
            seen.add(name)
            total_bytes += info.file_size
            if len(seen) > limits.files or total_bytes > limits.total_bytes:
                raise NotReadyError(
                    f"{archive.name}: more than {limits.files} files or {limits.total_bytes} bytes, at member "
                    f"{name!r}; refused as too many"
                )
            try:
                source = file.open(info)
            except (NotImplementedError, RuntimeError, zipfile.BadZipFile, OSError) as error:
                raise NotReadyError(
                    f"{archive.name}: member {name!r} cannot be read ({error}); fetch it again"
                ) from error
            with source:
                yield Member(archive.name, name, info.file_size, source)


def safe_path(name: str, archive: str) -> PurePosixPath:
    """The member's place below the destination; a name that leads elsewhere or cannot be shown is refused."""
    path = PurePosixPath(name)
    if not name.isprintable():
        raise NotReadyError(f"{archive}: member {name!r} has control or undecodable characters in its name")
    if path.is_absolute():
        raise NotReadyError(f"{archive}: member {name!r} has an absolute name; it would be written outside the folder")
    if ".." in path.parts:
        raise NotReadyError(f"{archive}: member {name!r} has '..' in its name; it would be written outside the folder")
    if not path.parts:
        raise NotReadyError(f"{archive}: member {name!r} has no name")
    if any(len(part.encode()) > _LONGEST_PART for part in path.parts):
        raise NotReadyError(f"{archive}: member {name[:60]!r}... has too long a name")
    return path


class Destination:
    """A folder that files are written into; below it no symbolic link is ever followed.

    Every folder on the way is opened relative to the one above it with O_NOFOLLOW, so a link planted at any time
    is an error and never a way out. The folder itself may be reached through links: it is what the user asked for.
    Folders that were made for nothing, because something was refused, are removed again.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made = [path for path in (*reversed(root.parents), root) if not path.exists()]
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise NotReadyError(f"cannot write to the folder {root}: {error.strerror}") from error

    def __enter__(self) -> Destination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._root_fd)
        for path in reversed(self._made) if error is not None else ():
            with suppress(OSError):  # something is in it
                path.rmdir()

    def write(self, path: PurePosixPath, source: Readable, size: int, *, keep: bool = True) -> bool:
        """Writes a file with mode 0644, whole or not at all; False if a file of that size was there and was kept.

        Whole after a kill, that is: nothing is synced to disk here, a million times over.
        """
        try:
            folder = self._open_folder(path.parent)
        except OSError as error:
            raise self._cannot_write(path, error) from error
        try:
            if _size_of_file(folder, path.name) == size and keep:
                return False
            _write_stream(folder, path.name, source, size)
        except OSError as error:
            raise self._cannot_write(path, error) from error
        finally:
            os.close(folder)
        return True

    def read(self, path: PurePosixPath) -> bytes | None:
        """The content of a small file, None if there is none."""
        try:
            folder = self._open_folder(path.parent)
        except OSError as error:
            raise self._cannot_write(path, error) from error
        try:
            with os.fdopen(os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotReadyError(f"cannot read {self.root / path}: {error.strerror}") from error
        finally:
            os.close(folder)

    def files(self, path: PurePosixPath) -> tuple[int, int]:
        """How many plain files a folder holds, and their bytes; unfinished ones left by a kill are not counted."""
        try:
            folder = self._open_folder(path)
        except OSError as error:
            raise self._cannot_write(path, error) from error
        try:
            with os.scandir(folder) as entries:
                sizes = [
                    entry.stat(follow_symlinks=False).st_size
                    for entry in entries
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
                ]
        finally:
            os.close(folder)
        return len(sizes), sum(sizes)

    def _open_folder(self, path: PurePosixPath) -> int:
        folder, here = os.dup(self._root_fd), self.root
        for part in path.parts:
            here /= part
            try:
                below, is_new = _open_or_make_folder(folder, part)
            finally:
                os.close(folder)
            folder = below
            if is_new:
                self._made.append(here)
        return folder

    def _cannot_write(self, path: PurePosixPath, error: OSError) -> NotReadyError:
        target = self.root / path
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return NotReadyError(f"cannot write {target}: a link or a file stands where a folder is due; remove it")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NotReadyError(f"the disk is full at {target}; free some space and start again, it goes on from here")
        return NotReadyError(f"cannot write {target}: {error.strerror}")


def unpack(archive: Path, out: Path, limits: ArchiveLimits) -> int:
    """Every file of an archive (plain, gzip, bzip2 or xz) into a folder; those already there with their size are kept.

    Returns how many files the archive holds.
    """
    count = 0
    with Destination(out) as destination, closing(open_archive(archive)) as source:
        for member in members(source, archive.name, limits):
            destination.write(PurePosixPath(member.name), member, member.size)
            count += 1
    return count


class Archive(Readable, Protocol):
    """An open archive file."""

    def close(self) -> None: ...


def open_archive(path: Path) -> Archive:
    """Opens an archive for `members`, decompressing by what its first bytes say, not by its name."""
    try:
        file = path.open("rb")
        magic = file.read(6)
    except OSError as error:
        raise NotReadyError(f"cannot read the archive {path}: {error.strerror}") from error
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        file.close()
        return gzip.open(path, "rb")
    if magic.startswith(b"BZh"):
        file.close()
        return bz2.open(path, "rb")
    if magic == b"\xfd7zXZ\x00":
        file.close()
        return lzma.open(path, "rb")
    return file


def _read(source: Readable, size: int, archive: str) -> bytes:
    try:
        return source.read(min(size, _CHUNK))
    except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise NotReadyError(f"{archive} cannot be read to its end ({error}); fetch it again") from error


def _read_fully(source: Readable, size: int, archive: str) -> bytes:
    parts = []
    while size and (data := _read(source, size, archive)):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _skip(source: Readable, size: int, archive: str) -> None:
    if isinstance(source, Member):
        source.skip(size)
        return
    seek = getattr(source, "seek", None)
    if size > _WORTH_SEEKING and seek is not None and source.seekable():  # type: ignore[attr-defined]
        seek(size, os.SEEK_CUR)
        return
    while size and (data := _read(source, size, archive)):
        size -= len(data)


def _block(source: Readable, archive: str, after: str) -> bytes | None:
    """The next header block; None at the end mark."""
    block = _read_fully(source, _BLOCK, archive)
    if len(block) < _BLOCK:
        raise NotReadyError(f"{archive} is cut off {after}; fetch it again")
    return block if any(block) else None


def _extended_header(source: Readable, header: tarfile.TarInfo, archive: str) -> dict[str, str]:
    """What a header before a header says of the member to come: its long name, its size, or nothing we need."""
    if header.size > _LONGEST_EXTENDED_HEADER:
        raise NotReadyError(f"{archive}: a header of {header.size} bytes; no honest archive has one")
    data = _read_fully(source, header.size, archive)
    _skip(source, -header.size % _BLOCK, archive)
    try:
        if header.type == tarfile.GNUTYPE_LONGNAME:
            return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
        fields = _pax_fields(data)
    except (ValueError, IndexError) as error:
        raise NotReadyError(f"{archive}: an extended header is damaged; fetch the archive again") from error
    if any(key.startswith("GNU.sparse.") for key in fields):
        raise NotReadyError(f"{archive}: member {fields.get('path', '')!r} is a sparse file")
    wanted = {key: value for key, value in fields.items() if key in ("path", "size")}
    if header.type == tarfile.XGLTYPE and wanted:
        raise NotReadyError(f"{archive}: a global header sets {' and '.join(wanted)} for all members; refused")
    return wanted


def _pax_fields(data: bytes) -> dict[str, str]:
    """Parses records of the form `LENGTH KEY=VALUE\\n`, where LENGTH counts the whole record."""
    fields = {}
    while data:
        digits, _, _ = data.partition(b" ")
        length = int(digits)
        record, data = data[:length], data[length:]
        if length <= len(digits) + 1 or len(record) < length or record[-1:] != b"\n":
            raise ValueError("a record does not end where it says")
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals:
            raise ValueError("a record has no value")
        fields[key.decode()] = value.decode("utf-8", "surrogateescape")
    return fields


def _size(overrides: dict[str, str], header: tarfile.TarInfo, archive: str) -> int:
    text = overrides.get("size")
    if text is None:
        return header.size
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise NotReadyError(f"{archive}: member {header.name!r} has the size {text[:40]!r}")
    return int(text)


def _open_or_make_folder(parent: int, name: str) -> tuple[int, bool]:
    """The folder, and whether it was made now."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=parent), False
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent), True


def _size_of_file(folder: int, name: str) -> int | None:
    """The size of a plain file, None if there is none; anything else under that name is an error."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EEXIST, "a link, a folder or a device stands in its place; remove it")
    return status.st_size


def _write_stream(folder: int, name: str, source: Readable, size: int) -> None:
    """As `whole_files` does, but piece by piece and relative to a folder that is open, so that no link leads away."""
    partial = f".{name}{UNFINISHED}"
    if _size_of_file(folder, partial) is not None:  # left by a run that was killed
        os.unlink(partial, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(partial, flags, 0o600, dir_fd=folder), "wb") as file:
            left = size
            while left and (data := source.read(min(left, _CHUNK))):
                file.write(data)
                left -= len(data)
            if left:
                raise NotReadyError(f"the content of {name!r} ends {left} bytes early")
            os.fchmod(file.fileno(), 0o644)
    except BaseException:
        os.unlink(partial, dir_fd=folder)
        raise
    os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
