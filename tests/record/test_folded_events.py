"""Long event files are folded into compressed chunks, and stay readable whatever happens to their writer meanwhile."""

from __future__ import annotations

import gzip
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmark.record import event_files
from trainmark.record.event_files import EventTail, EventWriter, chunks_path, read_log
from trainmark.record.events import Event, Steps


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "CHUNK_BYTES", 500)


def step(number: int) -> Steps:
    return Steps(first=number, wait_ns=[number], compute_ns=[10**9 + number], items=[64], loss=[0.5])


def numbers(read: Iterator[Event]) -> list[int]:
    return [event.first for event in read if isinstance(event, Steps)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Killed(BaseException):
    """What `kill -9` is to the process that writes."""


def test_finished_chunks_are_gzip_and_the_open_one_is_plain(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    writer = EventWriter(path)
    for number in range(40):
        writer.write(step(number))
    plain = path.read_bytes()
    assert len(plain) < 500
    assert plain.startswith(b'{"event":"folded","chunks":')
    assert gzip.decompress(chunks_path(path).read_bytes()) + plain == read_log(path)  # as zcat and cat read them
    assert numbers(EventTail(path).new_events()) == list(range(40))
    assert names(tmp_path) == ["rank0.jsonl", "rank0.jsonl.gz"]


def test_a_short_log_is_one_plain_file(tmp_path: Path) -> None:
    EventWriter(tmp_path / "rank0.jsonl").write(step(0))
    assert names(tmp_path) == ["rank0.jsonl"]
    assert (tmp_path / "rank0.jsonl").read_bytes().startswith(b'{"event":"steps"')


@pytest.mark.parametrize("every", [1, 3, 7, 19])
def test_a_tail_sees_every_event_once_however_the_file_is_folded_between_its_looks(tmp_path: Path, every: int) -> None:
    path = tmp_path / "rank0.jsonl"
    writer, tail, seen = EventWriter(path), EventTail(path), []
    for number in range(60):
        writer.write(step(number))
        if number % every == 0:
            seen += numbers(tail.new_events())
    assert [*seen, *numbers(tail.new_events())] == list(range(60))
    assert not tail.torn


@pytest.mark.parametrize("moment", ["before the chunk", "inside the chunk", "after the chunk", "before the new file"])
def test_a_writer_killed_while_it_folds_loses_nothing_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = tmp_path / "rank0.jsonl"
    tail, seen, written = EventTail(path), [], []
    for generation in range(4):
        writer = EventWriter(path)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            _kill(patched, moment, after=generation)
            while True:
                written.append(len(written))
                writer.write(step(written[-1]))  # whose line is whole when the fold that follows it is cut short
                if generation % 2:
                    seen += numbers(tail.new_events())
        os.close(writer._descriptor)
        seen += numbers(tail.new_events())
        assert numbers(EventTail(path).new_events()) == seen == written
        assert not tail.torn
    EventWriter(path).write(step(10**6))
    assert numbers(EventTail(path).new_events()) == [*written, 10**6]
    chunks = sum(1 for _ in event_files._members(io.BytesIO(chunks_path(path).read_bytes())))
    assert event_files._chunks_before(path.read_bytes().partition(b"\n")[0]) == chunks


def _kill(patched: pytest.MonkeyPatch, moment: str, *, after: int) -> None:
    """Ends the writer at a moment of the fold after so many that go well."""
    left = itertools.count()
    if moment in ("before the chunk", "inside the chunk", "after the chunk"):
        write_all = event_files._write_all

        def write(descriptor: int, content: bytes) -> None:
            if not content.startswith(b"\x1f\x8b") or next(left) < after:
                return write_all(descriptor, content)
            if moment != "before the chunk":
                write_all(descriptor, content[: len(content) // 2] if moment == "inside the chunk" else content)
            raise Killed

        patched.setattr(event_files, "_write_all", write)
    else:
        replace = Path.replace

        def moved(path: Path, target: Path) -> Path:
            if next(left) < after:
                return replace(path, target)
            raise Killed

        patched.setattr(Path, "replace", moved)


def test_where_there_is_no_room_for_a_chunk_the_lines_stay_plain_and_are_folded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.jsonl"
    writer = EventWriter(path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left")))
        for number in range(30):
            writer.write(step(number))
    assert chunks_path(path).read_bytes() == b""
    for number in range(30, 90):
        writer.write(step(number))
    assert gzip.decompress(chunks_path(path).read_bytes()) + path.read_bytes() == read_log(path)
    assert numbers(EventTail(path).new_events()) == list(range(90))
    assert names(tmp_path) == ["rank0.jsonl", "rank0.jsonl.gz"]


def test_chunks_that_are_missing_or_damaged_are_said(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    writer = EventWriter(path)
    for number in range(40):
        writer.write(step(number))
    plain = numbers(EventTail(path).new_events())[-1:]
    whole = chunks_path(path).read_bytes()
    for damaged in (whole[:-20], whole[:30] + b"\xff" * 30 + whole[60:], b"", b"junk" * 100):
        chunks_path(path).write_bytes(damaged)
        tail = EventTail(path)
        assert numbers(tail.new_events())[-1:] == plain
        assert tail.torn
    chunks_path(path).unlink()
    tail = EventTail(path)
    assert numbers(tail.new_events())[-1:] == plain
    assert tail.torn


def test_a_chunk_that_unpacks_to_more_than_any_writer_makes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "MAX_CHUNK_BYTES", 10_000)
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"event":"folded","chunks":1}\n')
    chunks_path(path).write_bytes(gzip.compress(b"\n" * 10_000_000))
    tail = EventTail(path)
    assert list(tail.new_events()) == []
    assert tail.torn
