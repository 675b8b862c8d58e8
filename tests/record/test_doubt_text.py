"""A doubt is a code with values, and said from these in the reader's language."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.records import doubt, make_record

from trainmark.record.doubts import TEMPLATES, translate_doubt
from trainmark.record.language import translator
from trainmark.record.record import Doubt, Record

ZH, EN = translator("zh"), translator("en")

SKEW = {"rank": 3, "host": "node7", "factor": "1.25", "fastest": 0, "more_items": True, "exchange_known": True}
STEP = {"rank": 1, "first": "fc.weight", "allowed": "0.1", "differing": 2, "quantities": 90}


@pytest.mark.parametrize(
    ("code", "values", "english", "chinese"),
    [
        (
            "few-steps",
            {"percent": "9.1", "more": 1173},
            "p_core is known to ±9.1 %, not ±1 %: about 1173 more steps would do",
            "p_core 只精确到 ±9.1 %，未达到 ±1 %：大约还需要 1173 步",
        ),
        (
            "few-steps",
            {"percent": None, "more": None},
            "too noisy to say what p_core is: a quieter machine would help",
            "p_core 波动太大，无法判断：换一台更空闲的机器会有帮助",
        ),
        (
            "drifting",
            {"before": 100.0, "after": 40.0, "unit": "images/s", "step": 12, "until": None},
            "the run became slower at step 12: from 100 to 40.0 images/s, so that a step takes 2.50 times as long; "
            "p_core is the mean over all of it",
            "运行在第 12 步变更慢：从 100 到 40.0 images/s，每一步用时变为原来的 2.50 倍；p_core 是全程的平均",
        ),
        (
            "rank-skew",
            SKEW,
            "ranks differ by more than 5 %: rank 3 on node7 took 1.25 times as long for its own computing as rank 0, "
            "the fastest for as many items",
            "各 rank 相差超过 5 %：rank 3（node7） 的自身计算用时是最快的 rank 0 的 1.25 倍（样本数相同）",
        ),
        (
            "small-batch",
            {"batch": 8, "all_data": True, "reference": 256},
            "global batch 8, for want of more data than that, is below the reference recipe's 256",
            "全局批量 8（数据只有这么多），小于参考训练配置的 256",
        ),
        (
            "power-sampling",
            {"samples": 7, "wanted": 60, "gap_s": "3.1"},
            "power does not keep to MLPerf's rule of 60 samples at 1 Hz: 7 samples of 60, a gap of 3.1 s",
            "功耗采样未达到 MLPerf 的要求（1 Hz 下 60 次采样）：60 次采样中只有 7 次，有 3.1 s 的间隔",
        ),
        (
            "restarted",
            {"steps": [10, 31], "lost_s": "3.0", "reasons": ["rank 1 died"]},
            "restarted 2 times, at step 10 and 31, 3.0 s lost, which no throughput holds; rank 1 died",
            "重启 2 次，在第 10 和 31 步，损失 3.0 s，不计入任何吞吐；rank 1 died",
        ),
    ],
)
def test_a_doubt_is_said_in_either_language(code: str, values: dict[str, Any], english: str, chinese: str) -> None:
    found = doubt(code, **values)
    assert found.text == translate_doubt(found, EN) == english
    assert translate_doubt(found, ZH) == chinese


BAR = {"unit": " dB", "side": "below", "bar_word": "linear prediction", "bar": "2"}
VALUES: dict[str, dict[str, Any]] = {
    "generated-data": {"data": "imagenet", "quality": "accuracy", "outcome": "learnt"},
    "at-chance": {"quality": "accuracy", "value": "10.0", "chance": "10", "classes": "10"},
    "below-bar": {"quality": "snr", "value": "1.0", **BAR},
    "target-missed": {"name": "acc", "sign": ">=", "goal": "75.5", "unit": " %", "value": None},
    "few-steps": {"steps": 3},
    "drifting": {"before": 40.0, "after": 50.0, "unit": "images/s", "step": None, "until": 30},
    "rank-skew": {**SKEW, "host": "", "more_items": False, "exchange_known": False},
    "small-batch": {"batch": 8, "all_data": False, "reference": 256},
    "precision-differs": {"asked": "bf16", "ran": "fp32", "seen": "", "inside": ""},
    "cpu-differs": {**STEP, "difference": "12"},
    "mfu-above-100": {"value": "130", "precision": "bf16", "peak": None},
    "power-sampling": {"rate_hz": "0.50"},
    "throttled": {"share": "12", "reasons": ["software power cap"]},
    "crowded-cores": {"ranks": 4, "cores": 1},
    "resumed": {"step": 5, "damaged": []},
    "restarted": {"steps": [10], "lost_s": "3.0", "reasons": []},
}
"""Where a sentence depends on more than its numbers."""


@pytest.mark.parametrize("code", TEMPLATES)
def test_every_doubt_has_chinese_after_its_record_was_written_and_read(code: str) -> None:
    values = VALUES.get(code) or dict.fromkeys(re.findall(r"\{(\w+)\}", TEMPLATES[code]), 7)
    record = make_record(doubts=(doubt(code, **values),))
    [read] = Record.from_json(json.loads(record.dumps())).doubts
    assert (read.code, read.text, dict(read.values)) == (code, doubt(code, **values).text, values)
    assert re.search("[\u4e00-\u9fff]", translate_doubt(read, ZH)), code


@pytest.mark.parametrize(
    "old",
    [
        Doubt(code="small-batch", text="global batch 8 is below the reference recipe's 256"),
        Doubt(code="small-batch", text="words {of} nobody", values={"batch": 8, "all_data": False, "reference": 256}),
        Doubt(code="drifting", text="x", values={"before": 1.0, "after": 0.0, "unit": "s"}),
        Doubt(code="drifting", text="x", values={"before": [], "after": {}}),
        Doubt(code="restarted", text="x", values={"steps": 3}),
        Doubt(code="generated-data", text="x", values={"outcome": {}, "quality": 3}),
        Doubt(code="of-tomorrow", text="a newer doubt {0.__class__}", values={"a": 1}),
    ],
)
def test_a_sentence_without_values_or_of_another_version_is_shown_as_it_is(old: Doubt) -> None:
    assert translate_doubt(old, ZH) == translate_doubt(old, EN) == old.text
