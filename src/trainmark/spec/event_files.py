"""Append-only event files: readable up to the last whole line whatever happened to the writer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec

from trainmark.spec.errors import WorkloadError
from trainmark.spec.events import AnyEvent, Event, LauncherEvent, RankEvent, SamplerEvent, Unknown

Source = Literal["rank", "telemetry", "launcher"]
_NAME = re.compile(r"(rank|telemetry)([0-9]+)\.jsonl|(launcher)\.jsonl")
_KINDS: dict[Source, Any] = {"rank": RankEvent, "telemetry": SamplerEvent, "launcher": LauncherEvent}
_DECODERS: dict[Source, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


class Writer(NamedTuple):
    """Who wrote a file: `rank3.jsonl` is of rank 3, `telemetry0.jsonl` of the sampler beside launcher 0."""

    source: Source
    number: int


def writer_of(name: str) -> Writer | None:
    """By a file's name; None where it is no event file."""
    if not (match := _NAME.fullmatch(name)):
        return None
    return Writer(cast(Source, match[1] or match[3]), int(match[2] or 0))


class EventWriter:
    """Writes one JSON line an event, in one write call, so that lines are whole or missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._descriptor).st_size:  # whoever wrote before may have been killed in the middle of a line
            os.write(self._descriptor, b"\n")

    def write(self, event: Event) -> None:
        line = memoryview(self._encoder.encode(event) + b"\n")
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
        writer = writer_of(path.name)
        self._source: Source = writer.source if writer else "rank"
        self._offset = 0
        self._rest = b""

    def new_events(self) -> Iterator[AnyEvent | Unknown]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if (event := read_line(line, self._source)) is not None:
                yield event

    @property
    def torn(self) -> bool:
        """True where the file ends in the middle of a line."""
        return bool(self._rest)


def read_line(line: bytes, source: Source) -> AnyEvent | Unknown | None:
    """The event of a line; None where the line is no event at all."""
    event: AnyEvent
    try:
        event = _DECODERS[source].decode(line)
        return event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        document = json.loads(line)  # which knows NaN, as files of earlier versions may hold
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("event"), str):
        return None
    try:
        event = msgspec.convert(document, _KINDS[source])
        return event
    except (msgspec.ValidationError, RecursionError):
        return Unknown(kind=document["event"], raw=line)
