"""Event files stay readable whatever happens to their writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.spec.errors import WorkloadError
from trainmark.spec.events import EventTail, EventWriter


def test_a_tail_sees_new_events_once(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    tail = EventTail(path)
    assert list(tail.new_events()) == []
    writer = EventWriter(path)
    writer.write("begin", rank=0)
    assert list(tail.new_events()) == [{"event": "begin", "rank": 0}]
    assert list(tail.new_events()) == []
    writer.write("ready")
    assert [event["event"] for event in tail.new_events()] == ["ready"]


def test_a_torn_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    EventWriter(path).write("begin", rank=0)
    with path.open("ab") as file:
        file.write(b'{"event": "steps", "first"')
    tail = EventTail(path)
    assert [event["event"] for event in tail.new_events()] == ["begin"]
    assert tail.torn


def test_a_line_that_was_torn_is_read_when_its_end_arrives(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"event": "al')
    tail = EventTail(path)
    assert list(tail.new_events()) == []
    with path.open("ab") as file:
        file.write(b'ive"}\n')
    assert list(tail.new_events()) == [{"event": "alive"}]


def test_junk_between_events_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'\xff\xfe\n[1]\n{"no": "kind"}\n{"event": "begin"}\n')
    assert list(EventTail(path).new_events()) == [{"event": "begin"}]


def test_a_device_that_takes_nothing_more_is_said_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match=r"cannot write /dev/full: No space left on device"):
        EventWriter(Path("/dev/full")).write("begin")
