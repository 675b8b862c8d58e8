"""A run of a size that could have been forecast stands beside its forecast, with nothing kept for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.records import make_record

from trainmark.cli.main import main
from trainmark.features.forecast.record_facts import find_outcome, find_outcomes
from trainmark.record.metrics import Quantity
from trainmark.record.record import Record
from trainmark.record.store import Store


def run(topology: str, p_core: float, day: int, **changes: Any) -> Record:
    interval = (0.99 * p_core, 1.01 * p_core)
    return make_record(
        run_id=f"resnet50-{topology}-{day}",
        created=f"2026-11-{day:02}T00:00:00Z",
        plan={"topology": topology, **changes.pop("plan", {})},
        metrics={"p_core": Quantity(value=p_core, unit="images/s", interval=interval)},
        **changes,
    )


ONE, EIGHT = run("1x1", 100, 1), run("1x8", 780, 2)


@pytest.mark.parametrize(
    ("p_core", "place"), [(1520.0, "inside the range"), (900.0, "below the range"), (1900.0, "above the range")]
)
def test_an_outcome_lies_inside_the_range_below_or_above_it(p_core: float, place: str) -> None:
    found = find_outcome(run("2x8", p_core, 3), [ONE, EIGHT])
    assert found is not None
    assert found.place == place
    assert [str(size) for size in found.known] == ["1x1", "1x8"]


def test_only_runs_of_before_that_differ_in_nothing_else_are_asked() -> None:
    later, half = run("2x8", 1500, 3), run("1x8", 700, 2, plan={"recipe": {"batch_per_device": 16}})
    assert find_outcome(later, [run("1x8", 780, 4)]) is None
    assert find_outcome(later, [half]) is None
    assert find_outcome(later, [run("1x8", 780, 2, device="another")]) is None
    assert find_outcome(later, [run("2x8", 1490, 2)]) is None
    assert find_outcome(later, [ONE]) is None  # of one device nothing is said beyond a node
    assert find_outcome(run("2x8", 1500, 3, status="incomplete"), [ONE, EIGHT]) is None
    found = find_outcome(run("1x8", 760, 3), [ONE])
    assert found is not None
    assert found.off is None  # a range without a middle


def test_show_and_page_have_it_from_the_store_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    later = run("2x8", 1500, 3)
    for record in (ONE, EIGHT, later):
        store.add(record)
    assert find_outcomes([ONE, EIGHT, later], store).keys() == {EIGHT.run_id, later.run_id}
    assert main(["show", later.run_id, "--all", "--store", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Forecast and outcome" in out
    assert "inside the range" in out
    assert main(["show", ONE.run_id, "--all", "--store", str(tmp_path)]) == 0
    assert "Forecast and outcome" not in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", later.run_id, "--html", str(page), "--lang", "zh", "--store", str(tmp_path)]) == 0
    assert "预测与结果" in page.read_text(encoding="utf-8")
    (store.path(EIGHT.run_id)).write_text("{")
    assert main(["show", later.run_id, "--all", "--store", str(tmp_path)]) == 0
