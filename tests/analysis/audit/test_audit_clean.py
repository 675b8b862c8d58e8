"""An audit has nothing to say about what a run really wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from analysis.audit.clean_records import EVERY_KIND, OUTSIDE

from trainmark.analysis.audit.logs import audit_run_folder
from trainmark.analysis.audit.records import audit_document, audit_record

ALL = {**EVERY_KIND, **OUTSIDE}


@pytest.mark.parametrize("kind", ALL)
def test_a_clean_record_passes_every_check(kind: str, tmp_path: Path) -> None:
    record = ALL[kind].leave(tmp_path)
    checked = audit_document(json.loads(record.dumps()), "record.json")
    assert [finding for entry in checked for finding in entry.findings] == []
    assert sum(entry.verdict == "ok" for entry in checked) >= 25
    assert all(entry.sentence for entry in checked if entry.verdict == "unknown")


@pytest.mark.parametrize("kind", ALL)
def test_a_clean_runs_events_pass_and_agree_with_its_record(kind: str, tmp_path: Path) -> None:
    record = ALL[kind].leave(tmp_path)
    found = [
        finding
        for audit in audit_run_folder(tmp_path / "runs" / record.run_id, record)
        for entry in audit.checks
        for finding in entry.findings
        if finding.verdict != "note"  # a run that was cut off says so
    ]
    assert found == []


def test_a_record_without_its_file_is_audited_as_far_as_it_goes(tmp_path: Path) -> None:
    checked = audit_record(EVERY_KIND["quick"].leave(tmp_path))
    assert not any(entry.findings for entry in checked)
    assert {entry.name for entry in checked if entry.verdict == "unknown"} >= {"document"}
