"""Whatever number, word or truth value of a record is changed, the audit finds that something is wrong with it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from analysis.audit.clean_records import EVERY_KIND
from analysis.audit.mutations import leaves, mutations, spelt, with_change

from trainmark.analysis.audit_events import Case
from trainmark.analysis.audit_record import CHECKS
from trainmark.spec.audit import DAMAGED, look
from trainmark.spec.record import Record
from trainmark.spec.run_folder import open_run

KINDS = ["quick", "two ranks", "on a card", "speaking", "restarted"]

ONLY_EVENTS_TELL = {
    r"revision|group|event_files.*": "names, and hashes of files that are not at hand",
    r"plan\.(data\.folder|max_restarts|hang_timeout_s|resume_from|skip_bad|init_from)": "a permission, or a path",
    r"plan\.profile": "what was to be looked at after the training",
    r"plan\.limits\.wall_s": "what the run was allowed at most, whatever it trained",
    r"plan\.deviations.*": "of fields of a recipe that no facts are known of",
    r"metrics\.\w+\.unavailable": "the words for a value that is missing",
    r"metrics\.(throttled|time_to_target|power|energy)\.value": "bounded by what the record kept, not computed",
    r"quality\.history\[\d+\]\.(values\..*|samples)": "a score is made of nothing else on the record",
    r"doubts\[\d+\]\.text|coverage": "the words around figures are for people",
    r"doubts\[\d+\]\.values.*": "shown only where they make the text",
    r"restarts\[\d+\]\.(reason|damaged.*|step)": "what a rank that failed said",
    r"environment\..*": "facts of a machine that are told once, and what was measured beside the training",
    r"skipped_files.*|artifacts.*|data_facts.*": "what was found beside the numbers",
    r"telemetry\..*": "readings of sensors: the peaks among them are told by the metrics",
    r"series\.loss\[\d+\]": "a loss is made of nothing else on the record",
    r"series\.ranks\[\d+\]\.(phases_ns\..*|host|memory_peak_bytes)": "of a rank that is not the slowest",
    r"series\.ranks\[1\]\..*": "of a rank that is not the slowest",
}
"""What may be changed unseen, in some way, in a record whose events are not at hand, each with its reason."""

GRAVE = (
    *("series.ranks[0].wait_ns[3]", "series.ranks[0].compute_ns[3]", "series.ranks[0].items[3]", "phases.compute"),
    *(f"metrics.{alias}.value" for alias in ("p_whole", "p_train", "p_core", "mfu", "e2e_time", "mem", "step_time")),
    *("metrics.p_core.interval[0]", "metrics.p_core.unit", "series.warmup_steps", "plan.recipe.learning_rate"),
    *("status", "ended", "quality.value", "quality.goal", "quality.reached", "doubts", "item", "plan.precision"),
)
"""None of these may ever be in the list above."""


def is_found(document: Mapping[str, Any], case: Case | None = None) -> bool:
    """As `audit_document` does, but at the first finding it stops; the events of a `case` are read once."""
    try:
        changed = Case(record=Record.from_json(document), document=document, folder=case and case.folder)
    except DAMAGED:
        return True
    if case:
        vars(changed).update(run=case.run, told=case.told)
    return any(look((check,), changed, "")[0].findings for check in CHECKS)


def excused(place: str) -> bool:
    return any(re.fullmatch(pattern, place) for pattern in ONLY_EVENTS_TELL)


def changes(document: Mapping[str, Any], seed: str) -> Any:
    for path, value in leaves(document, random.Random(seed)):
        for word, changed in mutations(value):
            yield spelt(path), f"{spelt(path)}: {value!r}, {word}", with_change(document, path, changed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_with_its_events_no_change_of_one_value_goes_unseen(kind: str, tmp_path: Path) -> None:
    record = EVERY_KIND[kind].leave(tmp_path)
    document = json.loads(record.dumps())
    case = Case(record=record, document=document, folder=tmp_path / "runs" / record.run_id)
    assert case.run.plan == record.plan
    tried = list(changes(document, kind))
    assert [said for _, said, changed in tried if not is_found(changed, case)] == []
    assert len(tried) > 300


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_its_events_only_what_nothing_else_tells_goes_unseen(kind: str, tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND[kind].leave(tmp_path).dumps())
    tried = [(said, changed) for place, said, changed in changes(document, kind) if not excused(place)]
    assert [said for said, changed in tried if not is_found(changed)] == []
    assert len(tried) > 100


def test_nothing_that_a_reader_looks_at_first_is_excused() -> None:
    assert [place for place in GRAVE if excused(place)] == []


@pytest.mark.parametrize("place", ["run_id", "metrics.p_core.value", "series.ranks"])
def test_a_value_of_another_kind_is_found_and_breaks_nothing(place: str, tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND["quick"].leave(tmp_path).dumps())
    for other in (None, "many", [], {}, True, -1, 1e300):
        assert is_found(with_change(document, tuple(place.split(".")), other))


def test_what_no_run_writes_and_what_was_taken_out_is_found_by_the_events(tmp_path: Path) -> None:
    record = EVERY_KIND["quick"].leave(tmp_path)
    document, folder = json.loads(record.dumps()), tmp_path / "runs" / record.run_id
    assert open_run(folder).event_files() == document["event_files"]
    case = Case(record=record, document=document, folder=folder)
    assert not is_found(document, case)
    assert is_found({**document, "certified_by": "us"}, case)
    assert is_found({**document, "event_files": {}}, case)
    assert is_found({**document, "doubts": document["doubts"][1:]}, case)
    for part, name in (("metrics", "p_core"), ("environment", "precision"), ("environment", "flops")):
        less = {key: value for key, value in document[part].items() if key != name}
        assert is_found({**document, part: less}, case), name
