"""Tables and pages say what ran, mark what was not asked for, and show how a batch was found."""

from __future__ import annotations

from typing import Any

import pytest
from support.records import make_record

from trainmark.cli.main import main
from trainmark.launch.session import find_strict_violations
from trainmark.record.doubts import collect_doubts
from trainmark.record.language import translator
from trainmark.record.record import Doubt, Record
from trainmark.view import facts, table
from trainmark.view.describe import describe

SEEN: dict[str, Any] = {
    "asked": "amp-bf16",
    "ran": "fp32",
    "computed": {"matmul": {"float32": 3}, "convolution": {"float32": 106}},
    "multiplications": {"matmul": {"float32": 30}, "convolution": {"float32": 4000}},
    "weights": {"float32": 96782},
    "tf32": {"matmul": False, "convolution": False},
    "autocast": "bfloat16",
    "loss_scale": None,
    "skipped_steps": 0,
}
FILL: dict[str, Any] = {
    "batch_per_device": 16,
    "reason": "not 24: out of memory",
    "took_s": 31.2,
    "curve": [
        {"batch": 8, "items_per_s": 5.2, "step_s": 1.5, "memory_bytes": 2**30, "unfit": ""},
        {"batch": 16, "items_per_s": 9.5, "step_s": 1.7, "memory_bytes": 2**31, "unfit": ""},
        {"batch": 24, "items_per_s": 0.0, "step_s": 0.0, "memory_bytes": None, "unfit": "out of memory"},
    ],
}


def record(asked: str = "amp-bf16", **environment: Any) -> Record:
    return make_record(plan={"precision": asked}, environment={"device": {"name": "AMD EPYC"}, **environment})


def doubts(**precision: Any) -> dict[str, str]:
    found = record(precision={**SEEN, **precision})
    return {doubt.code: doubt.text for doubt in collect_doubts(found, reference_global_batch=256)}


def test_little_in_eight_bits_is_a_doubt_and_its_share_is_shown() -> None:
    computed = {"matmul": {"bfloat16": 9, "float8_e4m3fn": 1, "float8_e5m2": 2}, "convolution": {}}
    ran = "mixed: 97 % bfloat16, 1 % float8_e4m3fn, 2 % float8_e5m2, weights bfloat16"
    seen = {**SEEN, "asked": "fp8", "ran": ran, "computed": computed, "scaled_share": 0.03, "autocast": None}
    said = doubts(**seen)["precision-differs"]
    assert said.startswith("fp8 was asked for and mixed: 97 % bfloat16")
    assert "9 matmuls in bfloat16, 1 in float8_e4m3fn, 2 in float8_e5m2" in said
    assert "3.0 % of the multiplications" in describe(record("fp8", precision=seen))
    assert "of the multiplications" not in describe(record(precision=SEEN))


def test_the_label_is_what_ran_and_says_what_was_asked_for_instead() -> None:
    assert "| fp32 (amp-bf16 asked) |" in table.markdown([record(precision=SEEN)])
    assert "| amp-bf16 |" in table.markdown([record(precision={**SEEN, "ran": "amp-bf16"})])
    assert "| amp-bf16 |" in table.markdown([record()])


def test_what_is_not_as_asked_is_a_doubt_that_names_both_and_the_counts() -> None:
    assert doubts()["precision-differs"] == (
        "amp-bf16 was asked for and fp32 ran: the first step had 3 matmuls in float32, 106 convolutions in float32"
    )
    assert "precision-differs" not in doubts(ran="amp-bf16")


@pytest.mark.parametrize(("skipped", "doubted"), [(0, False), (1, True)])
def test_more_than_a_hundredth_of_the_steps_skipped_is_a_doubt(skipped: int, doubted: bool) -> None:
    assert ("skipped-steps" in doubts(skipped_steps=skipped)) is doubted  # of 60


def test_another_precision_than_asked_is_not_valid_under_strict() -> None:
    differs = Doubt(code="precision-differs", text="bf16 was asked for and fp32 ran")
    refused = find_strict_violations(make_record(doubts=(differs,)))
    assert refused == ("not valid under --strict: bf16 was asked for and fp32 ran",)
    assert find_strict_violations(make_record(doubts=())) == ()


def test_the_page_of_a_run_shows_what_its_first_step_was_computed_in() -> None:
    page = describe(record(precision={**SEEN, "loss_scale": 65536.0, "skipped_steps": 2}), width=100)
    assert "AMD EPYC 1x1 · fp32" in page
    for said in ("fp32; amp-bf16 was asked for", "106 convolutions in float32", "65 536, 2 steps skipped"):
        assert said in page


def test_what_was_computed_is_told_in_chinese_too() -> None:
    section = facts.precision(record(precision=SEEN), translator("zh"))
    assert section is not None
    assert "3 矩阵乘法（float32）, 106 卷积（float32）" in [fact.value for fact in section.facts]
    assert {"关闭", "不允许"} & {fact.value for fact in section.facts}


def test_the_page_of_a_run_shows_every_batch_that_was_tried() -> None:
    page = describe(record(fill=FILL), width=100)
    assert "16 per device was chosen; not 24: out of memory" in page
    assert "out of memory" in page.partition("not 24")[2].partition("\n")[2]


def test_a_plan_says_that_its_batch_is_found_when_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "resnet50", "--recipe", "fill", "--platform", "cpu"]
    assert main(words) == 0
    assert "searched at the start" in capsys.readouterr().out
    assert main([*words, "--set", "batch_per_device=64"]) == 0
    said = capsys.readouterr().out
    assert "searched at the start" not in said
    assert "learning_rate            0.2   (reference: 0.1)" in said


@pytest.mark.features
def test_fill_on_several_nodes_asks_for_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "resnet50", "--recipe", "fill", "--topology", "2x1", "--hosts", "a,b"]) == 2
    assert "give it: --set batch_per_device=N" in capsys.readouterr().err
