"""Event files stay readable whatever happens to their writer."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from trainmark.record import events
from trainmark.record.errors import WorkloadError
from trainmark.record.events import Alive, Begin, Evaluated, EventTail, EventWriter, NoSample, Unknown

BEGIN = Begin(rank=0, host="here", pid=7, startup_ns=5)
EVENTS = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]


def test_a_tail_sees_new_events_once(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    tail = EventTail(path)
    assert list(tail.new_events()) == []
    writer = EventWriter(path)
    writer.write(BEGIN)
    assert list(tail.new_events()) == [BEGIN]
    assert list(tail.new_events()) == []
    writer.write(Alive(phase="evaluate", samples=3))
    assert list(tail.new_events()) == [Alive(phase="evaluate", samples=3)]


def test_a_torn_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    EventWriter(path).write(BEGIN)
    with path.open("ab") as file:
        file.write(b'{"event": "steps", "first"')
    tail = EventTail(path)
    assert list(tail.new_events()) == [BEGIN]
    assert tail.torn


def test_a_line_that_was_torn_is_read_when_its_end_arrives(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'{"event": "al')
    tail = EventTail(path)
    assert list(tail.new_events()) == []
    with path.open("ab") as file:
        file.write(b'ive", "phase": "sample"}\n')
    assert list(tail.new_events()) == [Alive(phase="sample")]


def test_junk_between_events_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b'\xff\xfe\n[1]\n{"no": "kind"}\n{"event": 1}\n\n{"event": "no-sample", "reason": "x"}\n')
    assert list(EventTail(path).new_events()) == [NoSample(reason="x")]


def test_what_a_newer_version_writes_is_kept_or_passed_over_and_never_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    kind = b'{"event": "moved", "to": "b"}'
    path.write_bytes(kind + b'\n{"event": "no-sample", "reason": "x", "since": 3}\n{"event": "ready"}\n')
    found = list(EventTail(path).new_events())
    assert found == [
        Unknown(kind="moved", raw=kind),
        NoSample(reason="x"),
        Unknown(kind="ready", raw=b'{"event": "ready"}'),
    ]


def test_a_value_that_is_not_finite_is_written_as_json_and_read_as_earlier_versions_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    bad = Evaluated(step=3, epoch=1, values={"loss": float("nan")}, samples=2, elapsed_ns=9)
    EventWriter(path).write(bad)
    assert json.loads(path.read_bytes(), parse_constant=pytest.fail)["values"] == {"loss": None}
    path.write_text(
        '{"event": "evaluation", "step": 3, "epoch": 1, "values": {"loss": NaN}, "samples": 2, "elapsed_ns": 9}\n'
    )
    [event] = EventTail(path).new_events()
    assert isinstance(event, Evaluated)
    assert event.values["loss"] is None


def test_one_word_is_one_event_in_every_kind_of_file() -> None:
    words = [msgspec.inspect.type_info(kind).tag for kind in EVENTS]
    assert {word for word in words if words.count(word) > 1} == {"begin", "end"}  # of ranks and of samplers
    assert all(kind.__doc__ for kind in EVENTS)


def test_a_device_that_takes_nothing_more_is_said_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match=r"cannot write /dev/full: No space left on device"):
        EventWriter(Path("/dev/full")).write(BEGIN)
