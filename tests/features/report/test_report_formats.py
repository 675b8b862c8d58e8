"""The report as Markdown, CSV, JSON and JUnit: complete, harmless, and as the programs that read them expect."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st
from support.records import a_vocoder_record, make_record

from trainmark.analysis import published_library as library
from trainmark.features.report import output
from trainmark.record.audit import conclude, mark_unchecked, note, wrong
from trainmark.record.checks import CheckResult
from trainmark.record.metrics import METRICS
from trainmark.record.record import Doubt, Record

HOSTILE = "=cmd|' /C calc'!A0 <img src=x onerror=1> \x1b[31m \u202e | \"quoted\", and\na new line \x00 \ufffe"


def make_hostile_record() -> Record:
    return make_record(run_id=HOSTILE, device=HOSTILE, ended=HOSTILE, doubts=(Doubt(code="x", text=HOSTILE),))


def parse_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_has_a_row_a_run_and_every_metric_with_unit_and_interval() -> None:
    records = [make_record(), a_vocoder_record()]
    found = parse_rows(output.to_csv(records))
    assert [row["run_id"] for row in found] == [record.run_id for record in records]
    for record, row in zip(records, found, strict=True):
        for alias in METRICS:
            quantity = record.metrics[alias]
            assert (float(row[alias]) if row[alias] else None) == quantity.value
            assert row[f"{alias}_unit"] == quantity.unit
            low_high = (row[f"{alias}_low"], row[f"{alias}_high"])
            assert tuple(map(float, low_high)) == quantity.interval if quantity.interval else low_high == ("", "")
    assert found[1]["p_core_unit"] == "mel frames/s"


def test_no_csv_cell_starts_a_formula_or_carries_a_control_character() -> None:
    text = output.to_csv([make_hostile_record()], library.load_rows("vit"))
    for row in parse_rows(text):
        for cell in row.values():
            assert cell[:1] not in ("=", "+", "@", "\t", "\r")
            assert not cell.startswith("-") or float(cell) < 0
    assert not {"\x1b", "\x00", "\u202e", "\r"} & set(text)


def test_csv_holds_published_rows_by_the_same_columns() -> None:
    run, row = parse_rows(output.to_csv([make_record()], library.load_rows("vit")[:1]))
    assert (run["kind"], row["kind"]) == ("run", "published")
    assert float(row["p_core"]) == library.load_rows("vit")[0].p_core
    assert float(row["mfu"]) > 100


def test_json_is_the_records_as_they_were_written() -> None:
    records = [make_record(), a_vocoder_record()]
    document = json.loads(output.to_json(records))
    assert [Record.from_json(entry) for entry in document] == [
        Record.from_json(json.loads(record.dumps())) for record in records
    ]


def test_markdown_has_the_runs_their_doubts_and_the_published_rows() -> None:
    text = output.to_markdown([make_record()], library.load_rows("vit"))
    lines = text.splitlines()
    assert make_record().doubts[0].text in text
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == 3 + 2 + len(library.load_rows("vit"))
    assert "A100-SXM4-40GB 1x1" in text


def test_markdown_is_one_table_row_whatever_a_name_holds() -> None:
    row = replace(library.load_rows("vit")[0], name=HOSTILE, device=HOSTILE)
    text = output.to_markdown([make_hostile_record()], [row])
    for line in text.splitlines():
        assert "<img" not in line
        assert "\x1b" not in line
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("| ")}
    assert len(widths) == 2


SHOWN = ("1 and 2", "They differ.", "the clock")


def run_checks(record: Record) -> Sequence[CheckResult]:
    return (
        conclude("a", "phases sum", (), "run"),
        conclude("b", "mfu is possible", (wrong(*SHOWN), note(*SHOWN)), "run"),
        conclude("c", "loss falls", (note(*SHOWN),), "run"),
        mark_unchecked("d", "power is its samples", "nothing was sampled"),
    )


def test_junit_has_a_case_for_the_run_and_for_each_check() -> None:
    root = ElementTree.fromstring(output.to_junit([make_record(), a_vocoder_record()], run_checks))
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures"), root.get("skipped"), root.get("errors")) == ("10", "2", "2", "0")
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "1")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == ["the run is valid", "phases sum", "mfu is possible", "loss falls", "power is its samples"]
    assert [child.tag for child in cases["mfu is possible"]] == ["failure"]
    assert [child.tag for child in cases["loss falls"]] == ["system-out"]
    assert [child.tag for child in cases["power is its samples"]] == ["skipped"]
    assert all(case.get("classname") and case.get("time") for case in suite.iter("testcase"))
    assert float(suite.get("time") or 0) == pytest.approx(make_record().metrics["e2e_time"].value, abs=0.001)


@pytest.mark.parametrize("status", ["invalid", "incomplete"])
def test_a_run_that_is_not_valid_is_a_failure_with_its_reason(status: str) -> None:
    record = make_record(status=status, ended="rank 3 was killed")
    failure = ElementTree.fromstring(output.to_junit([record], lambda _: ())).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "rank 3 was killed"


@settings(deadline=None)
@given(st.text())
def test_junit_can_be_read_whatever_a_run_says(text: str) -> None:
    record = replace(make_record(), run_id=text, ended=text, status="incomplete", doubts=(Doubt(code="x", text=text),))
    said = mark_unchecked("a", text, text)
    document = output.to_junit([record], lambda _: (said,))
    assert ElementTree.fromstring(document.encode("utf-8", "backslashreplace")).get("tests") == "2"


def test_a_build_server_can_follow_a_test_from_build_to_build() -> None:
    """What is trained names it; the run, which is another in every build, is told beside it."""

    def names(*records: Record) -> list[tuple[str | None, str | None]]:
        root = ElementTree.fromstring(output.to_junit(records, lambda record: ()))
        return [(suite.get("name"), case.get("classname")) for suite in root for case in suite.iter("testcase")]

    today, tomorrow = make_record(run_id="one"), make_record(run_id="two", created="2027-01-01T00:00:00Z")
    assert names(today) == names(tomorrow) == [("trainmark.resnet50.quick.1x1.fp32",) * 2]
    assert names(today, tomorrow)[1] == ("trainmark.resnet50.quick.1x1.fp32.2",) * 2
    assert 'name="run" value="two"' in output.to_junit([tomorrow], lambda record: ())
