"""Column headers of published tables in English and Chinese: what each column holds, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmark import workloads
from trainmark.analysis.device_names import fold_key, tidy
from trainmark.features.published.cells import is_rate, is_unit, parse_place
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.precision import PRECISIONS

WORDS: dict[str, tuple[str, ...]] = {
    # which run it was
    "configuration": ("配置", "configuration", "config", "机器配置", "硬件配置", "设备配置", "训练资源"),
    "config_file": ("配置文件", "config file"),
    "device": ("gpu", "gpus", "device", "devices", "card", "cards", "card type", "gpu type", "gpu model", "accelerator",
               "加速卡", "加速卡型号", "芯片", "型号", "设备", "硬件设备简称", "device name"),
    "vendor": ("vendor", "厂商"),
    "model": ("模型", "model", "models", "model name"),
    "precision": ("precision", "prec", "prec.", "精度", "数据精度", "data precision", "data type", "dtype"),
    "fp16": ("fp16", "amp", "half"),
    "fix_hp": ("fix_hp", "超参", "超参修改", "修改超参", "hyper-parameter changes", "hyperparameters", "hp"),
    "batch": ("batch size", "batch", "bs", "单卡批尺寸", "batch size per gpu", "batch size per device", "bs per gpu",
              "batch size per card", "per_device_bs", "local batch size"),
    "num_devices": ("num_gpus", "num gpus", "gpu num", "gpu number", "number of gpus", "num_cards", "gpu count",
                    "gpu数", "卡数"),
    "ordinal": ("no", "no.", "#", "id", "序号"),
    "setting": ("parallel", "parallel_strategy", "并行策略", "type", "peft", "toolbox", "dataset", "datasets",
                "data set", "数据集", "method", "network", "backbone", "crop size", "input size", "image size", "size",
                "lr schd", "optimizer", "epoch", "epochs", "train epochs", "epoch数", "step", "steps", "steps数",
                "是否精度对齐", "global batch size"),
    # what was measured
    "e2e_time": ("e2e_time", "e2e", "端到端时间", "end-to-end time", "total time", "time", "training time",
                 "train time", "运行时长", "训练时长", "训练时间"),
    "p_whole": ("p_whole", "总吞吐量", "overall throughput", "performance_whole"),
    "p_train": ("p_train", "训练吞吐量", "training throughput"),
    "p_core": ("p_core", "计算吞吐量", "compute throughput"),
    "quality": ("训练结果", "quality", "result", "training result", "score", "准确率", "得分", "评分", "收敛精度",
                "acc", "accuracy", "accurary"),
    "target": ("目标精度", "目标", "target", "target accuracy"),
    "mem": ("mem", "memory", "显存", "显存占用", "硬件存储使用", "device memory", "memory usage", "memory utilization",
            "memory utilisation", "train mem", "train memory", "gpu mem", "gpu memory", "max mem", "max memory"),
    "fps": ("fps", "throughput", "吞吐量", "吞吐", "ips", "avg_ips", "avg ips", "qps", "tps", "train fps", "speed",
            "training speed", "train speed", "training performance"),
    "performance": ("performance", "性能"),
    "convergence": ("convergence criteria", "convergence", "收敛标准", "收敛指标", "收敛条件"),
    "power": ("power", "功耗"),
    "scalability": ("scalability", "扩展性", "线性度", "加速比"),
    "stability": ("stability", "稳定性", "稳定度"),
    "steady": ("p_steady",),
    "figure": ("mfu", "计算使用率", "计算卡使用率", "token/p/s", "tokens/p/s", "ips_per_device", "ips_per_gpu",
               "fps_per_gpu", "per step time", "step time", "time per step", "seconds per iteration",
               "train_steps_per_second", "train_runtime"),
    # tables about something else
    "software": ("sdk", "release", "driver", "framework", "system", "version", "os", "cpu", "kernel", "docker", "驱动",
                 "框架", "系统", "软件", "版本", "os and kernel"),
    "metric": ("指标名称", "指标", "metric", "metric name"),
    "value": ("指标值", "值", "value"),
    "note": ("特殊说明", "说明", "note", "notes", "remark", "备注"),
}  # fmt: skip
"""By kind of column. A `setting` distinguishes runs, a `figure` was measured; both are kept verbatim."""

MEASURES = {"e2e_time", *THROUGHPUTS, "quality", "mem", "fps", "performance", "convergence", "power", "scalability",
            "stability", "steady", "figure", "batch", "num_devices", "precision_results", "count_results"}  # fmt: skip
"""A table with one of these may be one of results."""

LOWER = ("[a-z]*loss", "wer", "cer", "ppl", "perplexity", "fid", "mae", "mse", "rmse", "eer", "验证loss")
HIGHER = ("acc", "accuracy", "accurary", "top", "prec@", "m?ap", "ar", "m?iou", "bleu", "auc", "f1", "f1score", "exact",
          "rouge[a-z]*", "bbox", "segm", "m?dice", "hmean", "recall", "psnr", "ssim", "mos", "mota", "ndcg", "准确率",
          "精确率", "召回率")  # fmt: skip
"""Names of qualities: lower, or higher, is better."""

QUALITIES: dict[str, tuple[str, ...]] = {
    **{quality.name: quality.on_pages for quality in workloads.qualities() if quality.on_pages},
    "MOS": ("mos", "score(mos)"),
}
"""By the name records use; no workload here measures the last."""

QUANTITIES = {
    **dict.fromkeys(("p_whole", "p_train", "p_core", "fps", "performance", "steady"), "throughput"),
    **{name: name for name in ("quality", "power", "scalability", "stability", "convergence")},
    "mem": "memory",
    "e2e_time": "time",
}
"""What a column is about, by its kind; other columns only identify the run."""

_KINDS = {fold_key(word): kind for kind, words in WORDS.items() for word in words}
_QUALITY_NAMES = {fold_key(word): name for name, words in QUALITIES.items() for word in words}
_LOWER = re.compile(rf"(?<![a-z])(?:{'|'.join(LOWER)})(?![a-z])")
_QUALITY = re.compile(rf"(?<![a-z])(?:{'|'.join((*LOWER, *HIGHER))})(?![a-z])")
_SOFTWARE = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS['software'])})(?![a-z])")
_COUNT = re.compile(r"(single|one|two|four|eight|单|[0-9]{1,5}) ?(?:x )?(?:cards?|gpus?|devices?|卡)", re.IGNORECASE)
_COUNTS = {"single": 1, "one": 1, "two": 2, "four": 4, "eight": 8, "单": 1}
_PER_SECOND = re.compile(r"(?:train(?:ing)?_)?([a-z]{2,20})_per_sec(?:ond)?", re.IGNORECASE)
_AIM = re.compile(r"(目标|target )(.+)", re.IGNORECASE)
_REACHED = re.compile(r"(收敛|实际|converged )(.+)", re.IGNORECASE)
_SEPARATORS = ("&&", "/")


@dataclass(frozen=True, kw_only=True)
class Head:
    kind: str | None
    """A key of WORDS, `precision_results` or `count_results` where the header names the runs of its cells, or None
    for an unknown column."""
    word: str
    """As the page writes it, without its unit; a more exact name in brackets is preferred."""
    unit: str | None = None
    name: str | None = None
    """Name of the quality on the page, if given."""
    bracketed: bool = False
    """Whether a bracket gives the name."""
    alias: str | None = None
    """Which throughput, where the header names it: `FPS (p_train, images/s)`."""
    parts: tuple[str, ...] = ()
    """Names of the figures in one cell: `map_bbox && map_segm`."""
    separator: str = ""
    place: str = ""
    """Where its figures were measured, if given: `FPS (BI x 8)`."""
    count: int | None = None
    """Of devices, by `8 Cards`."""


def parse_head(text: str, quality_word: str | None = None) -> Head:
    """Parses a column header; `quality_word` is the page's name for its quality elsewhere."""
    whole = tidy(text)
    word, bracket, rest = whole.replace("[", "(").partition("(")
    word = word.strip()
    inside = [part.strip() for part in rest.rstrip(")] ").split(",")] if bracket else []
    known = _parse_whole_head(whole)
    if known is not None:
        return known
    kind = _find_kind(word, quality_word)
    if kind is None and not inside:
        # `e2e_time/s`, `mem, GiB`
        short, _, unit = re.sub("[,;]", "/", whole).partition("/")
        kind = _find_kind(short.strip(), quality_word)
        if kind is not None:
            word, inside = short.strip(), [unit.strip()]
    if kind is None:
        return _split_parts(Head(kind=None, word=whole))
    if kind in ("quality", "target") and not any(map(is_unit, inside)):
        return _parse_quality_head(kind, word, rest.rstrip(")] ").strip(), whole)
    return _parse_measure_head(kind, word, inside)


