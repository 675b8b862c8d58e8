"""What an audit says about a record that was tampered with, and about events that do not agree with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.clean_records import CUT_OFF, ON_A_CARD, PIXELS, QUICK, SPEAKING, TWO_RANKS

from trainmark.analysis.audit_events import audit_log, audit_logs
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
    finding = found(quick)["metrics"]
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
    assert "its matmuls make it amp-fp16" in found(document)["precision"].evidence


def test_a_target_that_was_not_reached_cannot_be_called_reached(tmp_path: Path) -> None:
    document = json.loads(TWO_RANKS.leave(tmp_path).dumps())
    document["quality"]["reached"] = True
    assert found(document)["quality"].sentence == "the verdict does not follow from the figures"


def test_the_best_evaluation_cannot_stand_for_the_last(tmp_path: Path) -> None:
    document = json.loads(SPEAKING.leave(tmp_path).dumps())
    document["quality"]["value"] = 0.41
    assert "not its best" in found(document)["quality"].sentence


def test_a_file_that_is_no_record_is_wrong_and_breaks_nothing() -> None:
    for document in ({}, {"kind": "trainmark record", "schema": 1}, {"kind": "x"}):
        assert found(document)["readable"].verdict == "failed"  # type: ignore[arg-type]


def events(folder: Path, record: Record) -> Path:
    return folder / "runs" / record.run_id / "rank0.jsonl"


def log_findings(path: Path, record: Record | None = None) -> dict[str, CheckResult]:
    return {finding.name: finding for entry in audit_log(path, record).checks for finding in entry.findings}


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
    assert log_findings(folder / "rank0.jsonl", faster)["log-record"].verdict == "failed"


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


def test_a_doubt_in_the_words_of_another_source_is_a_note_and_one_with_other_figures_is_wrong(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    folder, said = (
        events(tmp_path, record).parent,
        next(doubt for doubt in record.doubts if doubt.code == "small-batch"),
    )
    for text, verdict in ((f"here the {said.text}", "note"), (f"{said.text}0", "failed")):
        reworded = tuple(replace(doubt, text=text) if doubt is said else doubt for doubt in record.doubts)
        assert by_events(replace(record, doubts=reworded), folder)["events"].verdict == verdict


def test_a_folder_that_cannot_be_read_as_a_run_is_said_and_not_called_wrong(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path)
    folder = events(tmp_path, record).parent
    (folder / "plan.json").unlink()
    checked = {entry.name: entry for entry in audit_record(record, folder)}
    assert checked["events"].verdict == "unknown"
    assert "does not say what was to run" in checked["events"].sentence


def test_lines_taken_out_of_a_log_leave_a_gap_in_its_steps(tmp_path: Path) -> None:
    path = events(tmp_path, QUICK.leave(tmp_path))
    lines = path.read_text().splitlines(keepends=True)
    taken = next(index for index, line in enumerate(lines) if '"first":12' in line)
    path.write_text("".join(lines[:taken] + lines[taken + 1 :]))
    assert "step 18 where 12 is next" in log_findings(path)["log-order"].evidence


def test_a_log_that_was_cut_off_says_so_and_is_not_wrong(tmp_path: Path) -> None:
    path = events(tmp_path, QUICK.leave(tmp_path))
    path.write_bytes(path.read_bytes()[:-20])
    told = log_findings(path)
    assert {told[code].verdict for code in ("lines", "log-end")} == {"note"}


def test_a_line_in_the_middle_that_is_no_event_is_wrong(tmp_path: Path) -> None:
    path = events(tmp_path, QUICK.leave(tmp_path))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:5], "{half\n", *lines[5:]]))
    assert log_findings(path)["lines"].verdict == "failed"


def test_all_logs_of_a_run_folder_are_audited(tmp_path: Path) -> None:
    audits = audit_logs(events(tmp_path, TWO_RANKS.leave(tmp_path)).parent)
    assert [audit.title.rpartition("/")[2] for audit in audits] == ["rank0.jsonl", "rank1.jsonl", "telemetry0.jsonl"]


def test_an_event_of_a_newer_version_is_a_note(tmp_path: Path) -> None:
    path = events(tmp_path, QUICK.leave(tmp_path))
    path.write_text(path.read_text() + '{"event":"applause","hands":2}\n')
    assert log_findings(path)["lines"].verdict == "note"


def test_a_workload_from_outside_is_held_to_what_its_record_says_of_it(tmp_path: Path) -> None:
    pixels = json.loads(PIXELS.leave(tmp_path).dumps())
    pixels["quality"]["history"][0]["values"]["pixel_acc"] = pixels["quality"]["value"] = 171.0
    assert "does not exist" in found(pixels)["quality"].sentence
