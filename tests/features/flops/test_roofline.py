"""The least time of a step is what its data sheet allows, operator by operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.records import make_plan

from trainmark.features.flops import roofline, step_table
from trainmark.features.flops.step_count import BACKWARD, FORWARD, UPDATE, CountedStep, OperatorLaunch, StepCount
from trainmark.platforms import files
from trainmark.record.errors import UsageError
from trainmark.record.precision import Precision

SHEET = """
title = "Lumen"
device_type = "lumen"
collectives = "lccl"
precisions = ["fp32", "bf16"]
peaks = [
  { device = "L9", tflops = { fp32 = 10, bf16 = 100 }, memory_gb_s = 1000, source = "made up" },
  { device = "L8", tflops = { fp32 = 10, bf16 = 50 }, source = "made up" },
]
"""
PRODUCT = OperatorLaunch(layer="a.0.b", part=FORWARD, operator="mm", type="bfloat16", flops=int(1e12), bytes=int(1e9))
WIDE = OperatorLaunch(layer="a.1.b", part=BACKWARD, operator="mm", type="float32", flops=int(1e12), bytes=int(1e9))
MOVING = OperatorLaunch(layer="", part=UPDATE, operator="add", type="", flops=0, bytes=int(2e9))
STEP = CountedStep(
    count=StepCount(launches=((PRODUCT, 3), (WIDE, 1), (MOVING, 5)), copied_bytes=0, waits=()),
    items=8,
    item="images",
    stated_flops=4e12,
    batch_bytes=1000,
)
BF16 = Precision.parse("bf16")


@pytest.fixture
def lumen(tmp_path: Path) -> str:
    file = tmp_path / "lumen.toml"
    file.write_text(SHEET, encoding="utf-8")
    return str(file)


def test_each_operator_takes_its_products_or_its_memory_whichever_is_longer(lumen: str) -> None:
    [bound] = roofline.find_bounds(STEP, BF16, lumen, "L9")
    assert bound.products_s == pytest.approx(3 * 0.01 + 0.1)
    assert bound.least_s == pytest.approx(3 * 0.01 + 0.1 + 5 * 0.002)
    assert bound.memory_percent == pytest.approx(100 * 0.01 / 0.14)
    assert bound.most_mfu == pytest.approx(100 * 4e12 / (0.14 * 100e12))


def test_without_a_memory_bandwidth_there_is_no_bound_but_the_products(lumen: str) -> None:
    [bound] = roofline.find_bounds(STEP, BF16, lumen, "L8")
    assert (bound.least_s, bound.memory_percent, bound.most_mfu) == (None, None, None)
    assert bound.products_s == pytest.approx(3 * 0.02 + 0.1)


def test_all_cards_that_have_the_precision_come_fastest_first() -> None:
    found = roofline.find_bounds(STEP, BF16, "cpu")
    times = [bound.least_s for bound in found if bound.least_s is not None]
    assert times == sorted(times)
    assert len(times) > 10
    assert all(bound.tflops > 0 and bound.source for bound in found)


def test_a_name_that_says_less_means_all_its_cards() -> None:
    assert {bound.card for bound in roofline.find_bounds(STEP, BF16, "cpu", "A100")} == {
        "A100-SXM4-40GB",
        "A100-SXM4-80GB",
        "A100-PCIE-40GB",
        "A100 80GB PCIe",
    }


def test_an_unknown_card_and_a_precision_it_lacks_are_refused() -> None:
    with pytest.raises(UsageError, match="card 'H1000X' has no data sheet here; known: "):
        roofline.find_bounds(STEP, BF16, "cpu", "H1000X")
    with pytest.raises(UsageError, match="has no peak in fp8; it has"):
        roofline.find_bounds(STEP, Precision.parse("fp8"), "cpu", "L40S")


def test_no_data_sheet_moves_less_than_it_could_store_in_a_minute() -> None:
    """A slip of a thousand, such as TB/s for GB/s, would show."""
    for name in files.names():
        for sheet in files.load(name).peaks:
            if sheet.memory_gb_s is not None:
                assert 100 < sheet.memory_gb_s < 20_000, sheet.device


def test_layers_that_are_alike_share_a_row_and_the_last_is_all(lumen: str) -> None:
    plan = make_plan(workload="vit", precision="bf16")
    drawn = step_table.render(plan, STEP, roofline.find_bounds(STEP, BF16, lumen, "L9"), width=120)
    assert "a.*.b" in drawn
    assert "update of the weights" in drawn
    last = next(line.split() for line in drawn.splitlines() if line.startswith("all"))
    assert last == ["all", "3", "000", "1", "000", "100.0", "%", "14", "000", "9"]
    assert "bounds, not forecasts" in drawn.replace("\n", " ")


def test_the_document_adds_up(lumen: str) -> None:
    document = step_table.to_json(make_plan(precision="bf16"), STEP, roofline.find_bounds(STEP, BF16, lumen))
    for key in ("flops", "bytes", "launches"):
        assert sum(row[key] for row in document["operators"]) == document[key]
    assert document["cards"][0]["least_s"] <= document["cards"][1]["least_s"]
