"""What a user says of a run beside its plan: tags by which it is found, and a note for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trainmark.record.errors import UsageError

LONGEST_NOTE = 1000
_TAG = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,39})=(\S(?:[^\x00-\x1f\x7f]{0,98}\S)?)")


def parse_tags(words: Iterable[str]) -> dict[str, str]:
    """Tags from `key=value` words; UsageError where one is none, or a key has two values."""
    tags: dict[str, str] = {}
    for word in words:
        if not (found := _TAG.fullmatch(word)):
            raise UsageError(
                f"--tag {word[:60]!r} is not key=value; a key is letters, digits, '.', '_' and '-', a value is "
                "up to 100 signs; try 'driver=550.54'"
            )
        key, value = found.groups()
        if tags.setdefault(key, value) != value:
            raise UsageError(f"--tag {key} has two values, {tags[key]!r} and {value!r}; leave one of them out")
    return tags


def tag_words(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Tags as they are said: `key=value`, by their keys."""
    return tuple(f"{key}={tags[key]}" for key in sorted(tags))


def check_note(note: str) -> None:
    if len(note) > LONGEST_NOTE:
        raise UsageError(f"--note has {len(note)} signs; {LONGEST_NOTE} are kept at most, so say it shorter")
