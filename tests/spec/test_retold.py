"""Sentences that were written in English, said in the reader's language."""

from __future__ import annotations

import re

import pytest

from trainmark.spec import links, record
from trainmark.spec.language import catalogue, speaker, speaking
from trainmark.spec.record import Doubt
from trainmark.spec.retold import EITHER, retold, told, told_doubt

ZH, EN = speaker("zh"), speaker("en")


def test_figures_stay_what_they_are() -> None:
    text = "global batch 8 is below the reference recipe's 256"
    assert retold(text, EN) == text
    assert retold(text, ZH) == "全局批量 8，小于参考训练配置的 256"
    measured = [links.AllReduce(size_bytes=size, median_s=0.002, bus_gigabytes_per_s=3.0) for size in (4096, 2**26)]
    said = links.summary(measured, ranks=2, hosts=1)
    assert retold(said, EN) == said
    assert retold(said, ZH) == "1 台主机上 2 个进程之间的 all-reduce：4 KiB 用时 2.0 ms，64 MiB 带宽 3.0 GB/s"
    assert retold(record.coverage(full=False, steps=27, warmup=1), ZH) == "稳定部分：1 步预热之后的 26 步"


@pytest.mark.slow
def test_a_hostile_sentence_is_not_matched_for_long() -> None:
    text = "all-reduce among " + " ranks on  host:  ms for ,  GB/s for " * 10_000
    assert retold(text, ZH) == text
    long = ("x and " * 500, "row 1: " * 500, "(" * 900 + ")" * 900, "no a: " * 600)
    assert all(isinstance(retold(text, ZH), str) for text in long)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("setting 'lr2' is not known; did you mean 'lr'?", "未知设置 'lr2'；是否是 'lr'？"),
        ("--format 'x' is not known; known: steps, items", "未知的 --format 'x'；已知的有：steps, items"),
        ("The target was missed: its time is not a time to target.", "未达到目标：其时间不是达标时间。"),
        ("resnet50: the model was not evaluated", "resnet50：模型未被评估"),
        ("topology 1x8 and 1x1, precision tf32 and fp32", "拓扑 1x8 与 1x1，精度 tf32 与 fp32"),
        (
            "not accepted; slow hosts: 1 of 10; failed hosts: 1 of 10; the median is 7.5 items/s",
            "不予验收；慢主机：1 / 10；失败主机：1 / 10；中位数为 7.5 items/s",
        ),
        ("2 threads", "2 个线程"),
        ("4 of 60", "4/60"),
        ("p_core known to ±2 % or 60 s", "p_core 精确到 ±2 % 或 60 s"),
        ("20 000 files, 8 MiB of locked memory", "20 000 个文件，锁定内存 8 MiB"),
        ("a folder called steps, or so", "a folder called steps, or so"),
        ("/data/no such/x.tar", "/data/no such/x.tar"),
    ],
)
def test_sentences_in_one_another_and_beside_each_other_are_told_and_names_stay(english: str, chinese: str) -> None:
    assert retold(english, ZH) == chinese
    assert retold(english, EN) == english


def test_every_sentence_with_values_in_its_places_is_found_again() -> None:
    """What fits by chance to a shorter sentence must not take a longer one's place."""
    unlike = []
    for english, chinese in catalogue("zh").items():
        places = re.findall(r"\{(\w+)\}", english)
        letters = sum(sign.isalpha() for sign in re.sub(r"\{\w+\}", "", english))
        if not places or letters < 20 or "\x04" in english or "}{" in english:
            continue
        values = {name: "s" if name == EITHER else f"v{index}" for index, name in enumerate(dict.fromkeys(places))}
        if retold(english.format(**values), ZH) != chinese.format(**values):
            unlike.append(english)
    assert len(unlike) <= 5, unlike


def test_the_language_of_a_process_is_chosen_and_given_back() -> None:
    assert told("no records") == "no records"
    with speaking("zh"):
        assert told("no records") == "没有记录"
    assert told("no records") == "no records"


def test_a_doubt_is_told_once() -> None:
    known = Doubt(code="small-batch", text="global batch 8 is below the reference recipe's 256")
    strange = Doubt(code="small-batch", text="words {of} nobody")
    meanings = {"small-batch": "批量太小"}
    assert told_doubt(known, ZH, meanings) == "全局批量 8，小于参考训练配置的 256"
    assert told_doubt(strange, ZH, meanings) == "批量太小"
    assert told_doubt(strange, ZH, {}) == told_doubt(strange, EN, {}) == "words {of} nobody"
