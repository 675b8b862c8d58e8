"""Records of every schema are still read and shown; fields that a newer version added are passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.records import make_record

import trainmark
from trainmark.analysis.audit_record import audit_document
from trainmark.record.errors import UsageError
from trainmark.record.metrics import METRICS
from trainmark.record.numbers import around, is_too_noisy
from trainmark.record.record import RECORD_SCHEMA, Record
from trainmark.view.describe import describe

FIXTURES = Path(__file__).parent.parent / "fixtures" / "records"
OLD = sorted(FIXTURES.glob("schema*/*.json"))


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def assert_holds(whole: Any, part: Any) -> None:
    """All that stands in the part stands in the whole, at the same place."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert_holds(whole[name], value)
    else:
        assert whole == part


def test_there_is_a_record_of_each_workload_and_schema_before_this() -> None:
    written = {(document(path)["schema"], document(path)["plan"]["workload"]) for path in OLD}
    assert len(written) == 3 * (RECORD_SCHEMA - 1)
    assert {schema for schema, _ in written} == set(range(1, RECORD_SCHEMA))


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name.partition("-")[0])
def test_an_old_record_is_read_and_nothing_of_it_is_lost(path: Path) -> None:
    old = document(path)
    record = Record.from_json(old)
    again = json.loads(record.dumps())
    again["schema"] = old["schema"]
    for alias, quantity in old["metrics"].items():
        if interval := quantity.pop("interval", None):
            half = (interval[1] - interval[0]) / 2 / quantity["value"]
            assert again["metrics"][alias]["interval"] == pytest.approx(around(quantity["value"], half))
    assert_holds(again, old)
    assert (record.revision, record.event_files) == (None, {})
    assert Record.from_json(json.loads(record.dumps())) == record


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name.partition("-")[0])
def test_an_old_record_is_shown_and_no_check_calls_its_age_wrong(path: Path) -> None:
    record = Record.from_json(document(path))
    assert "p_core" in describe(record)
    grave = [finding for entry in audit_document(document(path), path.name) for finding in entry.findings]
    assert [str(finding) for finding in grave if finding.verdict == "failed"] == []


def test_a_metric_that_did_not_exist_then_was_not_recorded_and_is_not_wrong() -> None:
    old = document(OLD[0])
    del old["metrics"]["step_spread"]
    record = Record.from_json(old)
    assert "step_spread" not in record.metrics
    findings = [finding for entry in audit_document(old, "x.json") for finding in entry.findings]
    assert [str(finding) for finding in findings if finding.verdict == "failed"] == []
    assert "p_core" in describe(record)


def test_an_old_interval_below_zero_is_read_as_one_too_noisy_to_say() -> None:
    old = document(OLD[0])
    old["metrics"]["p_core"] |= {"value": 27.5, "interval": [-3.89, 58.87]}
    record = Record.from_json(old)
    low, high = record.metrics["p_core"].interval or (0, 0)
    assert 0 < low < 27.5 < high
    assert is_too_noisy((low, high))
    assert "too noisy to say" in describe(record, width=160)


def test_what_a_newer_version_wrote_is_passed_over() -> None:
    newer = make_record().to_json()
    newer["carbon"] = {"grams": 12.5}
    newer["plan"]["data"]["shards"] = 8
    newer["quality"]["history"][0]["seconds"] = 3
    newer["metrics"]["p_future"] = {"value": 7.0, "unit": "leaps/s", "checked": True}
    record = Record.from_json(json.loads(json.dumps(newer)))
    shown = describe(record)
    for said in ("p_core", "p_future", "leaps/s"):
        assert said in shown
    assert "p_future" not in METRICS


@pytest.mark.parametrize("schema", [0, RECORD_SCHEMA + 1, "2", None, True])
def test_a_schema_that_this_version_cannot_know_is_refused_in_a_sentence(schema: object) -> None:
    with pytest.raises(UsageError, match="not a trainmark record of schema"):
        Record.from_json({**make_record().to_json(), "schema": schema})


@pytest.mark.features
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name.partition("-")[0])
def test_an_old_record_is_compared_and_reported_beside_a_new_one(path: Path, tmp_path: Path) -> None:
    old = trainmark.load(path)
    new = Record.from_json({**json.loads(old.dumps()), "run_id": "again", "created": "2026-11-17T00:00:00Z"})
    assert trainmark.compare(old, new).word in ("same", "inconclusive")
    page = trainmark.report([old, new])
    assert page.startswith("<!doctype html>")
    assert old.run_id in page
    for form in ("csv", "json", "junit"):
        assert old.run_id in trainmark.report([old, new], format=form)
