"""An audit has nothing to say about what a run really wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.clean_records import EVERY_KIND, OUTSIDE

from trainmark.analysis.audit_record import audit_document, audit_record
from trainmark.record.recipe import Limits
from trainmark.record.telemetry_summary import MAX_POINTS

ALL = {**EVERY_KIND, **OUTSIDE}


@pytest.mark.parametrize("kind", ALL)
def test_a_clean_record_passes_every_check_with_and_without_its_events(kind: str, tmp_path: Path) -> None:
    record = ALL[kind].leave(tmp_path)
    for folder, least in ((tmp_path / "runs" / record.run_id, 5), (None, 3)):
        checked = audit_document(json.loads(record.dumps()), "record.json", folder)
        assert [finding for entry in checked for finding in entry.findings] == []
        assert sum(entry.verdict == "ok" for entry in checked) >= least
        assert all(entry.sentence for entry in checked if entry.verdict == "unknown")
        unseen = {entry.name for entry in checked if entry.verdict == "unknown"}
        assert (unseen >= {"hashes", "events"}) == (folder is None)


@pytest.mark.parametrize("steps", [1510, 4000])  # samples a little above what a record keeps, and far above
def test_an_honest_long_run_is_not_accused_though_its_samples_were_thinned(steps: int, tmp_path: Path) -> None:
    record = replace(EVERY_KIND["quick"], limits=Limits(steps=steps), steps=steps, power=True).leave(tmp_path)
    assert record.telemetry.machines[0].samples > MAX_POINTS
    for folder in (tmp_path / "runs" / record.run_id, None):
        checked = audit_document(json.loads(record.dumps()), "record.json", folder)
        assert [str(finding) for entry in checked for finding in entry.findings] == []


def test_a_record_that_was_read_from_no_file_is_audited_too(tmp_path: Path) -> None:
    record = EVERY_KIND["quick"].leave(tmp_path)
    for folder in (None, tmp_path / "runs" / record.run_id):
        assert not any(entry.findings for entry in audit_record(record, folder))
