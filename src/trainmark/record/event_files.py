"""Append-only event files: readable up to the last complete line whatever happened to the writer.

The newest lines are plain in `rank3.jsonl`. Whenever they reach `CHUNK_BYTES` they are appended, as one gzip member, to
`rank3.jsonl.gz`, and a new plain file replaces the old one; its first line counts the chunks. So a short run leaves one
plain file, and `zcat rank3.jsonl.gz; cat rank3.jsonl` reads any.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import msgspec

from trainmark.record.errors import WorkloadError
from trainmark.record.events import AnyEvent, Event, Folded, LauncherEvent, RankEvent, SamplerEvent, Unknown

CHUNK_BYTES = 1 << 16
"""Bytes of lines per chunk: about a millisecond of work."""
MAX_CHUNK_BYTES = 1 << 26
"""No writer makes a larger chunk; a damaged file must not take all memory."""
COMPRESSION = 2
"""A quarter of the default level's work, for 7 % more bytes."""
FOLDED = ".gz"
HEAD_BYTES = 64
"""Upper bound on the line that counts the chunks."""

Source = Literal["rank", "telemetry", "launcher"]
_NAME = re.compile(r"(rank|telemetry)([0-9]+)\.jsonl|(launcher)\.jsonl")
_KINDS: dict[Source, Any] = {
    "rank": RankEvent | Folded,
    "telemetry": SamplerEvent | Folded,
    "launcher": LauncherEvent | Folded,
}
_DECODERS: dict[Source, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()}


class Writer(NamedTuple):
    """Who writes a file: `rank3.jsonl` rank 3, `telemetry0.jsonl` the sampler of launcher 0."""

    source: Source
    number: int


def parse_writer(name: str) -> Writer | None:
    """The writer by the name of its plain file; None where it is no event file."""
    if not (match := _NAME.fullmatch(name)):
        return None
    return Writer(cast(Source, match[1] or match[3]), int(match[2] or 0))


_HEAD = b'{"event":"folded"'


