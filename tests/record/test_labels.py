"""What a user may say of a run."""

from __future__ import annotations

import pytest

from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError
from trainmark.record.index import format_tags, parse_tags


def test_tags_come_back_as_they_were_said() -> None:
    said = ("driver=550.54", "room=hall 3, rack 7", "url=a=b")
    assert parse_tags(said) == {"driver": "550.54", "room": "hall 3, rack 7", "url": "a=b"}
    assert format_tags(parse_tags(said)) == said
    assert RunOptions(tags=said, note="-x").to_argv()[1:] == (*(("--tag", tag) for tag in said), ("--note=-x",))


@pytest.mark.parametrize("word", ["", "driver", "=1", "driver=", "a b=1", "a= ", "a=x\ny", "a=" + "x" * 101])
def test_what_is_no_tag_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not key=value"):
        RunOptions(tags=(word,))


def test_two_values_of_a_key_and_a_note_without_end_are_refused() -> None:
    with pytest.raises(UsageError, match="--tag a has two values, '1' and '2'"):
        RunOptions(tags=("a=1", "a=2"))
    with pytest.raises(UsageError, match="--note has 1001 characters"):
        RunOptions(note="x" * 1001)
