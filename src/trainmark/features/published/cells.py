"""Parses single cells of published tables: figures, units, memory, times, topologies, batches."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from trainmark.analysis.device_names import tidy
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS

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
"""Items of throughput, by their names on pages."""
_STEPS = ("it", "iter", "iters", "iteration", "iterations", "step", "steps", "batch", "batches", "epoch", "epochs")
"""Not items: their number depends on the batch."""
_SECOND = ("s", "sec", "second", "秒")
_TIME_UNITS = (
    *_SECOND, "secs", "seconds", "ms", "min", "mins", "minutes", "h", "hr", "hours", "小时", "天", "days", "分钟"
)  # fmt: skip
_PLAIN = ("%", "w", "kw", "g", "gb", "gib", "m", "mb", "mib", "t", "x", "倍", "fps", "ips", "qps", "tps")
_NAMES = {word: item for item, words in _ITEMS.items() for word in words}


def parse_item(unit: str | None) -> str | None:
    """What a rate in this unit counts: `images` of `imgs/sec`, `mel frames` of `mel frames/s`; None where no items."""
    plain = tidy(unit or "")
    slash = re.fullmatch(r"([^/]{1,40}?) ?/ ?([A-Za-z秒]{1,6})\.?", plain)
    if slash is None or slash[2].casefold() not in _SECOND or slash[1].casefold() in (*_STEPS, *_TIME_UNITS):
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
        return bool(slash) or plain in (*_TIME_UNITS, *_PLAIN)
    known = {*_NAMES, *_STEPS, *_TIME_UNITS, *_PLAIN, "p", "card", "gpu", "device"}
    return above.strip().split(" ")[-1] in known and all(part.strip() in known for part in below.split("/"))


BLANKS = {"", "/", "//", "\\", "\\/", "n/a", "na", "none", "null", "无", "不适用", "tbd", "待补充", "?"}
"""Placeholders for an empty cell, beside any number of dashes."""
LONGEST = 400
"""Characters of a cell that is parsed; a longer one is no figure."""

_FIGURE = re.compile(
    r"[~≈约]?\s*([+-]?(?:[0-9]{1,3}(?:[, '][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,6})?|[+-]?\.[0-9]+)"
    r"\s*([^0-9]{0,30})",
    re.IGNORECASE,
)
_TIMES = re.compile(r"([^*x×]{1,40}?)\s?[*x×]\s?([0-9]{1,6})([^0-9]{0,10})", re.IGNORECASE)
_SLASH = re.compile(r" ?/ ?")
_SPANS = re.compile(
    r"(?:([0-9]{1,5})(?:d|days?|天))?(?:([0-9]{1,5})(?:h|hours?|小时))?(?:([0-9]{1,5})(?:m|mins?|minutes?|分钟?))?"
    r"(?:([0-9]{1,5})(?:s|secs?|seconds?|秒))?",
    re.IGNORECASE,
)
_REMARK = re.compile(r"(\S[^(]{0,60})\(([^()]{1,80})\)")
_SPREAD = re.compile(r"([^±]{1,40}?)(?:±|\+/?-)(.{1,30})")
_SUM = re.compile(r"([0-9. */x×]{3,60})=([^=]{1,60})")
_CLOCK = re.compile(r"([0-9]{1,5}):([0-5]?[0-9]):([0-5]?[0-9](?:\.[0-9]+)?)")
_SECONDS = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds", "秒"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes", "分", "分钟"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours", "小时", "时"), 3600.0),
    **dict.fromkeys(("d", "day", "days", "天"), 86400.0),
}
_GIB = {
    **dict.fromkeys(("", "g", "gb", "gib"), 1.0),  # pages that write GB mean what the card's tool showed: GiB
    **dict.fromkeys(("m", "mb", "mib"), 1 / 1024),
    **dict.fromkeys(("t", "tb", "tib"), 1024.0),
}
_LAST_BRACKET = re.compile(r"[(\[]([^()\[\]]{0,80})[)\]]\s*$")
_BRACKETED = re.compile(r"\s*([0-9]{1,6}\s*[x×*]\s*[0-9]{1,6})\s*(?:[x×*]\s*([0-9]{1,4})\s*gi?b?)?\s*", re.IGNORECASE)
"""`1x8`, `1x8*80G`: nodes, devices per node, memory per device."""
_COUNTS = {
    **{sign: count for count, sign in enumerate("一二三四五六七八九十", 1)},
    "单": 1,
    "两": 2,
    "双": 2,
}
_MANY = "[0-9]{1,6}|[一二三四五六七八九十单两双]"
_WORDED = re.compile(
    rf"(?:(?:(?P<machines>{_MANY})\s*机)?\s*(?P<cards>{_MANY})\s*卡"
    r"|(?P<nodes>[0-9]{1,6})\s*nodes?\s*[,x×*]?\s*(?P<devices>[0-9]{1,6})\s*(?:devices?|gpus?|cards?|chips?)"
    r"|(?:(?<![0-9A-Za-z])(?P<rows>[0-9]{1,6}))?(?<![-_])[x×*]\s*(?P<after>[0-9]{1,6})"
    r"|\((?P<counted>[0-9]{1,6})\s*(?:cards?|gpus?|devices?|卡)\)"
    r"|(?<![0-9A-Za-z])(?P<before>[0-9]{1,6})\s*[x×])$",
    re.IGNORECASE,
)
_AHEAD = re.compile(r"([0-9]{1,4})\s*[x×*]\s*(?=[A-Za-z])", re.IGNORECASE)
"""`8 x BI-V100`."""
_BATCH = re.compile(
    r"(?<![a-z])(?<!global)(?<!global[ _-])(?P<each>per[ _-]?(?:device|gpu|card)[ _-]|local[ _-]?|micro[ _-]?)?"
    r"(?:bs|batch[\s_-]?size|batch|批大小)\s*[:=]?\s*(?P<size>[0-9]{1,9})(?![0-9.a-z]|\s?\(?global)"
    r"\s*(?P<of>/\s*(?:device|card|gpu|卡)|\(?(?:per|a|each)\s+(?:device|card|gpu)|每卡)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    value: float
    unit: str
    """As the cell gives it; empty where it gives none."""
    remark: str = ""
    """Other text beside the number: a bracket, a spread, a calculation."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A configuration cell: which device, and how many."""

    device: str
    topology: Topology | None
    worded: Topology | None = None
    """The topology by its text, where the bracket gives another."""
    memory_gib: float | None = None
    """Of one device."""
    remark: str = ""
    """Text of a further bracket."""


