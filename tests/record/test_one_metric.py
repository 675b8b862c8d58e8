"""A metric is one table and one formula: it stands in every view, and records of before it stay as they were."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.clean_records import EVERY_KIND
from support.records import make_record

from trainmark.analysis.audit_record import audit_record
from trainmark.analysis.comparison import compare
from trainmark.features.report import output, run_page
from trainmark.features.report.run_page import ReportInputs
from trainmark.record.errors import UsageError
from trainmark.record.metrics import METRICS, Measured, Metric, Quantity
from trainmark.record.record import Record
from trainmark.record.store import make_subject
from trainmark.view.describe import describe
from trainmark.view.glossary import find_meaning


def compute_slowest(m: Measured) -> float | None:
    return float(m.timeline.step_s.max()) if m.timeline.step_s.size else None


SLOWEST = Metric(
    name="slowest_step",
    alias="slowest_step",
    unit="s",
    better="lower",
    formula="max over counted steps",
    any_length=True,
    definition="How long the longest step took. The second sentence is for those who ask.",
    compute=compute_slowest,
)
BARE = Metric(name="bare", alias="bare", unit="s", compute=lambda m: None)


@pytest.fixture
def slowest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "slowest_step", SLOWEST)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "bare", BARE)


def wrong(record: Record) -> list[str]:
    return [f.name for found in audit_record(record) for f in found.findings if f.verdict == "failed"]


@pytest.mark.usefixtures("slowest_step")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_is_shown_explained_compared_and_exported(language: str) -> None:
    record = make_record(run_id="first")
    value = record.metrics["slowest_step"].value
    assert value is not None
    assert "slowest_step" in describe(record)
    page = run_page.render(ReportInputs(records=(record,), language=language))
    assert "slowest_step" in page
    assert "max over counted steps" in page
    assert find_meaning("slowest_step", language).definition.startswith("How long the longest step took.")
    assert find_meaning("slowest_step", language).formula == "max over counted steps"
    rows = list(csv.DictReader(io.StringIO(output.to_csv([record]))))
    assert (float(rows[0]["slowest_step"]), rows[0]["slowest_step_unit"]) == (value, "s")


@pytest.mark.usefixtures("slowest_step")
def test_compare_knows_which_way_it_is_better() -> None:
    quick, slow = make_record(run_id="quick"), make_record(run_id="slow")
    slow = replace(slow, metrics={**slow.metrics, "slowest_step": Quantity(value=20.0, unit="s")})
    a, b = (make_subject(record.run_id, [record]) for record in (quick, slow))
    found = compare(a, b, metric="slowest_step", anyway=True)
    assert found.compared.better == "lower"
    assert found.judgement.ratio > 1
    assert found.compared.words == ("better", "worse")


@pytest.mark.usefixtures("bare")
def test_one_that_says_nothing_of_itself_breaks_nothing() -> None:
    record = make_record(run_id="first")
    assert record.metrics["bare"] == Quantity(value=None, unit="s", unavailable="it was not measured")
    assert "it was not measured" in describe(record)
    assert "bare" in run_page.render(ReportInputs(records=(record,), language="zh"))
    assert find_meaning("bare").definition == ""
    with pytest.raises(UsageError, match="a fact and not a result"):
        compare(*(make_subject(name, [make_record(run_id=name)]) for name in ("a", "b")), metric="bare")


def test_a_record_of_before_it_stays_valid(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    before = next(iter(EVERY_KIND.values())).leave(tmp_path)
    request.getfixturevalue("slowest_step")
    assert "slowest_step" not in before.metrics
    assert wrong(before) == []
    assert "p_core" in describe(before)
    assert csv.DictReader(io.StringIO(output.to_csv([before]))).fieldnames
    side = make_subject(before.run_id, [before])
    other = make_subject("other", [replace(before, run_id="other")])
    with pytest.raises(UsageError, match="has no slowest_step: it is not on the record"):
        compare(side, other, metric="slowest_step")


@pytest.mark.parametrize("alias", sorted(METRICS.keys() - {"e2e_time", "throttled"}))  # its doubts speak of these
def test_a_record_without_any_one_of_ours_reads_and_is_not_called_wrong(alias: str, tmp_path: Path) -> None:
    record = EVERY_KIND["on a card"].leave(tmp_path)
    document_of = json.loads(record.dumps())
    del document_of["metrics"][alias]
    less = Record.from_json(document_of)
    assert wrong(less) == []
    describe(less)
    run_page.render(ReportInputs(records=(less,)))


def test_one_of_a_newer_version_is_shown_and_not_refused(tmp_path: Path) -> None:
    record = next(iter(EVERY_KIND.values())).leave(tmp_path)
    newer = replace(record, metrics={**record.metrics, "co2": Quantity(value=41.5, unit="g")})
    read = Record.from_json(json.loads(newer.dumps()))
    assert read.metrics["co2"] == Quantity(value=41.5, unit="g")
    assert re.search(r"co2 +41.5 +g", describe(read))
    assert "co2" in run_page.render(ReportInputs(records=(read,), language="zh"))
    assert next(csv.DictReader(io.StringIO(output.to_csv([read]))))["co2"] == "41.5"
    assert wrong(read) == []
    other = replace(read, run_id="other")
    with pytest.raises(UsageError, match="does not know whether more or less"):
        compare(make_subject("a", [read]), make_subject("b", [other]), metric="co2")
