"""What a run cost is the reader's view: by their price and their building, with nothing of it on the record."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.records import make_record, make_timeline

import trainmark
from trainmark.analysis.quantities import add_cost
from trainmark.cli.main import main
from trainmark.cli.options import parse_price
from trainmark.features.report import run_page
from trainmark.features.report.run_page import ReportInputs
from trainmark.record.metrics import PRICED, Quantity
from trainmark.record.record import Record
from trainmark.record.site import Price
from trainmark.record.store import Store, read_record
from trainmark.view.describe import describe
from trainmark.view.table import render

EUROS = Price(device_hour=2.0, currency="EUR", pue=1.5)


def run(run_id: str = "resnet50-a", *, compute_ms: float = 1000.0, energy_j: float | None = 7.2e6) -> Record:
    timeline = make_timeline(ranks=2, compute_ms=compute_ms)
    found = make_record(run_id=run_id, timeline=timeline, plan={"topology": "1x2"})
    energy = Quantity(value=energy_j, unit="J", unavailable=None if energy_j else "no sensor")
    return replace(found, metrics={**found.metrics, "energy": energy})


def value(record: Record, alias: str) -> float:
    found = record.metrics[alias].value
    assert found is not None
    return found


def test_cost_is_all_devices_for_all_the_time_and_a_million_items_go_by_p_train() -> None:
    seen = add_cost(run(), EUROS)
    assert value(seen, "cost") == pytest.approx(2 * 2.0 * value(seen, "e2e_time") / 3600)
    assert value(seen, "cost_per_million") == pytest.approx(1e6 * 2 * 2.0 / 3600 / value(seen, "p_train"))
    assert value(seen, "energy_kwh") == pytest.approx(2.0 * 1.5)
    assert seen.metrics["cost_per_million"].unit == "EUR/million images"
    speed, cost = seen.metrics["p_train"].interval, seen.metrics["cost_per_million"].interval
    assert speed is not None
    assert cost is not None
    assert cost[1] / cost[0] == pytest.approx(speed[1] / speed[0])


def test_without_a_price_there_is_no_cost_and_without_a_sensor_no_energy() -> None:
    assert "cost" not in add_cost(run(), Price()).metrics
    assert "energy_kwh" in add_cost(run(), Price()).metrics
    blind = add_cost(run(energy_j=None), EUROS)
    assert blind.metrics["energy_kwh"].unavailable == "no sensor"
    assert "energy_kwh" not in add_cost(run(energy_j=None), Price()).metrics


def test_every_view_has_the_columns_and_the_stored_record_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path).add(run())
    words = ("--store", str(tmp_path), "--price", "EUR 2/h", "--pue", "1.5")
    assert main(["show", "last", "--all", *words]) == 0
    shown = capsys.readouterr().out
    assert all(alias in shown for alias in PRICED)
    assert main(["show", "last", "--json", *words]) == 0
    assert not PRICED.keys() & json.loads(capsys.readouterr().out)["metrics"].keys()
    assert not PRICED.keys() & read_record(Store(tmp_path).path("resnet50-a")).metrics.keys()
    assert main(["report", "last", "--format", "csv", *words]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["energy_kwh"]) == pytest.approx(3.0)
    assert row["cost_unit"] == "EUR"
    seen = add_cost(run(), EUROS)
    assert "EUR" in render([seen], width=200)
    assert "kWh" in render([seen], width=200)
    page = run_page.render(ReportInputs(records=(seen, run("resnet50-b"))))
    assert page.count("cost_per_million") >= 2
    assert "energy_kwh" in describe(seen)


def test_the_site_has_the_price_unless_a_page_is_to_be_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainmark.toml").write_text('[price]\ndevice_hour = 2\ncurrency = "CHF"\npue = 1.2\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRAINMARK_CONFIG", raising=False)
    Store(tmp_path).add(run())
    for more, there in (((), True), (("--publish",), False), (("--publish", "--price", "CHF 3/h"), True)):
        assert main(["report", "last", "--format", "csv", "--store", str(tmp_path), *more]) == 0
        assert ("CHF" in capsys.readouterr().out) is there
    assert "CHF" in trainmark.report("last", format="csv", store=tmp_path)
    (tmp_path / "trainmark.toml").write_text("[price]\npue = 0.4\n")
    assert main(["show", "last", "--store", str(tmp_path)]) == 2
    assert "pue must be a number from 1 to 5" in capsys.readouterr().err


def test_a_faster_device_may_be_the_dearer_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    store.add(run("resnet50-slow", compute_ms=1000))
    store.add(run("resnet50-fast", compute_ms=400))
    asked = ["compare", "slow", "fast", "--store", str(tmp_path), "--metric", "cost_per_million"]
    assert main([*asked, "--price", "2/h"]) == 0
    assert "Better: B" in capsys.readouterr().out
    assert main([*asked, "--price", "2/h,9/h"]) == 6
    assert main(asked) == 2
    assert "give --price 2.10/h" in capsys.readouterr().err
    assert main([*asked, "--price", "1/h,2/h,3/h"]) == 2
    assert "there are two sides" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["cheap", "2", "EUR 2 USD/h", "-1/h", "0/h"])
def test_a_price_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(trainmark.UsageError, match="is not a price of one device an hour"):
        parse_price(word, None, Price())


def test_a_price_keeps_what_the_site_says_of_the_rest() -> None:
    usual = Price(device_hour=1.0, currency="USD", pue=1.3)
    assert parse_price("3.5/h", None, usual) == Price(device_hour=3.5, currency="USD", pue=1.3)
    assert parse_price("3.5 EUR/h", 1.1, usual) == Price(device_hour=3.5, currency="EUR", pue=1.1)


def test_explain_tells_money_from_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for word, said in (("cost", "the reader's own"), ("price", "the reader's own"), ("kwh", "hosts, switches")):
        assert main(["explain", word, "--lang", "en"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
