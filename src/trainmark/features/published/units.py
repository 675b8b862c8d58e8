"""The units of published tables in one spelling: what a rate counts, what takes how long, what is a share."""

from __future__ import annotations

import re

from trainmark.analysis.device_names import tidy

_ITEMS = {
    "images": ("image", "images", "img", "imgs", "图片", "张"),
    "samples": ("sample", "samples", "样本"),
    "sequences": ("sequence", "sequences", "seq", "seqs", "序列"),
    "tokens": ("token", "tokens", "ntokens"),
    "instances": ("ins", "instance", "instances"),
    "frames": ("frame", "frames"),
    "words": ("word", "words"),
    "queries": ("query", "queries"),
}
"""What throughput counts, by the words pages use."""
_STEPS = ("it", "iter", "iters", "iteration", "iterations", "step", "steps", "batch", "batches", "epoch", "epochs")
"""What is no item: how many of these there are depends on the batch."""
_SECOND = ("s", "sec", "second", "秒")
_TIMES = (*_SECOND, "secs", "seconds", "ms", "min", "mins", "minutes", "h", "hr", "hours", "小时", "天", "days", "分钟")
_PLAIN = ("%", "w", "kw", "g", "gb", "gib", "m", "mb", "mib", "t", "x", "倍", "fps", "ips", "qps", "tps")
_NAMES = {word: item for item, words in _ITEMS.items() for word in words}


def parse_item(unit: str | None) -> str | None:
    """What a rate in this unit counts: `images` of `imgs/sec`, `mel frames` of `mel frames/s`; None where no items."""
    plain = tidy(unit or "")
    slash = re.fullmatch(r"([^/]{1,40}?) ?/ ?([A-Za-z秒]{1,6})\.?", plain)
    if slash is None or slash[2].casefold() not in _SECOND or slash[1].casefold() in (*_STEPS, *_TIMES):
        return None
    return _NAMES.get(slash[1].casefold(), slash[1])


def is_rate(text: str) -> bool:
    """Whether a text is a rate of items that are known, such as `images/sec`."""
    counted = parse_item(text)
    return counted is not None and counted.split(" ")[-1] in {*_ITEMS, *_NAMES}


def is_unit(text: str) -> bool:
    """Whether a word is a unit and not a name or a remark."""
    plain = tidy(text).casefold().strip(" .")
    above, slash, below = plain.partition("/")
    if not slash or parse_item(text):
        return bool(slash) or plain in (*_TIMES, *_PLAIN)
    known = {*_NAMES, *_STEPS, *_TIMES, *_PLAIN, "p", "card", "gpu", "device"}
    return above.strip().split(" ")[-1] in known and all(part.strip() in known for part in below.split("/"))
