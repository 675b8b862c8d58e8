"""Runs compared with published rows."""

from __future__ import annotations

import dataclasses

import pytest
from support.records import make_record

from trainmark.analysis import published_library as library
from trainmark.analysis.beside import find_nearest, is_published_network, list_speeds
from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published import audit
from trainmark.record.record import Record

FULL_SIZE = {"flops": {"per_item": 24.5e9}, "device": {"name": "AMD EPYC"}}
ROWS = library.load_rows("resnet50")


def make_run(**changes: object) -> Record:
    return make_record(environment=FULL_SIZE, **changes)


def test_a_small_network_is_not_the_published_one() -> None:
    assert is_published_network(make_run())
    assert not is_published_network(make_record(environment={"flops": {"per_item": 1.0e7}}))
    assert not is_published_network(make_record())


def test_a_row_is_taken_by_one_device_and_by_the_purest_throughput_it_gives() -> None:
    by_name = {speed.row.name.rpartition(":")[2]: speed for speed in list_speeds(ROWS)}
    eight = by_name["flagperf-a100-resnet50-1x8-fp32"]
    assert (eight.metric, eight.rate) == ("p_core", pytest.approx(4659 / 8))
    assert by_name["dle-a100-resnet50-1x1-tf32"].metric == "p_train"
    assert "flagperf-c500-resnet50-1x8-fp32" not in by_name  # it gives no throughput


def test_the_row_most_like_the_run_is_chosen() -> None:
    found = find_nearest(make_run(), list_speeds(ROWS))
    assert found is not None and found.row.name == "published:flagperf-a100-resnet50-1x1-fp32-bs256"
    assert [finding.check for finding in found.row.findings] == ["mfu"] and not found.row.is_wrong


def test_a_row_the_audit_calls_wrong_is_taken_only_where_there_is_no_other() -> None:
    [row] = [row for row in ROWS if row.name.endswith("1x1-fp32-bs256")]
    false = dataclasses.replace(row, name="published:wrong", p_core=7990.0, findings=())
    [wrong] = audit.add_findings(PublishedPage(title="x", rows=(false,))).rows
    assert wrong.is_wrong and wrong.findings[0].check == "mfu"
    alone = find_nearest(make_run(), list_speeds([wrong]))
    assert alone is not None and alone.row == wrong
    beside_another = find_nearest(make_run(), list_speeds([wrong, *ROWS]))
    assert beside_another is not None and beside_another.row.name != "published:wrong"


def test_shipped_findings_are_what_the_audit_finds_now() -> None:
    rows = library.load_rows()
    bare = [dataclasses.replace(row, findings=()) for row in rows]
    found = audit.attach_findings(bare, audit.find_doubts(audit.group_by_source(bare)))
    assert found == rows, "run scripts/published_findings.py"
    assert {finding.verdict for row in rows for finding in row.findings} == {"wrong", "doubtful"}


def test_a_run_that_is_not_valid_is_held_against_nothing() -> None:
    assert find_nearest(make_run(status="incomplete"), list_speeds(ROWS)) is None
