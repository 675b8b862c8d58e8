"""Record files: read in full, skimmed for a list, and written once and for good."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.spec.errors import TrainmarkError, UsageError
from trainmark.store.rows import Row, row_of

if TYPE_CHECKING:
    from trainmark.spec.record import Record

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_DAMAGE = (TrainmarkError, ValueError, AttributeError, RecursionError)

_LONG_LIST = re.compile(rb"\[([0-9., ]{200,})\]")
_ILL_FORMED = (re.compile(rb" [.,]"), re.compile(rb"\.,"), re.compile(rb" 0[0-9]"))
"""In a list of digits, points and commas: a number without digits or with none on one side of its point, a leading
zero. One search each is faster than one for all, as each has signs of its own to jump to."""


def read_record(path: Path) -> Record:
    """The record in a file, or a sentence that names the file and what is wrong with it."""
    from trainmark.spec.record import Record

    try:
        return Record.from_json(_parsed(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"record file {path} cannot be read: {error.strerror}") from error
    except _DAMAGE as error:
        raise UsageError(f"record file {path} is damaged: {_reason(error)}") from error


def read_row(path: Path) -> Row:
    """What lists show of the record in a file; of a damaged one the same sentence as `read_record`.

    Nearly all of a record is its series, which no list shows: they are checked to be numbers, not read as such.
    """
    from trainmark.spec.record import Record

    try:
        return row_of(Record.from_json(_parsed(_without_series(path.read_bytes()).decode())))
    except (OSError, *_DAMAGE):
        record = read_record(path)  # says what is wrong, and where in the file that stands
    try:
        return row_of(record)
    except ValueError as error:
        raise UsageError(f"record file {path} is damaged: {error}") from error


def _without_series(content: bytes) -> bytes:
    """The document with its long lists of numbers empty, or as it is unless every one is certainly what JSON allows."""
    pieces = _LONG_LIST.split(content)
    # samplers note the same times for every sensor: those are looked at once
    numbers = b", ".join(set(pieces[1::2]))
    left = numbers.translate(None, b"0123456789")
    commas = left.replace(b".", b"")
    framed = b" " + numbers + b","
    one_point_at_most = b".." not in left and commas == b", " * (len(commas) // 2)
    if one_point_at_most and not any(sign.search(framed) for sign in _ILL_FORMED):
        return b"[]".join(pieces[::2])
    return content


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number JSON knows")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return str(error) if isinstance(error, (TrainmarkError, ValueError)) else f"{type(error).__name__} {error}"


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
