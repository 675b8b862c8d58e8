"""Parses single cells of published tables: figures, units, memory, times, topologies, batches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec

from trainmark.analysis.device_names import tidy
from trainmark.record.errors import UsageError
from trainmark.record.plan import Topology
from trainmark.record.precision import PRECISIONS

VOCABULARY: Mapping[str, Any] = msgspec.toml.decode(
    files("trainmark.features.published").joinpath("words.toml").read_bytes()
)
"""Words of pages, by what they mean."""
LONGEST = 400
"""Characters of a cell that is parsed; a longer one is no figure."""


def invert(table: Mapping[str, list[str]]) -> dict[str, str]:
    """By word, what it means."""
    return {word: meaning for meaning, words in table.items() for word in words}


_CELLS, _UNITS = VOCABULARY["cells"], VOCABULARY["units"]
_ITEMS = invert(VOCABULARY["items"])
_SECONDS = {word: float(size) for word, size in invert(VOCABULARY["seconds"]).items()}
_GIB = {word: float(size) / 1024 for word, size in invert(VOCABULARY["mebibytes"]).items()}
_SECOND = ("s", "sec", "second", "秒")
_PLAIN_UNITS = {*_SECONDS, *_GIB, *_UNITS["others"]}
_ALL_UNITS = {*_PLAIN_UNITS, *_ITEMS, *_UNITS["steps"], *_UNITS["per"]}
_KNOWN_PRECISIONS = (*PRECISIONS, "amp")

_FIGURE = re.compile(
    r"[~≈约]?\s*([+-]?(?:[0-9]{1,3}(?:[, '][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,6})?|[+-]?\.[0-9]+)"
    r"\s*([^0-9]{0,30})",
    re.IGNORECASE,
)
_MEASURED = (
    re.compile(r"(?P<figure>\S[^(]{0,60})\((?P<remark>[^()]{1,80})\)"),
    re.compile(r"(?P<figure>[^±]{1,40}?)(?P<remark>(?:±|\+/?-)\s*[0-9.]{1,20}[%A-Za-z/ ]{0,14})"),
    re.compile(r"(?P<remark>[0-9. */x×]{3,60})=(?P<figure>[^=]{1,60})"),
    re.compile(r"(?P<figure>.+)(?P<remark>)"),
)
"""A figure with a remark: `0.0495(checkpoint 81)`, `0.979+-0.006`, `17.23 * 2048 / 8 = 4410 tokens/s`."""
_TIMES = re.compile(r"([^*x×]{1,40}?)\s?[*x×]\s?([0-9]{1,6})([^0-9]{0,10})", re.IGNORECASE)
_SPANS = re.compile(
    r"(?:([0-9]{1,5})(?:d|days?|天))?(?:([0-9]{1,5})(?:h|hours?|小时))?(?:([0-9]{1,5})(?:m|mins?|minutes?|分钟?))?"
    r"(?:([0-9]{1,5})(?:s|secs?|seconds?|秒))?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"([0-9]{1,5}):([0-5]?[0-9]):([0-5]?[0-9](?:\.[0-9]+)?)")
_BRACKET = re.compile(
    r"[(\[]\s*([0-9]{1,6}\s*[x×*]\s*[0-9]{1,6})\s*(?:[x×*]\s*([0-9]{1,4})\s*gi?b?)?\s*[)\]]"
    r"((?:\s*[(\[][^()\[\]]{0,80}[)\]])*)\s*$",
    re.IGNORECASE,
)
"""`(1x8)`, `(1x8*80G)`: nodes, devices per node, memory per device; then remarks."""
_NUMERAL = re.compile(f"[{''.join(_CELLS['numerals'])}](?=\\s*[机卡])")
_COUNTED = re.compile(
    r"(?:(?:([0-9]{1,6})\s*(?:机|nodes?)\s*[,x×*]?)?\s*([0-9]{1,6})\s*(?:卡|devices?|gpus?|cards?|chips?)"
    r"|\(([0-9]{1,6})\s*(?:cards?|gpus?|devices?|卡)\)"
    r"|(?:(?<![0-9A-Za-z])([0-9]{1,6}))?(?<![-_])[x×*]\s*([0-9]{1,6})"
    r"|(?<![0-9A-Za-z])([0-9]{1,6})\s*[x×])$",
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


def parse_item(unit: str | None) -> str | None:
    """What a rate in this unit counts: `images` of `imgs/sec`, `mel frames` of `mel frames/s`; None where no items."""
    slash = re.fullmatch(r"([^/]{1,40}?) ?/ ?([A-Za-z秒]{1,6})\.?", tidy(unit or ""))
    if slash is None or slash[2].casefold() not in _SECOND:
        return None
    counted = slash[1].casefold()
    return None if counted in (*_UNITS["steps"], *_SECONDS, "ms") else _ITEMS.get(counted, slash[1])


def is_rate(text: str) -> bool:
    """Whether a text is a rate of items that are known, such as `images/sec`."""
    counted = parse_item(text)
    return counted is not None and counted.split(" ")[-1] in {*VOCABULARY["items"], *_ITEMS}


def is_unit(text: str) -> bool:
    """Whether a word is a unit and not a name or a remark."""
    above, *below = tidy(text).casefold().strip(" .").split("/")
    if not below:
        return above in _PLAIN_UNITS
    known = above.strip().split(" ")[-1] in _ALL_UNITS and all(part.strip() in _ALL_UNITS for part in below)
    return known or parse_item(text) is not None


def is_blank(text: str) -> bool:
    plain = tidy(text).casefold()
    return plain in _CELLS["blank"] or not plain.strip("-—–")


def parse_figure(text: str) -> Figure | None:
    """A finite number and its unit; None for anything else."""
    match = _FIGURE.fullmatch(tidy(text))
    if not match:
        return None
    value = float(re.sub("[, ']", "", match[1]))
    return Figure(value=value, unit=re.sub(" ?/ ?", "/", match[2].strip())) if math.isfinite(value) else None


def parse_measured(text: str) -> Figure | None:
    """A figure that may have a remark beside it."""
    plain = tidy(text)
    if len(plain) > LONGEST:
        return None
    match = next(match for pattern in _MEASURED if (match := pattern.fullmatch(plain or " ")))
    found = parse_figure(match["figure"])
    return replace(found, remark=match["remark"].strip()) if found and "(" not in found.unit else None


def parse_figures(text: str, parts: int, separator: str) -> list[Figure] | None:
    """The figures of `0.38 && 0.34` or `0.886/0.860/0.753`; None unless there are as many as parts."""
    found = [parse_figure(part) for part in tidy(text).split(separator)]
    known = [one for one in found if one is not None]
    return known if len(found) == len(known) == parts else None


def parse_each(text: str) -> Figure | None:
    """The value per device of `128*8`, `66.27 * 8 GB`."""
    match = _TIMES.fullmatch(tidy(text))
    found = parse_figure(match[1] if match else text)
    return replace(found, unit=found.unit or match[3].strip()) if match and found else found


def parse_seconds(text: str, unit: str = "") -> float | None:
    """A time in the unit of the cell, or else of its column: `1000`, `0:16:40`, `4d3h`."""
    plain = tidy(text)
    if match := _CLOCK.fullmatch(plain):
        return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3])
    if (match := _SPANS.fullmatch(plain.replace(" ", ""))) and any(match.groups()):
        sizes = zip(match.groups(), (86400, 3600, 60, 1), strict=True)
        return float(sum(int(part or 0) * size for part, size in sizes))
    return _convert(parse_figure(plain), unit or "s", _SECONDS)


def parse_memory_gib(text: str, unit: str = "") -> tuple[float | None, float | None] | None:
    """Used and total of `37.5/40.0`, `18.4*8`, `28.1 GiB`; None where it is none of these."""
    parts = tidy(text).split("/")
    found = [None if is_blank(part) else _convert(parse_each(part), unit or "g", _GIB) for part in parts]
    if len(parts) > 2 or any(value is None and not is_blank(part) for part, value in zip(parts, found, strict=True)):
        return None
    return found[0], found[1] if len(found) > 1 else None


def _convert(found: Figure | None, unit: str, factors: dict[str, float]) -> float | None:
    factor = factors.get((found.unit or unit).casefold().strip(" .")) if found else None
    return None if found is None or factor is None else found.value if factor == 1 else round(found.value * factor, 9)


@lru_cache(maxsize=5000)
def parse_place(text: str) -> Place:
    """Device and topology of `A100单机8卡（1x8*80G）`, `A100 1 node, 8 devices (1x8)`, `BI-V100 x8`."""
    rest = _NUMERAL.sub(lambda match: f" {_CELLS['numerals'][match[0]]}", tidy(text)[:LONGEST])
    topology, memory, remark, worded = None, None, "", None
    if (match := _BRACKET.search(rest)) and (topology := _parse_topology(match[1])):
        memory = float(match[2]) if match[2] else None
        remark = ", ".join(word for part in re.split(r"[()\[\]]", match[3]) if (word := part.strip()))
    rest = rest[: match.start()].rstrip() if match else rest
    if topology and (spelt := _find_spelt(rest, topology)):
        rest = rest[: spelt.start()]
    elif match := _COUNTED.search(rest):
        nodes, each, alone, rows, after, before = match.groups()
        worded = _parse_topology(f"{nodes or rows or 1}x{each or alone or after or before}")
        rest = rest[: match.start()]
    elif topology is None and (match := _AHEAD.match(rest)):
        worded, rest = _parse_topology(f"1x{match[1]}"), rest[match.end() :]
    rest = rest.rstrip(" ," if topology else " ,(")
    return Place(
        device="" if is_blank(rest) else rest.strip("/ ") if rest.startswith("/ ") else rest,
        topology=topology or worded,
        worded=worded if topology is not None and worded != topology else None,
        memory_gib=memory,
        remark=remark,
    )


def _find_spelt(text: str, topology: Topology) -> re.Match[str] | None:
    """Text that repeats its bracket, with cards per node or in total: `A10016机8卡` before 16x8 is of an A100."""
    nodes = rf"(?:{topology.nodes}\s*机){'' if topology.nodes > 1 else '?'}"
    return re.search(rf"{nodes}\s*(?:{topology.devices_per_node}|{topology.devices})\s*卡$", text)


def _parse_topology(text: str) -> Topology | None:
    try:
        return Topology.parse(re.sub(r"\s", "", text))
    except UsageError:
        return None


def parse_batch(text: str) -> tuple[int, bool] | None:
    """The batch named in `bs=256,lr=0.8`, `per_device_bs=4` or `SDK V2.2,bs:128,8x`, and whether the text says it is
    of one device; never a global one."""
    match = _BATCH.search(tidy(text))
    return (int(match["size"]), bool(match["each"] or match["of"])) if match else None


def normalize_precision(text: str) -> str:
    """Known words in one spelling; anything else as the page writes it."""
    word = tidy(text)
    return word.lower() if word.lower() in _KNOWN_PRECISIONS else word


def is_precision(text: str) -> bool:
    """`FP32`, `AMP+NHWC`: whether a text names a precision and nothing else."""
    words = re.split(r"[+/ ,_]+", tidy(text).casefold())
    return words[0] in _KNOWN_PRECISIONS and all(word in (*_KNOWN_PRECISIONS, *_CELLS["layouts"]) for word in words)


def is_half(word: str) -> bool:
    known = PRECISIONS.get(word)
    return known.family == "fp16" if known else word in ("amp", "half")
