"""What an audit says about a record that was tampered with, and about events that do not agree with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.clean_records import CUT_OFF, ON_A_CARD, QUICK, SPEAKING, TWO_RANKS

import trainmark
from trainmark.analysis.audit_record import audit_document, audit_record
from trainmark.record.checks import CheckResult
from trainmark.record.record import Doubt, Record


def found(document: dict[str, Any]) -> dict[str, CheckResult]:
    return {finding.name: finding for entry in audit_document(document, "x.json") for finding in entry.findings}


@pytest.fixture
def quick(tmp_path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(QUICK.leave(tmp_path).dumps())
    return document


def test_a_throughput_that_was_raised_is_recomputed_from_the_steps(quick: dict[str, Any]) -> None:
    honest = quick["metrics"]["p_core"]["value"]
    quick["metrics"]["p_core"]["value"] *= 1.01
    finding = found(quick)["steps"]
    assert finding.verdict == "failed"
    assert repr(honest * 1.01) in finding.evidence
    assert repr(honest) in finding.evidence
    assert finding.subject == quick["run_id"]


def test_a_plan_changed_after_the_run_is_known_by_its_fingerprint(quick: dict[str, Any]) -> None:
    quick["plan"]["recipe"]["learning_rate"] = 0.1
    assert "fingerprint" in found(quick)["readable"].evidence


def test_a_doubt_that_was_taken_out_is_missed_and_one_put_in_is_noticed(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    for doubt in record.doubts:
        kept = tuple(other for other in record.doubts if other is not doubt)
        [finding] = [one for entry in audit_record(replace(record, doubts=kept)) for one in entry.findings]
        assert (finding.name, finding.sentence) == ("doubts", "the numbers ask for this doubt, and it is not there")
    invented = replace(record, doubts=(*record.doubts, Doubt(code="rank-skew", text="rank 3 was slow")))
    assert any(entry.findings for entry in audit_record(invented))


def test_a_label_that_the_first_step_contradicts_is_wrong(tmp_path: Path) -> None:
    document = json.loads(ON_A_CARD.leave(tmp_path).dumps())
    document["environment"]["precision"]["ran"] = "fp32"
    assert "('fp32',), computed ('amp-fp16',)" in found(document)["steps"].evidence


def test_a_target_that_was_not_reached_cannot_be_called_reached(tmp_path: Path) -> None:
    document = json.loads(TWO_RANKS.leave(tmp_path).dumps())
    document["quality"]["reached"] = True
    assert "True), computed" in found(document)["steps"].evidence


def test_the_best_evaluation_cannot_stand_for_the_last(tmp_path: Path) -> None:
    document = json.loads(SPEAKING.leave(tmp_path).dumps())
    document["quality"]["value"] = 0.41
    assert "(0.41, " in found(document)["steps"].evidence


def test_a_file_that_is_no_record_is_wrong_and_breaks_nothing() -> None:
    for document in ({}, {"kind": "trainmark record", "schema": 1}, {"kind": "x"}):
        assert found(document)["readable"].verdict == "failed"  # type: ignore[arg-type]


def events(folder: Path, record: Record) -> Path:
    return folder / "runs" / record.run_id / "rank0.jsonl"


def by_events(record: Record, folder: Path) -> dict[str, CheckResult]:
    return {finding.name: finding for entry in audit_record(record, folder) for finding in entry.findings}


def test_a_record_rewritten_as_a_whole_is_betrayed_by_its_events(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path / "honest")
    faster = replace(QUICK, step_ms=160.0).leave(tmp_path / "faster")
    assert not any(entry.findings for entry in audit_record(faster))  # every figure of it agrees with every other
    folder = events(tmp_path / "honest", record).parent
    for rewritten in (faster, replace(faster, event_files=record.event_files)):
        honest, said = record.metrics["e2e_time"].value, faster.metrics["e2e_time"].value
        told = [one.evidence for entry in audit_record(rewritten, folder) for one in entry.findings]
        assert any(f"e2e_time.value is {said!r} on the record, {honest!r} by its events" in line for line in told)


def test_an_event_file_changed_after_the_record_is_known_by_its_hash(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    path = events(tmp_path, record)
    path.write_text(path.read_text().replace('"host":"node-a"', '"host":"node-b"', 1))
    told = by_events(record, path.parent)
    assert (told["hashes"].verdict, told["events"].verdict) == ("failed", "failed")
    assert told["hashes"].evidence.startswith("rank0.jsonl: SHA-256 ")
    path.write_bytes(path.read_bytes() + b"\n")  # nothing a reader would notice
    assert by_events(record, path.parent)["hashes"].verdict == "failed"


def test_an_event_file_taken_away_or_put_there_is_wrong(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    folder = events(tmp_path, record).parent
    (folder / "telemetry0.jsonl").rename(folder / "telemetry1.jsonl")
    told = [one for entry in audit_record(record, folder) for one in entry.findings if one.name == "hashes"]
    assert [one.evidence.split()[0] for one in told] == ["telemetry0.jsonl:", "telemetry1.jsonl:"]


def test_events_that_came_after_the_record_of_a_run_cut_off_are_doubtful_and_not_wrong(tmp_path: Path) -> None:
    record = CUT_OFF.leave(tmp_path)
    path = events(tmp_path, record).parent / "rank1.jsonl"
    path.write_text(path.read_text() + '{"event":"end","ended":"interrupted"}\n')
    assert by_events(record, path.parent)["hashes"].verdict == "doubt"


def test_a_record_of_schema_1_is_gathered_anew_and_its_lack_of_hashes_is_not_wrong(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    old = {key: value for key, value in json.loads(record.dumps()).items() if key not in ("event_files", "revision")}
    checked = {
        entry.name: entry for entry in audit_document({**old, "schema": 1}, "x", events(tmp_path, record).parent)
    }
    assert (checked["events"].verdict, checked["hashes"].verdict) == ("ok", "unknown")


def test_a_metric_that_the_record_does_not_have_is_a_note_where_the_events_give_it(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    fewer = {alias: quantity for alias, quantity in record.metrics.items() if alias != "step_spread"}
    [finding] = by_events(replace(record, metrics=fewer), events(tmp_path, record).parent).values()
    assert (finding.verdict, finding.evidence) == ("note", "step_spread")


def test_a_doubt_in_the_words_of_another_version_is_no_finding_and_one_with_other_figures_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = QUICK.leave(tmp_path)
    folder, said = events(tmp_path, record).parent, next(one for one in record.doubts if one.code == "small-batch")
    monkeypatch.setattr(trainmark, "__version__", "99.0")
    for text, verdict in ((f"here the {said.text}", None), (f"{said.text}0", "failed")):
        reworded = tuple(replace(doubt, text=text) if doubt is said else doubt for doubt in record.doubts)
        found = by_events(replace(record, doubts=reworded), folder).get("events")
        assert (found.verdict if found else None) == verdict


def test_a_folder_that_cannot_be_read_as_a_run_is_said_and_not_called_wrong(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    folder = events(tmp_path, record).parent
    (folder / "plan.json").unlink()
    checked = {entry.name: entry for entry in audit_record(record, folder)}
    assert checked["events"].verdict == "unknown"
    assert "does not say what was to run" in checked["events"].sentence
