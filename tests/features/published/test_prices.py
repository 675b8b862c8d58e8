"""What published rows cost, by a reader's list of prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.records import make_record

from trainmark.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "forecast.md").read_text(encoding="utf-8")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """The example of the documentation."""
    path = tmp_path / "prices.toml"
    path.write_text(PAGE.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    return path


def read_costs(workload: str, prices: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    assert main(["published", workload, "--price-file", str(prices), "--json"]) == 0
    return {row["name"].removeprefix("published:"): row["cost"] for row in json.loads(capsys.readouterr().out)}


def test_a_row_costs_its_devices_for_its_items_and_its_time(prices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race = read_costs("gpt124m", prices, capsys)["modded-nanogpt-h100-record2-gpt124m-1x8-amp-bf16"]
    assert race["to_target"] == pytest.approx(8 * 3.40 * 1884 / 3600)
    assert race["per_million"] == pytest.approx(1e6 / 2.65e6 * 8 * 3.40 / 3600)
    assert race["currency"] == "EUR"
    resnet = read_costs("resnet50", prices, capsys)
    assert resnet["dle-a100-resnet50-1x8-amp"]["device_hour"] == 2.10, "the first pattern that fits"
    missed = resnet["flagperf-a100-resnet50-1x8-fp32-bs256"]
    assert (missed["device_hour"], missed["to_target"]) == (1.60, None), "it ended below its target"
    assert set(resnet["flagperf-c500-resnet50-1x8-fp32"].values()) == {None, "EUR"}
    assert all(cost["per_million"] is None for cost in read_costs("mlperf-resnet", prices, capsys).values())


def test_the_table_has_the_cost_and_says_where_there_is_no_price(
    prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["published", "resnet50", "--price-file", str(prices)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "EUR per million" in shown and "no price no price" in shown and "0.281" in shown


def test_a_site_has_the_same_columns_for_runs_too(
    prices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    record = make_record(device="NVIDIA H100 80GB HBM3")
    (tmp_path / "results" / "run.json").write_text(record.dumps(), encoding="utf-8")
    words = ["site", str(tmp_path / "results"), "--out", str(tmp_path / "public"), "--lang", "en"]
    assert main([*words, "--price-file", str(prices)]) == 0
    page = (tmp_path / "public" / "resnet50.html").read_text(encoding="utf-8")
    for head in ("Cost per million EUR", "Cost to target EUR", "no price"):
        assert head in page
    speed = record.metrics["p_train"].value
    assert speed is not None
    for cost in (1e6 / speed * 3.40 / 3600, 1e6 / 16621 * 8 * 2.10 / 3600):  # the run's, and DeepLearningExamples'
        assert f'data-key="{cost:.9g}"' in page
    assert main(words) == 0
    assert "Cost per million" not in (tmp_path / "public" / "resnet50.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [("H100 = 2", "key 'H100' is not known"), ("[device_hour]\nH100 = -1", "a price above 0"), ("[", "not valid TOML")],
)
def test_a_price_file_that_is_none_is_refused(
    text: str, said: str, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices.write_text(text)
    assert main(["published", "resnet50", "--price-file", str(prices)]) == 2
    assert said in capsys.readouterr().err
