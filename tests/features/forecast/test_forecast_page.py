"""The page of a forecast: measured sizes, range and ideal in one chart, every number in a table, in both languages."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.records import make_record

from trainmark.cli.main import main
from trainmark.features.forecast import page as forecast_page
from trainmark.features.forecast.forecast import forecast_next_sizes
from trainmark.features.report import run_page
from trainmark.features.report.run_page import ReportInputs
from trainmark.record.metrics import Quantity
from trainmark.record.record import Record
from trainmark.record.store import Store


def run(topology: str, p_core: float, **plan: object) -> Record:
    return make_record(
        run_id=f"resnet50-{topology}",
        plan={"topology": topology, **plan},
        metrics={
            "p_core": Quantity(value=p_core, unit="images/s", interval=(0.99 * p_core, 1.01 * p_core)),
            "energy_per_item": Quantity(value=36.0, unit="J/image"),
        },
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    for record in (run("1x1", 100.0), run("1x8", 780.0)):
        store.add(record)
    return tmp_path


def page(folder: Path, *words: str) -> str:
    path = folder / "forecast.html"
    assert main(["forecast", *words, "--html", str(path), "--store", str(folder)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_has_chart_table_and_what_it_rests_on(folder: Path) -> None:
    text = page(folder, "1x1", "1x8", "--to", "2x8,512x8", "--until", "1e9 items", "--price", "EUR 2/h")
    assert text.count("<polygon") == 1
    for said in ("measured", "ideal", "90 % range", "energy, kWh", "cost, EUR", "order of magnitude", "days"):
        assert said in text
    assert "Known from 1x1 and 1x8" in text
    assert "<script src" not in text


def test_it_speaks_chinese(folder: Path) -> None:
    text = page(folder, "1x1", "1x8", "--to", "2x8", "--until", "1e9 items", "--lang", "zh")
    assert 'lang="zh-CN"' in text
    for english in ("Every size", "What it rests on", "nine of ten outcomes", "of one device"):
        assert english not in text


def test_one_device_gives_a_range_without_a_line(folder: Path) -> None:
    text = page(folder, "1x1", "--to", "1x8,2x8")
    assert "<polygon" in text
    assert "usual range" in text
    assert "refused" in text


def test_several_trainings_have_a_chart_each_and_one_table() -> None:
    found = [forecast_next_sizes([run("1x1", rate), run("1x8", 7.8 * rate)]) for rate in (100.0, 200.0)]
    text = forecast_page.render(found, language="en", made="2026-11-17", trainmark="0.1.0")
    assert text.count("<polygon") == 2
    assert text.partition("<footer")[0].count('scope="row"') == 2 * 2 * 5  # in the table, and in those of the charts
    assert text.count('id="summary"') == 1


def test_a_report_of_several_topologies_goes_on_to_the_next_sizes() -> None:
    records = (run("1x1", 100.0), run("1x8", 780.0))
    text = run_page.render(ReportInputs(records=records))
    assert text.count("<polygon") == 1
    assert "8x8" in text
    assert "<polygon" not in run_page.render(ReportInputs(records=records[:1]))


def test_runs_that_carry_no_forecast_have_their_scaling_alone() -> None:
    noisy = Quantity(value=780.0, unit="images/s", interval=(500.0, 1200.0))
    records = (run("1x1", 100.0), make_record(run_id="noisy", plan={"topology": "1x8"}, metrics={"p_core": noisy}))
    text = run_page.render(ReportInputs(records=records))
    assert "speed-up" in text
    assert "<polygon" not in text


def test_the_back_test_has_no_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--backtest", "--html", str(folder / "x.html")]) == 2
    assert "leave --html out" in capsys.readouterr().err


def test_kinds_have_words_for_readers() -> None:
    assert forecast_page.kind_word("of a newer version", str) == "of a newer version"
