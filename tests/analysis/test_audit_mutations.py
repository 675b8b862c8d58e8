"""With its events no change of a record goes unseen; without them, none of what a reader looks at first."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.clean_records import EVERY_KIND

from trainmark.analysis.audit_record import CHECKS, RecordCase
from trainmark.record.audit import DAMAGED, run_checks
from trainmark.record.record import Record

KINDS = ["quick", "two ranks", "on a card", "speaking", "restarted"]

GRAVE = (
    *("series.ranks.0.wait_ns.3", "series.ranks.0.compute_ns.3", "series.ranks.0.items.0", "phases.compute"),
    *(f"metrics.{alias}.value" for alias in ("p_whole", "p_train", "p_core", "mfu", "e2e_time")),
    *("metrics.p_core.interval.0", "metrics.p_core.unit", "series.warmup_steps", "plan.recipe.learning_rate"),
    *("status", "ended", "quality.value", "quality.goal", "doubts", "item", "plan.precision"),
)
"""What is found in a record whose events are not at hand."""

Place = tuple[str | int, ...]
MAX_PLACES = 3
"""Of a long series, as many places are changed."""

NUMBERS: dict[str, Callable[[float], float]] = {
    "one percent more": lambda value: value * 1.01,
    "doubled": lambda value: value * 2,
    "negated": lambda value: -value,
}


def leaves(document: Any, chosen: random.Random, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from leaves(value, chosen, (*path, name))
    elif isinstance(document, list):
        yield path, document
        places = range(len(document))
        if len(document) > 2 * MAX_PLACES and not isinstance(document[0], dict):
            places = sorted(chosen.sample(places, MAX_PLACES))  # type: ignore[assignment]
        for index in places:
            yield from leaves(document[index], chosen, (*path, index))
    else:
        yield path, document


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """What may be put in a leaf's place, with a word for it."""
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, (int, float)):
        for word, change in NUMBERS.items():
            changed = change(value)
            if isinstance(value, int):
                changed = round(changed) if round(changed) != value else value + 1
            yield word, changed if changed != value else 1.0
    elif isinstance(value, str):
        yield "another word", value + "~"
        if re.search("[0-9]", value):
            yield "another figure", re.sub("[0-9]", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1)
    elif value is None:
        yield "made up", 1
    elif isinstance(value, list) and value:
        yield "cut short", value[:-1]


def with_change(document: Any, path: Place, value: Any) -> Any:
    """A copy in which one leaf is another; what is not on the way to it is shared."""
    if not path:
        return copy.deepcopy(value)
    changed = copy.copy(document)
    changed[path[0]] = with_change(document[path[0]], path[1:], value)
    return changed


def is_found(document: Mapping[str, Any], case: RecordCase | None = None) -> bool:
    """As `audit_document` does, but at the first finding it stops; the events of a `case` are read once."""
    try:
        changed = RecordCase(record=Record.from_json(document), document=document, folder=case and case.folder)
    except DAMAGED:
        return True
    if case:
        vars(changed).update(run=case.run, gathered=case.gathered)
    return any(run_checks((check,), changed, "")[0].findings for check in CHECKS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_with_its_events_no_change_of_one_value_goes_unseen(kind: str, tmp_path: Path) -> None:
    record = EVERY_KIND[kind].leave(tmp_path)
    document = json.loads(record.dumps())
    case = RecordCase(record=record, document=document, folder=tmp_path / "runs" / record.run_id)
    tried = [
        (f"{path}: {value!r}, {word}", with_change(document, path, changed))
        for path, value in leaves(document, random.Random(kind))
        for word, changed in mutations(value)
    ]
    assert [said for said, changed in tried if not is_found(changed, case)] == []
    assert len(tried) > 300


@pytest.mark.parametrize("place", GRAVE)
def test_what_a_reader_looks_at_first_cannot_be_changed_even_without_events(place: str, tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND["quick"].leave(tmp_path).dumps())
    path = tuple(int(step) if step.isdigit() else step for step in place.split("."))
    value = document
    for step in path:
        value = value[step]
    for word, changed in mutations(value):
        assert is_found(with_change(document, path, changed)), word


@pytest.mark.parametrize("place", ["run_id", "metrics.p_core.value", "series.ranks"])
def test_a_value_of_another_kind_is_found_by_the_events_and_breaks_nothing(place: str, tmp_path: Path) -> None:
    record = EVERY_KIND["quick"].leave(tmp_path)
    document, folder = json.loads(record.dumps()), tmp_path / "runs" / record.run_id
    case = RecordCase(record=record, document=document, folder=folder)
    for other in (None, "many", [], {}, True, -1, 1e300):
        assert is_found(with_change(document, tuple(place.split(".")), other), case)


def test_what_no_run_writes_and_what_was_taken_out_is_found_by_the_events(tmp_path: Path) -> None:
    record = EVERY_KIND["quick"].leave(tmp_path)
    document, folder = json.loads(record.dumps()), tmp_path / "runs" / record.run_id
    case = RecordCase(record=record, document=document, folder=folder)
    assert not is_found(document, case)
    assert is_found({**document, "certified_by": "us"}, case)
    assert is_found({**document, "event_files": {}}, case)
    for part, name in (("metrics", "p_core"), ("environment", "precision"), ("environment", "flops")):
        less = {key: value for key, value in document[part].items() if key != name}
        assert is_found({**document, part: less}, case), name
