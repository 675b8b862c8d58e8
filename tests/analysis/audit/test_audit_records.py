"""What an audit says about a record that was tampered with, and about events that do not agree with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.audit.clean_records import ON_A_CARD, PIXELS, QUICK, SPEAKING, TOKENS, TWO_RANKS

from trainmark.analysis.audit.logs import audit_log, audit_run_folder
from trainmark.analysis.audit.records import audit_document, audit_record
from trainmark.spec.checks import CheckResult
from trainmark.spec.record import Doubt, Record


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
    assert f"p_core: value {honest * 1.01!r}, computed {honest!r}" in finding.evidence
    assert finding.subject == quick["run_id"]


def test_slow_steps_cannot_be_hidden_as_warm_up(quick: dict[str, Any]) -> None:
    quick["series"]["warmup_steps"] += 10
    assert "hidden as warm-up" in found(quick)["warm-up"].remedy


def test_a_step_made_faster_no_longer_fits_phases_and_metrics(quick: dict[str, Any]) -> None:
    quick["series"]["ranks"][0]["compute_ns"][30] //= 2
    assert {"phases", "metrics"} <= set(found(quick))


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
    assert "its products make it amp-fp16" in found(document)["precision"].evidence


def test_a_target_that_was_not_reached_cannot_be_called_reached(tmp_path: Path) -> None:
    document = json.loads(TWO_RANKS.leave(tmp_path).dumps())
    document["quality"]["reached"] = True
    assert found(document)["quality"].sentence == "the verdict does not follow from the figures"


def test_the_best_evaluation_cannot_stand_for_the_last(tmp_path: Path) -> None:
    document = json.loads(SPEAKING.leave(tmp_path).dumps())
    document["quality"]["value"] = 0.41
    assert "not its best" in found(document)["quality"].sentence


def test_energy_that_is_not_power_by_time_is_wrong(tmp_path: Path) -> None:
    document = json.loads(ON_A_CARD.leave(tmp_path).dumps())
    document["metrics"]["energy"]["value"] *= 0.99
    assert "sensed" in found(document)


def test_a_sampler_whose_clock_goes_back_is_wrong(quick: dict[str, Any]) -> None:
    at_s = quick["telemetry"]["machines"][0]["host_series"]["load"]["at_s"]
    at_s[3], at_s[4] = at_s[4], at_s[3]
    assert "goes back" in found(quick)["sample-clock"].sentence


def test_a_gap_in_the_samples_is_told_to_the_reader(quick: dict[str, Any]) -> None:
    machine = quick["telemetry"]["machines"][0]
    for series in machine["host_series"].values():
        for values in series.values():
            del values[8:16]
    machine["samples"] -= 8
    assert found(quick)["sample-gaps"].verdict == "note"


def test_a_file_that_is_no_record_is_wrong_and_breaks_nothing() -> None:
    for document in ({}, {"kind": "trainmark record", "schema": 1}, {"kind": "x"}):
        assert found(document)["readable"].verdict == "failed"  # type: ignore[arg-type]


def events(folder: Path, record: Record) -> Path:
    return folder / "runs" / record.run_id / "rank0.jsonl"


def log_findings(path: Path, record: Record | None = None) -> dict[str, CheckResult]:
    return {finding.name: finding for entry in audit_log(path, record).checks for finding in entry.findings}


def test_a_record_rewritten_as_a_whole_is_betrayed_by_its_events(tmp_path: Path) -> None:
    record = QUICK.leave(tmp_path / "honest")
    faster = replace(QUICK, step_ms=160.0).leave(tmp_path / "faster")
    assert not any(entry.findings for entry in audit_record(faster))  # every figure of it agrees with every other
    finding = log_findings(events(tmp_path / "honest", record), faster)["log-record"]
    assert "in the log" in finding.evidence


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


def test_a_clock_that_goes_back_in_a_log_is_wrong(tmp_path: Path) -> None:
    record = TWO_RANKS.leave(tmp_path)
    path = events(tmp_path, record)
    path.write_text(path.read_text().replace('"event":"evaluation","step":25', '"event":"evaluation","step":24'))
    assert "evaluated at step 24" in log_findings(path)["log-order"].evidence
    told = path.read_text().splitlines()
    swapped = [json.loads(line) for line in told if '"evaluation"' in line]
    late = json.dumps({**swapped[0], "elapsed_ns": 10**15})
    path.write_text("\n".join(late if '"step":24' in line else line for line in told) + "\n")
    assert "never goes back" in log_findings(path)["log-clock"].sentence


def test_all_logs_of_a_run_folder_are_audited(tmp_path: Path) -> None:
    record = TWO_RANKS.leave(tmp_path)
    audits = audit_run_folder(events(tmp_path, record).parent, record)
    assert [audit.title.rpartition("/")[2] for audit in audits] == ["rank0.jsonl", "rank1.jsonl", "telemetry0.jsonl"]


def test_a_workload_from_outside_is_held_to_what_its_record_says_of_it(tmp_path: Path) -> None:
    pixels = json.loads(PIXELS.leave(tmp_path).dumps())
    pixels["quality"]["history"][0]["values"]["pixel_acc"] = pixels["quality"]["value"] = 171.0
    assert "does not exist" in found(pixels)["scores"].sentence
    counted = json.loads(replace(PIXELS, steps=61, evaluate_at=(61,)).leave(tmp_path / "counted").dumps())
    counted["workload_facts"]["qualities"][0]["counted"] = True
    assert "right samples" in found(counted)["scores"].sentence
    images = json.loads(replace(PIXELS, items=33).leave(tmp_path / "images").dumps())
    assert found(images)["items"].verdict == "failed"


def test_a_record_of_an_unknown_workload_without_facts_is_judged_where_that_is_possible(tmp_path: Path) -> None:
    tokens = json.loads(TOKENS.leave(tmp_path).dumps())
    del tokens["workload_facts"]
    checked = {entry.name: entry for entry in audit_document(tokens, "x.json")}
    assert checked["workload"].sentence == "nothing is known here of workload 'lm'"
    assert not checked["items"].findings
    assert not checked["scores"].findings
