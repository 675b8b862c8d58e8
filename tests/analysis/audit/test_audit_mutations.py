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

from trainmark.analysis.audit.record_case import RecordCase
from trainmark.analysis.audit.records import CHECKS
from trainmark.spec.audit import DAMAGED, look
from trainmark.spec.record import Record

NOBODY_CAN_TELL = {
    r"(revision|event_files.*)": "what ran, and hashes of files that are not at hand here",
    r"group": "a name that repeats share, and nothing else",
    r"plan\.data\.folder": "where a set lay on one machine; what it was is in the fingerprint",
    r"plan\.(max_restarts|hang_timeout_s|resume_from)": "a permission, or a path: no number depends on it",
    r"plan\.deviations": "the reference recipe is not on the record, only what is known of it here",
    r"plan\.deviations\[\d+\]\.reference": "as above: fields that are not known here",
    r"quality\.history\[\d+\]\.values\..*": "a score that was not the last is made of nothing else on the record",
    r"quality\.history\[\d+\]\.samples": "of a lone evaluation, where no other says how many there are",
    r"doubts\[\d+\]\.text": "the words around a doubt's figures are for people",
    r"restarts\[\d+\]\.(reason|damaged.*)": "the words of a rank that failed",
    r"environment\.(python|torch|numpy|os|libc|variables|threads).*": "a fact of the machine that is told once",
    r"environment\.(device\.(name|type|count_visible|driver)|cpu)(\..*)?": "a fact of the machine that is told once",
    r"environment\.link(\[\d+\]\.(repeats|median_s))?": "measured before training; only best time and speed are linked",
    r"environment\.flops\.peak_source": "the name of a source",
    r"environment\.precision\.(computed|multiplications|weights)\..*": "counts whose majority decides, not their sum",
    r"environment\.precision\.tf32\..*": "a switch that products in other types do not feel",
    r"environment\.precision\.(loss_scale|skipped_steps)": "told once, at the end",
    r"environment\.fill\.(reason|took_s|curve.*)": "what a search before the run saw",
    r"skipped_files.*": "names of files",
    r"artifacts.*": "names of files, and captions",
    r"data_facts\..*": "how data was read, told once",
    r"telemetry\.machines\[0\]\.(every_s|last_s|sampler_cpu_s|training_s\[\d\])": "bounded, not computed",
    r"telemetry\.machines\[0\]\.unavailable\..*": "the words of a sensor that no metric needs",
    r"telemetry\.machines\[0\]\.host_series\..*\.values\[\d+\]": "readings of a host that few figures are made of",
    r"telemetry\.machines\[0\]\.devices\[0\]\.device": "which of the machine's devices it was",
    r"telemetry\.machines\[0\]\.devices\[0\]\.series\..*\.values\[\d+\]": "readings that are no peak",
    r"series\.loss\[\d+\]": "a loss is made of nothing else on the record; only its digits are",
    r"series\.ranks\[1\]\.(phases_ns\..*|wait_ns\[\d+\]|memory_peak_bytes)": "of a rank that is not the slowest",
}
"""Leaves that may be changed unseen in some way, each with its reason. The events of the run tell most of them."""

GRAVE = ("series.ranks[0].wait_ns", "series.ranks[0].compute_ns", "series.ranks[0].items", "metrics.", "phases.")
"""None of these may ever be in the list above."""


def is_found(document: Mapping[str, Any]) -> bool:
    """As `audit_document` does, but at the first finding it stops."""
    try:
        case = RecordCase(record=Record.from_json(document), document=document)
    except DAMAGED:
        return True
    return any(look((check,), case, "")[0].findings for check in CHECKS)


def excused(place: str) -> bool:
    return any(re.fullmatch(pattern, place) for pattern in NOBODY_CAN_TELL)


@pytest.mark.parametrize("kind", ["quick", "two ranks", "on a card", "speaking", "restarted"])
def test_no_change_of_one_value_goes_unseen(kind: str, tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND[kind].leave(tmp_path).dumps())
    unseen, tried = [], 0
    for path, value in leaves(document, random.Random(kind)):
        if excused(spelt(path)):
            continue
        for word, changed in mutations(value):
            tried += 1
            if not is_found(with_change(document, path, changed)):
                unseen.append(f"{spelt(path)}: {value!r}, {word}")
    assert unseen == []
    assert tried > 300


def test_nothing_that_a_throughput_is_made_of_is_excused() -> None:
    for begin in GRAVE:
        assert not any(excused(f"{begin}{end}") for end in ("", "[3]", "p_core.value", "p_core.interval[0]", "compute"))


@pytest.mark.parametrize("place", ["run_id", "metrics.p_core.value", "series.ranks"])
def test_a_value_of_another_kind_is_found_and_breaks_nothing(place: str, tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND["quick"].leave(tmp_path).dumps())
    for other in (None, "many", [], {}, True, -1, 1e300):
        assert is_found(with_change(document, tuple(place.split(".")), other))


def test_a_key_no_run_writes_is_found(tmp_path: Path) -> None:
    document = json.loads(EVERY_KIND["quick"].leave(tmp_path).dumps())
    assert is_found({**document, "certified_by": "us"})
    assert is_found(
        with_change(document, ("environment", "flops"), {**document["environment"]["flops"], "per_item": 1})
    )
