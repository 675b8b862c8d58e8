from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.made_clusters import Cluster
from support.records import make_record

from trainmark.cli.main import main
from trainmark.record.metrics import Quantity
from trainmark.record.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    for run_id, topology, p_core in (("resnet50-one", "1x1", 100.0), ("resnet50-eight", "1x8", 780.0)):
        store.add(
            make_record(
                run_id=run_id,
                plan={"topology": topology, "recipe": {"batch_per_device": 32}},
                metrics={
                    "p_core": Quantity(value=p_core, unit="images/s", interval=(0.99 * p_core, 1.01 * p_core)),
                    "energy_per_item": Quantity(value=36.0, unit="J/image"),
                },
            )
        )
    return tmp_path


def forecast(folder: Path, *words: str) -> int:
    return main(["forecast", *words, "--store", str(folder)])


def test_the_table_says_speed_time_energy_and_cost_from_what_and_how_surely(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("one", "eight", "--to", "2x8,512x8", "--until", "1e9 items", "--price", "EUR 2/h", "--pue", "1.3")
    assert forecast(folder, *asked) == 0
    out = capsys.readouterr().out
    for said in ("p_core", "efficiency", "energy", "kWh", "cost", "EUR", "days"):
        assert said in out
    assert "Known from 1x1 and 1x8" in out
    assert "512x8: more than 16 times 1x8" in out
    assert "1,000,000,000 items, as requested" in out


def test_programs_get_every_number_with_its_interval(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast(folder, "one", "eight", "--to", "2x8", "--until", "1e9 items", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    (size,) = found["sizes"]
    low, high = size["rate_interval"]
    assert low < size["rate"] < high
    assert size["rate"] < 2 * 780
    assert size["time_s"]["low"] < size["time_s"]["value"] < size["time_s"]["high"]
    assert [entry["topology"] for entry in found["known"]] == ["1x1", "1x8"]


def test_one_batch_is_divided_over_the_devices_and_what_is_assumed_for_it_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forecast(folder, "one", "eight", "--to", "2x8,3x8,8x8", "--global-batch", "256", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    half, uneven, far = found["sizes"]
    assert (half["batch_per_device"], half["kind"]) == (16, "forecast")
    assert half["rate"] < 2 * 780  # each device has less to do at once
    assert (uneven["kind"], far["kind"]) == ("refused", "refused")
    notes = "\n".join(found["notes"])
    assert (
        "batch per device: 32 in the runs, 16 at 2x8; 3 % of a step's compute is assumed not to depend on it" in notes
    )
    assert "3x8 is refused: a global batch of 256 does not divide evenly over 24 devices" in notes
    assert "8x8 is refused: a batch of 4 per device is more than 2 times below that of the runs, 32" in notes
    assert "every size has" not in notes


def test_a_run_with_links_is_forecast_by_its_exchange_as_far_as_they_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(bytes=1_000_000_000)
    for words in ("1x2", "1x4"):
        Store(tmp_path).add(cluster.record(words))
    assert forecast(tmp_path, "1x2-32", "1x4-32", "--to", "1x8,2x8", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    inside, _ = found["sizes"]
    assert inside["rate"] == pytest.approx(cluster.rate("1x8"), rel=0.01)
    assert found["basis"].startswith("Known from 1x2 and 1x4 and the links there, but none between nodes")


def test_published_tables_are_forecast_by_their_smaller_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast(folder, "--published", "vit", "--to", "2x8") == 0
    out = capsys.readouterr().out
    assert "1x1 is left out" in out
    assert "10 667" in out


def test_a_published_row_answers_with_time_energy_and_cost(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--published", "resnet50", "--to", "2x8", "--until", "90 epochs", "--price", "EUR 2.1/h", "--pue", "1.5")
    assert forecast(folder, *asked, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    (size,) = found["sizes"]
    hours = size["time_s"]["value"] / 3600
    core_to_whole = 6105 / 5663  # of the row 1x8: evaluations and waits keep their share
    assert hours == pytest.approx(90 * 1281167 / size["rate"] * core_to_whole / 3600)
    for bound in ("low", "value", "high"):
        assert size["cost"][bound] == pytest.approx(16 * 2.1 * size["time_s"][bound] / 3600)
    energy = size["energy_kwh"]
    assert energy["value"] is None
    assert energy["low"] < 0.75 * 16 * 0.4 * hours * 1.5 < energy["high"]
    assert "between half and all of the data sheet's 400 W" in " ".join(found["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resnet50", "--price", "2/h"), "gives no time to its target; set the length"),
        (("gpt2", "--until", "3 epochs"), "the items per epoch of gpt2 are not known; use --until 'N items'"),
    ],
)
def test_a_published_row_that_tells_no_time_says_why(
    words: tuple[str, ...], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forecast(folder, "--published", *words, "--to", "4x8", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert [size["time_s"] for size in found["sizes"]] == [None]
    assert said in " ".join(found["notes"])


def test_the_back_test_shows_error_and_coverage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forecast(folder, "--backtest") == 0
    out = capsys.readouterr().out
    assert "several sizes" in out
    assert "outcomes were in their 90 % range" in out
    assert forecast(folder, "--backtest", "--json") == 0
    assert 0.85 <= json.loads(capsys.readouterr().out)["coverage"] <= 0.95


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eight",), "--to is missing"),
        (("eight", "--to", "many"), "is not NODESxDEVICES"),
        (("eight", "--to", "2x8", "--price", "cheap"), "is not a price of one device an hour"),
        (("eight", "--to", "2x8", "--pue", "0.5"), "is not between 1 and 5"),
        (("eight", "--to", "2x8", "--published", "vit"), "leave one of them out"),
        (("eight", "--to", "2x8", "--global-batch", "0"), "--global-batch 0 is not a batch"),
        (("--backtest", "--to", "2x8"), "leave out runs"),
        (("--published", "vit", "--to", "1x1"), "no published table of vit"),
        (("eight", "--to", "2x8", "--until", "soon"), "'soon' is not a length of training"),
        (("--published", "vit", "--to", "2x8", "--until", "soon"), "'soon' is not a length of training"),
    ],
)
def test_what_cannot_be_forecast_is_a_sentence_and_exit_2(
    words: tuple[str, ...], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forecast(folder, *words) == 2
    assert said in capsys.readouterr().err
