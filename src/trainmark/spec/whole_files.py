"""Writes a file whole or not at all: under another name first, which a reader never sees."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from pathlib import Path

UNFINISHED = ".part"


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


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