@dataclass(frozen=True, kw_only=True)
class BatchCell:
    size: int
    per_device: bool
    """Whether the text states it."""


def is_blank(text: str) -> bool:
    plain = tidy(text).casefold()
    return plain in BLANKS or not plain.strip("-—–")


def parse_figure(text: str) -> Figure | None:
    """A finite number and its unit; None for anything else."""
    match = _FIGURE.fullmatch(tidy(text))
    if not match:
        return None
    value = float(re.sub("[, ']", "", match[1]))
    return Figure(value=value, unit=_SLASH.sub("/", match[2].strip())) if math.isfinite(value) else None


def parse_measured(text: str) -> Figure | None:
    """A figure with a remark: `0.0495(checkpoint 81)`, `0.979+-0.006`, `17.23 * 2048 / 8 = 4410 tokens/s`."""
    plain = tidy(text)
    if len(plain) > LONGEST:
        return None
    if match := _REMARK.fullmatch(plain):
        found, remark = parse_figure(match[1]), match[2]
    elif match := _SPREAD.fullmatch(plain):
        found, spread = parse_figure(match[1]), parse_figure(match[2])
        found, remark = (found if spread else None), f"± {match[2].strip()}"
    elif match := _SUM.fullmatch(plain):
        found, remark = parse_figure(match[2]), match[1].strip()
    else:
        found, remark = parse_figure(plain), ""
    if found is None or "(" in found.unit:
        return None
    return Figure(value=found.value, unit=found.unit, remark=remark)


def parse_figures(text: str, parts: int, separator: str) -> list[Figure] | None:
    """The figures of `0.38 && 0.34` or `0.886/0.860/0.753`; None unless there are as many as parts."""
    found = [parse_figure(part) for part in tidy(text).split(separator)]
    known = [one for one in found if one is not None]
    return known if len(found) == len(known) == parts else None


def parse_each(text: str) -> tuple[Figure | None, int | None]:
    """`128*8`, `66.27 * 8 GB`: the value per device, and the number of devices where given."""
    if match := _TIMES.fullmatch(tidy(text)):
        found = parse_figure(match[1])
        return (found and Figure(value=found.value, unit=found.unit or match[3].strip())), int(match[2])
    return parse_figure(text), None


def parse_seconds(text: str, unit: str = "") -> float | None:
    """A time in the unit of the cell, or else of its column: `1000`, `0:16:40`, `4d3h`."""
    plain = tidy(text)
    if match := _CLOCK.fullmatch(plain):
        return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3])
    if (match := _SPANS.fullmatch(plain.replace(" ", ""))) and any(match.groups()):
        return float(
            sum(int(part or 0) * size for part, size in zip(match.groups(), (86400, 3600, 60, 1), strict=True))
        )
    return _convert(parse_figure(plain), unit, _SECONDS)


