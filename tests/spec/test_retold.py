"""Sentences on records, said in the reader's language."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trainmark.spec import doubts, links, record
from trainmark.spec.language import speaker
from trainmark.spec.record import Doubt
from trainmark.spec.retold import TEMPLATES, retold, told_doubt

ZH, EN = speaker("zh"), speaker("en")
SOURCE = Path(doubts.__file__).parents[1]
WRITTEN_IN = ("spec/doubts.py", "spec/record.py", "spec/links.py", "train/failures.py", "spec/endings.py")


def sentences_written() -> str:
    """All text that those modules write, in one piece, with a mark wherever a value stands."""
    found = []
    for name in WRITTEN_IN:
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_a_sentence_that_is_still_written(template: str) -> None:
    written = sentences_written()
    for piece in re.split(r"\{\w+\}", template):
        for part in re.split(r": |, | hosts?$|: accuracy|accuracy", piece):
            assert part.strip(" :s") in written, part


def test_figures_stay_what_they_are() -> None:
    text = "global batch 8 is below the reference recipe's 256"
    assert retold(text, EN) == text
    assert retold(text, ZH) == "全局批量 8 小于参考配置的 256"
    measured = [links.AllReduce(size_bytes=size, median_s=0.002, bus_gigabytes_per_s=3.0) for size in (4096, 2**26)]
    said = links.summary(measured, ranks=2, hosts=1)
    assert retold(said, EN) == said
    assert retold(said, ZH) == "1 台主机上 2 个进程之间的 all-reduce：4 KiB 用时 2.0 ms，64 MiB 带宽 3.0 GB/s"
    assert retold(record.coverage(full=False, steps=27, warmup=1), ZH) == "稳定部分：1 步预热之后的 26 步"


def test_a_hostile_sentence_is_not_matched_for_long() -> None:
    text = "all-reduce among " + " ranks on  host:  ms for ,  GB/s for " * 10_000
    assert retold(text, ZH) == text


def test_a_doubt_is_told_once() -> None:
    known = Doubt(code="small-batch", text="global batch 8 is below the reference recipe's 256")
    strange = Doubt(code="small-batch", text="words {of} nobody")
    meanings = {"small-batch": "批量太小"}
    assert told_doubt(known, ZH, meanings) == "全局批量 8 小于参考配置的 256"
    assert told_doubt(strange, ZH, meanings) == "批量太小"
    assert told_doubt(strange, ZH, {}) == told_doubt(strange, EN, {}) == "words {of} nobody"
