"""A disk that takes half of what is written to a new file, and no more."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest


class HalfWritten(io.FileIO):
    def write(self, data: Any) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path.open

    def opened(self: Path, mode: str = "r", *words: Any, **more: Any) -> Any:
        return HalfWritten(self, "x") if "x" in mode else usual(self, mode, *words, **more)

    monkeypatch.setattr(Path, "open", opened)