def parse_memory_gib(text: str, unit: str = "") -> tuple[float | None, float | None] | None:
    """Used and total of `37.5/40.0`, `18.4*8`, `28.1 GiB`; None where it is none of these."""
    parts = tidy(text).split("/")
    if len(parts) > 2:
        return None
    found = []
    for part in parts:
        value = None if is_blank(part) else _convert(parse_each(part)[0], unit, _GIB)
        if value is None and not is_blank(part):
            return None
        found.append(value)
    return found[0], found[1] if len(found) > 1 else None


def _convert(found: Figure | None, unit: str, factors: dict[str, float]) -> float | None:
    if found is None:
        return None
    factor = factors.get((found.unit or unit).casefold().strip(" ."))
    return None if factor is None else found.value if factor == 1 else round(found.value * factor, 9)


@lru_cache(maxsize=5000)
def parse_place(text: str) -> Place:
    """Device and topology of `A100单机8卡（1x8*80G）`, `A100 1 node, 8 devices (1x8)`, `BI-V100 x8`."""
    rest, topology, memory = tidy(text)[:LONGEST], None, None
    remarks: list[str] = []
    while match := _LAST_BRACKET.search(rest):
        inside = _BRACKETED.fullmatch(match[1])
        if inside is None and topology is None:
            before = _LAST_BRACKET.search(rest[: match.start()])
            if before is None or not _BRACKETED.fullmatch(before[1]):
                break  # it belongs to the device's own name
        if inside and topology is None:
            topology, memory = _parse_topology(inside[1]), float(inside[2]) if inside[2] else None
        elif match[1].strip():
            remarks.insert(0, match[1].strip())
        rest = rest[: match.start()].rstrip()
    worded = None
    if topology is not None and (end := _find_spelt_end(rest, topology)) is not None:
        # `A10016机8卡`: the name ends in digits, and the bracket gives the number of machines
        rest = rest[:end]
    elif match := _WORDED.search(rest):
        worded = _parse_worded(match)
        rest = rest[: match.start()]
    elif topology is None and (match := _AHEAD.match(rest)):
        worded = _parse_topology(f"1x{match[1]}")
        rest = rest[match.end() :]
    rest = rest.rstrip(" ,")
    return Place(
        device="" if is_blank(rest) else rest.strip("/ ") if rest.startswith("/ ") else rest,
        topology=topology or worded,
        worded=worded if topology is not None and worded != topology else None,
        memory_gib=memory,
        remark=", ".join(remarks),
    )


def _find_spelt_end(text: str, topology: Topology) -> int | None:
    """Where text begins that repeats the bracket; cards are counted per node or in total."""
    counts = dict.fromkeys((topology.devices_per_node, topology.devices))
    nodes, cards = _list_spellings(topology.nodes), "|".join(_list_spellings(count) for count in counts)
    alone = "" if topology.nodes > 1 else "?"
    spelt = re.search(rf"(?:(?:{nodes})\s*机){alone}\s*(?:{cards})\s*卡$", text)
    return spelt.start() if spelt else None


def _list_spellings(count: int) -> str:
    return "|".join((str(count), *(sign for sign, value in _COUNTS.items() if value == count)))


def _parse_worded(match: re.Match[str]) -> Topology | None:
    found = match.groupdict()
    if found["cards"]:
        return _parse_topology(f"{_parse_count(found['machines'] or '1')}x{_parse_count(found['cards'])}")
    if found["counted"]:
        return _parse_topology(f"1x{found['counted']}")
    if found["nodes"]:
        return _parse_topology(f"{found['nodes']}x{found['devices']}")
    return _parse_topology(f"1x{found['before']}" if found["before"] else f"{found['rows'] or 1}x{found['after']}")


def _parse_count(text: str) -> int:
    return _COUNTS.get(text) or int(text)


def _parse_topology(text: str) -> Topology | None:
    try:
        return Topology.parse(re.sub(r"\s", "", text))
    except UsageError:
        return None


def parse_batch(text: str) -> BatchCell | None:
    """The batch named in `bs=256,lr=0.8`, `per_device_bs=4` or `SDK V2.2,bs:128,8x`; never a global one."""
    match = _BATCH.search(tidy(text))
    return BatchCell(size=int(match["size"]), per_device=bool(match["each"] or match["of"])) if match else None


def normalize_precision(text: str) -> str:
    """Known words in one spelling; anything else as the page writes it."""
    word = tidy(text)
    return word.lower() if word.lower() in (*PRECISIONS, "amp") else word


def is_half(word: str) -> bool:
    known = PRECISIONS.get(word)
    return known.family == "fp16" if known else word in ("amp", "half")