def _parse_whole_head(whole: str) -> Head | None:
    """Headers whose brackets belong to the name."""
    if count := _COUNT.fullmatch(whole):
        return Head(kind="count_results", word=whole, count=_COUNTS.get(count[1].casefold()) or int(count[1]))
    if is_precision(whole) and _KINDS.get(fold_key(whole)) != "fp16":
        return Head(kind="precision_results", word=whole)
    if fold_key(whole) in _KINDS:
        return Head(kind=_KINDS[fold_key(whole)], word=whole)
    if per := _PER_SECOND.fullmatch(whole):
        return Head(kind="fps", word=whole, unit=f"{per[1]}/s")
    if is_rate(whole):
        return Head(kind="fps", word=whole, unit=whole)
    return None


def _parse_quality_head(kind: str, word: str, inside: str, whole: str) -> Head:
    """`Score(MOS)`, `mAP(0.5:0.95)`, `WER (attention)`, `目标mAP精度(bbox && segm)`, `map_bbox && map_segm`."""
    for pattern in (_AIM, _REACHED):
        if (match := pattern.fullmatch(word)) and not _KINDS.get(fold_key(word)):
            word = match[2].removesuffix("精度") or match[2]
    if not _is_general(word):
        base = f"{word} ({inside})" if inside and not _find_separator(inside) else word
        found = Head(kind=kind, word=base, name=base)
        if inside and (separator := _find_separator(inside)):
            parts = tuple(f"{word} {part.strip()}" for part in inside.split(separator))
            return replace(found, parts=parts, separator=separator)
        return _split_parts(found)
    if inside and is_quality(word) and not is_quality(inside):
        return Head(kind=kind, word=whole, name=f"{word} ({inside})")
    if inside:
        return _split_parts(Head(kind=kind, word=inside, name=inside, bracketed=True))
    return Head(kind=kind, word=whole)


