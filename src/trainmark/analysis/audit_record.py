"""Audits our own records, by their events where available, and by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import trainmark
from trainmark.analysis import record_checks
from trainmark.record.audit import (
    DAMAGED,
    CannotCheckError,
    Check,
    check,
    conclude,
    doubtful,
    is_same,
    note,
    run_checks,
    wrong,
)
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError
from trainmark.record.gather import gather
from trainmark.record.record import Record, upgrade
from trainmark.record.run_folder import RunFolder, open_run
from trainmark.record.timeline import SeriesFile, StepSeries

MAX_SHOWN = 3
"""Differences shown per part of a record."""
OUR_WORDS = re.compile(r"coverage|doubts\[\d+\]\.text|metrics\.\w+\.unavailable")
"""Sentences composed when a record is gathered: another version may word them otherwise."""
NOT_COMPARED = ("schema", "kind", "event_files")
"""Format fields; the hashes have their own check."""


@dataclass(frozen=True, kw_only=True)
class EventCase(record_checks.Case):
    """A record under audit, with the events it was made of."""

    folder: Path | None = None
    """The run's folder, where available."""

    @cached_property
    def run(self) -> RunFolder:
        if self.folder is None:
            raise CannotCheckError("the run's events are not at hand")
        try:
            return open_run(self.folder)
        except NotReadyError as error:
            raise CannotCheckError(str(error)) from error

    @cached_property
    def gathered(self) -> dict[str, Any]:
        """The record's document, gathered from its events."""
        found: dict[str, Any] = json.loads(gather(self.run).dumps())
        return found

    @cached_property
    def changed(self) -> dict[str, tuple[str | None, str | None]]:
        """Event files whose hash is not the record's: that on the record, and that of the file."""
        recorded, found = self.record.event_files, self.run.event_files()
        pairs = {name: (recorded.get(name), found.get(name)) for name in sorted({*recorded, *found})}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def audit_record(record: Record, folder: Path | None = None) -> tuple[CheckResult, ...]:
    """Every check on a record; with the run's `folder`, against its events too."""
    document = json.loads(record.dumps()) if folder else record.to_json()
    return run_checks(CHECKS, EventCase(record=record, document=document, folder=folder), record.run_id)


def audit_document(
    document: Mapping[str, Any],
    name: str,
    folder: Path | None = None,
    read: Callable[[SeriesFile], StepSeries] | None = None,
) -> tuple[CheckResult, ...]:
    """Every check on a record file's JSON; one that cannot be read as a record is wrong for that.

    With `read`, the series that a long run's record leaves to a file beside it.
    """
    title = "the file is a record, with the plan its fingerprint was taken of"
    try:
        record = Record.from_json(document, read)
    except DAMAGED as error:
        why, remedy = "no run writes a record that cannot be read", "who changed the file after it was written"
        return (conclude("readable", title, (wrong(str(error), why, remedy),), name),)
    case = EventCase(record=record, document=document, folder=folder)
    return (conclude("readable", title, (), name), *run_checks(CHECKS, case, record.run_id))


@check(*record_checks.HASHES)
def hashes(case: EventCase) -> Iterator[CheckResult]:
    if "event_files" not in case.document:
        raise CannotCheckError("the record is of a version that took no hashes of its event files")
    # a machine that was lost may have written on after the record was made
    found = doubtful if case.record.status == "incomplete" else wrong
    for name, (recorded, seen) in case.changed.items():
        yield found(
            f"{name}: SHA-256 {(recorded or 'none')[:16]} on the record, {(seen or 'none')[:16]} of the file",
            "the file was changed, taken away or put there after the record was made",
            "who can write to the run's folder",
        )


@check(*record_checks.REGATHERED)
def events_agree(case: EventCase) -> Iterator[CheckResult]:
    recorded, wrote = upgrade(case.document), case.gathered["environment"].get("trainmark") or case.record.trainmark
    told = {**case.gathered, "trainmark": wrote}
    late = case.record.status == "incomplete" and "event_files" in case.document and case.changed
    words: list[str] = []
    for part in dict.fromkeys((*told, *recorded)):
        if part in NOT_COMPARED:
            continue
        one, other = ({part: document[part]} if part in document else {} for document in (recorded, told))
        unlike = list(_find_differences(one, other, "", words, alike=wrote == trainmark.__version__))
        more = f" and {len(unlike) - MAX_SHOWN} more" if len(unlike) > MAX_SHOWN else ""
        if unlike:
            yield (doubtful if late else wrong)(
                "; ".join(unlike[:MAX_SHOWN]) + more,
                "gathered anew from the run's events it is another",
                "whether the record or its events were changed",
            )
    if words:
        yield note("; ".join(words[:MAX_SHOWN]), "it says the same in other words", "which source gathered the record")
    if missing := sorted(told["metrics"].keys() - recorded["metrics"].keys()):
        yield note(", ".join(missing), "it is not on the record, and its events give it", "which version wrote it")


def _find_differences(recorded: Any, gathered: Any, place: str, words: list[str], *, alike: bool) -> Iterator[str]:
    """Where two documents differ; `words` collects what differs only in wording.

    Unless one version wrote both (`alike`), one may know more than the other.
    """
    if isinstance(recorded, Mapping) and isinstance(gathered, Mapping):
        for name in dict.fromkeys((*recorded, *gathered)):
            where = f"{place}.{name}".lstrip(".")
            if name in recorded and name in gathered:
                yield from _find_differences(recorded[name], gathered[name], where, words, alike=alike)
            elif alike and (name in recorded or place != "metrics"):
                yield f"{where} is {'not in the events' if name in recorded else 'not on the record'}"
    elif isinstance(recorded, list) and isinstance(gathered, list) and len(recorded) == len(gathered):
        if recorded != gathered:
            for index, (one, other) in enumerate(zip(recorded, gathered, strict=True)):
                yield from _find_differences(one, other, f"{place}[{index}]", words, alike=alike)
    elif not is_same(recorded, gathered):
        shown = f"{place} is {_shorten(recorded)} on the record, {_shorten(gathered)} by its events"
        if OUR_WORDS.fullmatch(place) and find_numbers(str(recorded)) == find_numbers(str(gathered)):
            words.append(shown)
        else:
            yield shown


def _shorten(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def find_numbers(text: str) -> list[str]:
    """The numbers in a sentence."""
    return re.findall(r"\d+(?:\.\d+)?", text)


CHECKS: tuple[Check[Any], ...] = (hashes, events_agree, *record_checks.CHECKS)
