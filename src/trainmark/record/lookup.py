"""Finds the runs that a command-line argument names: one, repeats of one plan, or those in a record file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.errors import TrainmarkError, UsageError
from trainmark.record.index import RunFilter
from trainmark.record.published_row import PREFIX
from trainmark.record.store import SHORTEST_GROUP, read_record

if TYPE_CHECKING:
    from trainmark.record.published_row import PublishedRow
    from trainmark.record.record import Record
    from trainmark.record.store import Store

_NAMED = 4
"""Most runs listed in a label."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be compared, audited or reported on: a run, repeats of one plan, or a published row."""

    word: str
    """As typed."""
    label: str
    """Its name in a sentence; untrusted, so escape it where it is shown."""
    records: tuple[Record, ...] = ()
    """One, or the repeats of one plan; none for a published row."""
    row: PublishedRow | None = None


def find_runs(word: str, store: Store) -> Subject:
    """The runs an argument names; UsageError suggests what it could have meant.

    It is a run's id or its start or end, `last`, a record file, the id of a group of repeats or its start, or several,
    joined by commas.
    """
    if word.startswith(PREFIX):
        raise UsageError(f"{word!r} is a published row, and only runs can stand here; name a run or a group")
    if "," in word and not Path(word).is_file():
        parts = [find_runs(part.strip(), store) for part in word.split(",") if part.strip()]
        return make_subject(word, [record for part in parts for record in part.records])
    if word.lower().endswith((".md", ".markdown")):
        raise UsageError(f"{word} is a page, not a record; 'trainmark import {word}' imports its rows, then name one")
    if word.endswith(".json") or os.sep in word:
        return make_subject(word, _read_records(Path(word).expanduser()))
    try:
        path = store.find(word)
    except UsageError:
        if repeats := find_group(word, store):
            return make_subject(word, repeats, label=f"group {repeats[0].group} ({len(repeats)} runs)")
        raise
    return make_subject(word, _read_records(path))


def find_records(words: Iterable[str], store: Store) -> list[Record]:
    """All runs the arguments name, each once."""
    found = {record.run_id: record for word in words for record in find_runs(word, store).records}
    return list(found.values())


def make_subject(word: str, records: Sequence[Record], *, label: str | None = None) -> Subject:
    """Records as one subject: one run, or repeats of one plan; duplicates count once."""
    unique = tuple({record.run_id: record for record in records}.values())
    if not unique:
        raise UsageError(f"{word!r} names no run; give a run id, a record file or a group")
    if len(unique) == 1:
        return Subject(word=word, label=f"run {unique[0].run_id}", records=unique)
    first = unique[0]
    for other in unique[1:]:
        if other.plan.fingerprint != first.plan.fingerprint:
            raise UsageError(
                f"runs {first.run_id} and {other.run_id} of {word!r} are not repeats of one plan; "
                "name runs of the same plan, or one run"
            )
    ends = [record.run_id.rpartition("-")[2] for record in unique]
    named = ", ".join(ends[:_NAMED]) + (f" and {len(ends) - _NAMED} more" if len(ends) > _NAMED else "")
    return Subject(word=word, label=label or f"runs {named}", records=unique)


def _read_records(path: Path) -> list[Record]:
    """The records of a file: one, or those that `run --json` prints of several."""
    opening = b""
    with contextlib.suppress(OSError), path.open("rb") as stream:  # read_record raises the error
        opening = stream.read(64)
    from trainmark.record.record import REPEATS, Record, list_repeats, parse

    if not opening.lstrip().startswith(b"[") and REPEATS.encode() not in opening:
        return [read_record(path)]
    try:
        return [Record.from_json(document) for document in list_repeats(parse(path.read_bytes()))]
    except TrainmarkError as error:
        raise UsageError(f"record file {path} holds a list that is not all records: {error}") from error


def find_group(word: str, store: Store) -> list[Record]:
    """The records of a group, by its id or the start of it; empty where there is none."""
    if len(word) < SHORTEST_GROUP:
        return []
    rows = store.rows(RunFilter(group=word))
    rows = [row for row in rows if row.group == word] or rows
    names = sorted({str(row.group) for row in rows})
    if len(names) > 1:
        raise UsageError(f"{word!r} could be any of {len(names)} groups: {', '.join(names[:5])}")
    return [read_record(store.path(row.run_id)) for row in reversed(rows)]