def _parse_measure_head(kind: str, word: str, inside: list[str]) -> Head:
    alias, where, name = None, "", None
    found: list[str] = []
    for part in inside:
        if fold_key(part) in _KINDS and _KINDS[fold_key(part)] in THROUGHPUTS:
            alias, word = _KINDS[fold_key(part)], part
        elif _KINDS.get(fold_key(part)) == "steady":
            kind, word = "steady", part
        elif kind in ("quality", "target") and part and not is_unit(part):
            name, word = part, part
        elif is_unit(part):
            found.append(part)
        elif kind in MEASURES and parse_place(part).topology is not None:
            where = part
    bracketed = name is not None
    if kind in ("quality", "target") and name is None and not _is_general(word):
        name = word
    return Head(
        kind=kind,
        word=word,
        unit=", ".join(found) or None,
        name=name,
        bracketed=bracketed,
        alias=alias,
        place=where,
    )


def _split_parts(found: Head) -> Head:
    separator = _find_separator(found.word)
    if not separator:
        return found
    return replace(found, parts=tuple(part.strip() for part in found.word.split(separator)), separator=separator)


def _find_separator(text: str) -> str:
    return next((separator for separator in _SEPARATORS if separator in text), "")


def parse_heads(cells: Sequence[str], quality_word: str | None = None) -> list[Head]:
    """Of two columns for the configuration the second is its file's."""
    found = [parse_head(cell, quality_word) for cell in cells]
    first = next((index for index, one in enumerate(found) if one.kind == "configuration"), len(found))
    return [
        replace(one, kind="config_file") if one.kind == "configuration" and index > first else one
        for index, one in enumerate(found)
    ]


def is_software(head: Head) -> bool:
    return head.kind == "software" or bool(_SOFTWARE.search(head.word.casefold()))


def is_precision(text: str) -> bool:
    """`FP32`, `AMP+NHWC`: whether a text names a precision and nothing else."""
    words = re.split(r"[+/ ,_]+", tidy(text).casefold())
    known = (*PRECISIONS, "amp")
    return words[0] in known and all(word in (*known, "nhwc", "nchw", "o1", "o2", "dali") for word in words)


def find_measure_kind(name: str) -> str | None:
    """The kind of a pair inside a cell; None where it is neither a known measure nor a quality."""
    found = parse_head(name)
    return found.kind if found.kind in (MEASURES - {"precision_results", "count_results"}) else None


def is_quality(text: str) -> bool:
    return bool(_QUALITY.search(tidy(text).casefold()))


def find_direction(name: str) -> str | None:
    """Whether `higher` or `lower` is better for a quality."""
    plain = name.casefold()
    return "lower" if _LOWER.search(plain) else "higher" if _QUALITY.search(plain) else None


def find_quality_name(word: str, workload: str = "", *, sure: bool = True) -> str | None:
    """The name records use for a quality; the word itself where it is another, None where it names none.

    A word that many tasks use, such as acc, is a workload's own quality where the page is about that workload.
    """
    found = _QUALITY_NAMES.get(fold_key(word))
    if found is not None and _is_general(word):
        known = workloads.facts(workload)
        return found if sure and known and known.find_quality(found) else tidy(word)
    unnamed = _KINDS.get(fold_key(word)) in ("quality", "target") and not is_quality(word)
    return found or (None if unnamed else tidy(word))


def _is_general(word: str) -> bool:
    """Whether a word may name any quality: score, accuracy, result."""
    return _KINDS.get(fold_key(word)) in ("quality", "target") or fold_key(word) in ("finalacc", "valacc", "精度", "")


def _find_kind(word: str, quality_word: str | None) -> str | None:
    if not fold_key(word):
        return None
    if found := _KINDS.get(fold_key(word)):
        return found
    if quality_word and fold_key(word) == fold_key(quality_word):
        return "quality"
    if _AIM.fullmatch(word):
        return "target"
    return "quality" if is_quality(word) or fold_key(word) in _QUALITY_NAMES or _REACHED.fullmatch(word) else None