class EventWriter:
    """Writes one JSON line per event, in one write call, so that lines are complete or missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._one_at_a_time = threading.Lock()  # a sampler's threads share one file
        try:
            self._descriptor = _open_to_append(path)
        except OSError as error:
            raise self._write_error(error) from error
        self._size = os.fstat(self._descriptor).st_size
        self._chunks = 0
        self._fold_at = CHUNK_BYTES
        if self._size:  # an earlier writer may have been killed within a line or a chunk
            os.write(self._descriptor, b"\n")
            self._size += 1
            self._recover()

    def write(self, event: Event) -> None:
        line = self._encoder.encode(event) + b"\n"
        with self._one_at_a_time:
            try:
                _write_all(self._descriptor, line)
            except OSError as error:
                raise self._write_error(error) from error
            self._size += len(line)
            if self._fold_at <= self._size < MAX_CHUNK_BYTES:
                self._fold()

    def _write_error(self, error: OSError) -> WorkloadError:
        return WorkloadError(f"cannot write {self.path}: {error.strerror}; what was written before is kept")

    def close(self) -> None:
        os.close(self._descriptor)

    def _recover(self) -> None:
        """Recovers from a killed writer: drops a torn chunk, and plain lines that are in a chunk already."""
        plain = self.path.read_bytes()
        self._chunks = _chunks_before(plain[:HEAD_BYTES].partition(b"\n")[0])
        ends, last = [0], b""
        with contextlib.suppress(FileNotFoundError), chunks_path(self.path).open("rb") as file:
            for content, end in _members(file):
                last = content
                ends.append(end)
        if len(ends) == self._chunks + 2 and plain.strip() == last.strip():
            self._begin_plain(self._chunks + 1)
        with contextlib.suppress(FileNotFoundError):
            os.truncate(chunks_path(self.path), ends[min(self._chunks, len(ends) - 1)])

    def _fold(self) -> None:
        """Moves the plain lines into a chunk; on a full disk they stay plain."""
        chunks = chunks_path(self.path)
        before = chunks.stat().st_size if chunks.exists() else 0
        try:
            target = _open_to_append(chunks)
            try:
                _write_all(target, gzip.compress(self.path.read_bytes(), COMPRESSION, mtime=0))
            finally:
                os.close(target)
            self._begin_plain(self._chunks + 1)
        except OSError:
            self._fold_at = 2 * self._size
            with contextlib.suppress(OSError):
                os.truncate(chunks, before)

    def _begin_plain(self, chunks: int) -> None:
        head = self._encoder.encode(Folded(chunks=chunks)) + b"\n"
        fresh = self.path.with_name(f".{self.path.name}.part")
        try:
            fresh.write_bytes(head)
            descriptor = _open_to_append(fresh)
            fresh.replace(self.path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor, self._size, self._chunks, self._fold_at = descriptor, len(head), chunks, CHUNK_BYTES


class EventTail:
    """Reads a growing event file; an incomplete last line waits for its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        writer = parse_writer(path.name)
        self._source: Source = writer.source if writer else "rank"
        self._chunk = 0
        """The chunk being read; the last one is still plain."""
        self._chunk_at = 0
        """Its offset among the finished ones."""
        self._offset = 0
        """Bytes of it already read."""
        self._rest = b""
        self._missing = False

    def new_events(self) -> Iterator[AnyEvent | Unknown]:
        for data in self.new_bytes():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if (event := read_line(line, self._source)) is not None and not isinstance(event, Folded):
                    yield event

    def new_bytes(self) -> Iterator[bytes]:
        """What was written since the last call, in parts."""
        try:
            # opened once: the writer may replace the file meanwhile
            with self.path.open("rb") as file:
                chunks = _chunks_before(file.readline(HEAD_BYTES))
                file.seek(self._offset if chunks == self._chunk else 0)
                data = file.read()
        except FileNotFoundError:
            return
        if chunks > self._chunk:
            yield from self._read_finished(chunks)
        self._offset += len(data)
        yield data

    def _read_finished(self, until: int) -> Iterator[bytes]:
        """What is new in the chunks finished since the last call."""
        with contextlib.suppress(FileNotFoundError), chunks_path(self.path).open("rb") as file:
            file.seek(self._chunk_at)
            for content, end in _members(file):
                new, self._offset = content[self._offset :], 0
                self._chunk, self._chunk_at = self._chunk + 1, end
                yield new
                if self._chunk == until:
                    return
        self._missing, self._chunk, self._offset, self._rest = True, until, 0, b""

    @property
    def torn(self) -> bool:
        """Whether the file ends within a line, or a finished chunk is missing."""
        return bool(self._rest) or self._missing


def chunks_path(path: Path) -> Path:
    """The file with the finished chunks of an event file."""
    return path.with_name(path.name + FOLDED)


def read_log(path: Path) -> bytes:
    """All bytes of an event file, finished chunks included; OSError where it cannot be read."""
    with path.open("rb"):
        return b"".join(EventTail(path).new_bytes())


def _members(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Content and end offset of every complete gzip member from here on."""
    at, waiting = file.tell(), b""
    while True:
        member, parts, size = zlib.decompressobj(wbits=31), [], 0
        while not member.eof:
            waiting = waiting or file.read(1 << 16)
            if not waiting:
                return
            try:
                parts.append(member.decompress(waiting, MAX_CHUNK_BYTES - size))
            except zlib.error:
                return
            at += len(waiting) - len(member.unconsumed_tail) - len(member.unused_data)
            waiting, size = member.unconsumed_tail or member.unused_data, size + len(parts[-1])
            if size >= MAX_CHUNK_BYTES:
                return
        yield b"".join(parts), at


def _chunks_before(first_line: bytes) -> int:
    """Number of finished chunks before a plain file, by its first line."""
    event = read_line(first_line, "rank") if first_line.startswith(_HEAD) else None
    return event.chunks if isinstance(event, Folded) else 0


def _open_to_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def read_line(line: bytes, source: Source) -> AnyEvent | Unknown | None:
    """The event of a line; None where it is no event."""
    event: AnyEvent
    try:
        event = _DECODERS[source].decode(line)
        return event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # files of earlier versions may hold NaN
        document = json.loads(line, parse_constant=lambda constant: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("event"), str):
        return None
    try:
        event = _DECODERS[source].decode(msgspec.json.encode(document))
        return event
    except (msgspec.ValidationError, UnicodeEncodeError, OverflowError, RecursionError):
        return Unknown(kind=document["event"], raw=line)
