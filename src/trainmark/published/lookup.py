"""Finds what a word of the command line stands for: a run, repeats of one plan, a record file or a published row."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.analysis.subject import Subject
from trainmark.spec.errors import TrainmarkError, UsageError, nearest
from trainmark.spec.published_row import PREFIX
from trainmark.store.row import Wanted
from trainmark.store.store import SHORTEST_GROUP, read_record

if TYPE_CHECKING:
    from trainmark.spec.published_row import PublishedRow
    from trainmark.spec.record import Record
    from trainmark.store.store import Store

_NAMED = 4
"""Runs that are named one by one in a label."""


def subject(word: str, store: Store) -> Subject:
    """The one thing a word means, or a sentence about what it could have meant.

    A word is a run's id, its beginning or end, `last`, a record file, the id of a group of repeats or its beginning,
    several of these joined by commas, or the name of a published row.
    """
    if word.startswith(PREFIX):
        return _published(word, store)
    if "," in word and not Path(word).is_file():
        parts = [subject(part.strip(), store) for part in word.split(",") if part.strip()]
        return of_records(word, [record for part in parts for record in _measured(part, word)])
    if word.lower().endswith((".md", ".markdown")):
        raise UsageError(f"{word} is a page, not a record; 'trainmark import {word}' takes its rows in, then name one")
    if word.endswith(".json") or os.sep in word:
        return of_records(word, _in_file(Path(word).expanduser()))
    try:
        path = store.find(word)
    except UsageError:
        if repeats := group(word, store):
            return of_records(word, repeats, label=f"group {repeats[0].group} ({len(repeats)} runs)")
        raise
    return of_records(word, _in_file(path))


def records_of(words: Iterable[str], store: Store) -> list[Record]:
    """The runs meant by words, those of groups among them, each once."""
    found: dict[str, Record] = {}
    for word in words:
        meant = subject(word, store)
        if meant.row is not None:
            raise UsageError(f"{word!r} is a published row, and only runs can stand here; name a run or a group")
        found |= {record.run_id: record for record in meant.records}
    return list(found.values())


def of_records(word: str, records: Sequence[Record], *, label: str | None = None) -> Subject:
    """Records as one subject: one run, or repeats of one plan; a run named twice counts once."""
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


def _measured(part: Subject, word: str) -> tuple[Record, ...]:
    if part.row is not None:
        raise UsageError(f"published row {part.row.name} of {word!r} cannot be a repeat of a run; name it by itself")
    return part.records


def _in_file(path: Path) -> list[Record]:
    """The records of a file: one, or those that `run --json` prints of several."""
    opening = b""
    with contextlib.suppress(OSError), path.open("rb") as stream:  # read_record says what is wrong with it
        opening = stream.read(64)
    from trainmark.spec.record import REPEATS, Record, listed, parse

    if not opening.lstrip().startswith(b"[") and REPEATS.encode() not in opening:
        return [read_record(path)]
    try:
        return [Record.from_json(document) for document in listed(parse(path.read_bytes()))]
    except TrainmarkError as error:
        raise UsageError(f"record file {path} holds a list that is not all records: {error}") from error


def group(word: str, store: Store) -> list[Record]:
    """The records of the group meant; none where the word is the beginning of no group."""
    if len(word) < SHORTEST_GROUP:
        return []
    rows = store.rows(Wanted(group=word))
    rows = [row for row in rows if row.group == word] or rows
    names = sorted({str(row.group) for row in rows})
    if len(names) > 1:
        raise UsageError(f"{word!r} could be any of {len(names)} groups: {', '.join(names[:5])}")
    return [read_record(store.path(row.run_id)) for row in reversed(rows)]


def _published(word: str, store: Store) -> Subject:
    from trainmark.published import library

    rows = {row.name: row for row in (*published_rows(store), *library.further_rows())}
    matches = [name for name in rows if name.startswith(word)]
    if word not in rows and len(matches) > 1:
        shown = ", ".join(matches[:5]) + (f" and {len(matches) - 5} more" if len(matches) > 5 else "")
        raise UsageError(f"{word!r} could be any of {len(matches)} published rows: {shown}")
    if not matches:
        close = nearest(word, rows, otherwise="'trainmark published' lists them")
        raise UsageError(f"no published row {word!r}; {close}")
    row = rows[word] if word in rows else rows[matches[0]]
    return Subject(word=word, label=row.name, row=row)


def published_rows(store: Store) -> tuple[PublishedRow, ...]:
    """The rows that come with trainmark, and those a user imported into the store."""
    from trainmark.published import imported, library

    return (*library.rows(), *imported.rows(store.folder))
