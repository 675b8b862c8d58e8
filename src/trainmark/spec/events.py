"""Append-only event files, one a rank: readable up to the last whole line whatever happened to the writer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmark.spec.errors import WorkloadError


class EventWriter:
    """Writes one JSON line an event, in one write call, so that lines are whole or missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size:  # whoever wrote before may have been killed in the middle of a line
            os.write(self._descriptor, b"\n")

    def write(self, kind: str, **fields: Any) -> None:
        line = memoryview(json.dumps({"event": kind, **fields}, ensure_ascii=False).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError as error:
            raise WorkloadError(
                f"cannot write {self.path}: {error.strerror}; what was written before is kept"
            ) from error

    def close(self) -> None:
        os.close(self._descriptor)


class EventTail:
    """Reads a growing event file; a half-written last line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def new_events(self) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event

    @property
    def torn(self) -> bool:
        """True where the file ends in the middle of a line."""
        return bool(self._rest)
