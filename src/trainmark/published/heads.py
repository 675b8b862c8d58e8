"""The words of published tables in English and Chinese: which column holds what, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainmark import workloads
from trainmark.published.cells import key, tidy
from trainmark.spec.metrics import THROUGHPUTS

WORDS: dict[str, tuple[str, ...]] = {
    "configuration": ("配置", "configuration", "config", "机器配置", "硬件配置", "设备配置"),
    "precision": ("precision", "精度", "数据精度", "data precision", "data type", "dtype"),
    "fix_hp": ("fix_hp", "超参", "超参修改", "修改超参", "hyper-parameter changes", "hyperparameters", "hp"),
    "e2e_time": ("e2e_time", "e2e", "端到端时间", "end-to-end time", "total time"),
    "p_whole": ("p_whole", "总吞吐量", "overall throughput", "performance_whole"),
    "p_train": ("p_train", "训练吞吐量", "training throughput"),
    "p_core": ("p_core", "计算吞吐量", "compute throughput"),
    "quality": ("训练结果", "quality", "result", "training result", "score", "accuracy", "准确率", "得分", "评分"),
    "mem": ("mem", "memory", "显存", "显存占用", "硬件存储使用", "device memory", "memory usage", "memory utilization",
            "memory utilisation"),
    "fps": ("fps", "throughput", "吞吐量", "ips"),
    "performance": ("performance", "性能"),
    "convergence": ("convergence criteria", "convergence", "收敛标准", "收敛指标", "收敛条件"),
    "power": ("power", "功耗"),
    "scalability": ("scalability", "扩展性", "线性度", "加速比"),
    "stability": ("stability", "稳定性"),
    "device": ("gpu", "device", "card", "accelerator", "加速卡", "加速卡型号", "芯片", "硬件设备简称", "device name"),
    "vendor": ("vendor", "厂商"),
    "fp16": ("fp16", "amp", "half"),
    "metric": ("指标名称", "指标", "metric", "metric name"),
    "value": ("指标值", "值", "value"),
    "note": ("特殊说明", "说明", "note", "notes", "remark", "备注"),
    "model": ("模型", "model"),
}  # fmt: skip

QUALITIES: dict[str, tuple[str, ...]] = {
    **{quality.name: quality.on_pages for quality in workloads.qualities() if quality.on_pages},
    "MOS": ("mos", "score(mos)"),
}
"""By the name records use; no workload here measures the last."""

QUANTITIES = {
    **dict.fromkeys(("p_whole", "p_train", "p_core", "fps", "performance"), "throughput"),
    **{name: name for name in ("quality", "power", "scalability", "stability", "convergence")},
    "mem": "memory",
    "e2e_time": "time",
}
"""What a column is about, by its kind; columns that are not here only say which run it was."""


_KINDS = {key(word): kind for kind, words in WORDS.items() for word in words}
_QUALITY_NAMES = {key(word): name for name, words in QUALITIES.items() for word in words}


@dataclass(frozen=True, kw_only=True)
class Head:
    kind: str | None
    """A key of WORDS, or None where the column is not known."""
    word: str
    """As the page writes it, without its unit; where a bracket says more exactly what is meant, what stands there."""
    unit: str | None = None
    name: str | None = None
    """Of a quality, by the word records use."""
    alias: str | None = None
    """Which throughput is meant, where the head says it: `FPS (p_train, images/s)`."""


def head(text: str, quality_word: str | None = None) -> Head:
    """What a column holds. `quality_word` is what the page has called its quality elsewhere."""
    whole = tidy(text)
    word, bracket, rest = whole.replace("[", "(").partition("(")
    inside = [part.strip() for part in rest.rstrip(")] ").split(",")] if bracket else []
    kind = _kind(word, quality_word)
    if kind is None and not inside:
        # `e2e_time/s`, `mem, GiB`
        word, _, unit = re.sub("[,;]", "/", whole).partition("/")
        kind, inside = _kind(word.strip(), quality_word), [unit.strip()]
    if kind is None:
        return Head(kind=None, word=whole)
    name = quality_name(word) if kind == "quality" else None
    alias = None
    units = []
    for part in inside:
        if kind == "quality" and part not in ("", "%") and name is None:
            name, word = quality_name(part), part
        elif key(part) in _KINDS and _KINDS[key(part)] in THROUGHPUTS:
            alias, word = _KINDS[key(part)], part
        elif part:
            units.append(part)
    return Head(kind=kind, word=word.strip(), unit=", ".join(units) or None, name=name, alias=alias)


def heads(cells: Sequence[str], quality_word: str | None = None) -> list[Head]:
    return [head(cell, quality_word) for cell in cells]


def quality_name(word: str) -> str | None:
    """The name records use for a quality; the word itself where it is another, None where it names none."""
    found = _QUALITY_NAMES.get(key(word))
    return found or (None if _KINDS.get(key(word)) == "quality" else tidy(word))


def _kind(word: str, quality_word: str | None) -> str | None:
    found = _KINDS.get(key(word))
    if found is None and (key(word) in _QUALITY_NAMES or (quality_word and key(word) == key(quality_word))):
        return "quality"
    return found if key(word) else None
