"""Reads single cells of published tables: figures with or without units, memory, times, topologies, batches."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass

from trainmark.spec import escape
from trainmark.spec.errors import UsageError
from trainmark.spec.precision import PRECISIONS
from trainmark.spec.topology import Topology

BLANKS = {"", "/", "\\", "-", "--", "---", "—", "–", "n/a", "na", "none", "null", "无", "不适用", "tbd", "待补充", "?"}
"""What tables write where there is nothing to write."""

_FIGURE = re.compile(
    r"[~≈约]?\s*([+-]?(?:[0-9]{1,3}(?:[, '][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,6})?|[+-]?\.[0-9]+)"
    r"\s*([^0-9]{0,30})",
    re.IGNORECASE,
)
_TIMES = re.compile(r"(.*[^\s*x×])\s*[*x×]\s*([0-9]{1,6})", re.IGNORECASE)
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
_BRACKETED = re.compile(r"[(\[]\s*([0-9]{1,6}\s*[x×*]\s*[0-9]{1,6})\s*[)\]]\s*$", re.IGNORECASE)
_COUNTS = {**{sign: place for place, sign in enumerate("一二三四五六七八九十", 1)}, "单": 1, "两": 2, "双": 2}
_WORDED = re.compile(
    r"(?:(?:(?P<machines>[0-9]{1,6}|[一二三四五六七八九十单两双])\s*机)?\s*(?P<cards>[0-9]{1,6}|[一二三四五六七八九十单两双])\s*卡"
    r"|(?P<nodes>[0-9]{1,6})\s*nodes?\s*[,x×*]?\s*(?P<devices>[0-9]{1,6})\s*(?:devices?|gpus?|cards?|chips?)"
    r"|(?:(?<![0-9A-Za-z])(?P<rows>[0-9]{1,6}))?[x×]\s*(?P<after>[0-9]{1,6})"
    r"|(?<![0-9A-Za-z])(?P<before>[0-9]{1,6})\s*[x×])$",
    re.IGNORECASE,
)
_BATCH = re.compile(
    r"(?<![a-z])(?:bs|batch[\s_-]*size|batch|批大小)\s*[:=]?\s*([0-9]{1,9})(?![0-9.])"
    r"\s*(/\s*(?:device|card|gpu|卡)|(?:per|a|each)\s+(?:device|card|gpu)|每卡)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    value: float
    unit: str
    """As the cell gives it; empty where it gives none."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What stands in a configuration: on which device, and how many of them."""

    device: str
    topology: Topology | None


@dataclass(frozen=True, kw_only=True)
class BatchCell:
    size: int
    per_device: bool
    """Whether the text says so itself."""


def tidy(text: str) -> str:
    """One spelling for what looks the same: no full-width letters, no doubled blanks, nothing a terminal obeys."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFKC", escape.terminal(" ".join(text.split()))).split())


def key(text: str) -> str:
    """By which words of tables are looked up: `e2e time`, `E2E_time` and `ｅ２ｅ－ｔｉｍｅ` are one."""
    return re.sub(r"[\s_\-]", "", unicodedata.normalize("NFKC", text).casefold())


def is_blank(text: str) -> bool:
    return tidy(text).casefold() in BLANKS


def figure(text: str) -> Figure | None:
    """A finite number and what follows it; None for anything else, which is never taken for a part of a number."""
    match = _FIGURE.fullmatch(tidy(text))
    if not match:
        return None
    value = float(re.sub("[, ']", "", match[1]))
    return Figure(value=value, unit=match[2].strip()) if math.isfinite(value) else None


def each(text: str) -> tuple[Figure | None, int | None]:
    """`128*8`: what each of so many devices has, and how many there are; the second is None where it is not said."""
    if match := _TIMES.fullmatch(tidy(text)):
        return figure(match[1]), int(match[2])
    return figure(text), None


def seconds(text: str, unit: str = "") -> float | None:
    """A time in the unit the cell, or else its column, gives."""
    if match := _CLOCK.fullmatch(tidy(text)):
        return 3600 * int(match[1]) + 60 * int(match[2]) + float(match[3])
    return _converted(figure(text), unit, _SECONDS)


def memory_gib(text: str, unit: str = "") -> tuple[float | None, float | None] | None:
    """Used and total of `37.5/40.0`, `18.4*8`, `28.1 GiB`; None where it is none of these."""
    parts = tidy(text).split("/")
    if len(parts) > 2:
        return None
    found = []
    for part in parts:
        value = None if is_blank(part) else _converted(each(part)[0], unit, _GIB)
        if value is None and not is_blank(part):
            return None
        found.append(value)
    return found[0], found[1] if len(found) > 1 else None


def _converted(found: Figure | None, unit: str, factors: dict[str, float]) -> float | None:
    if found is None:
        return None
    factor = factors.get((found.unit or unit).casefold().strip(" ."))
    return None if factor is None else found.value if factor == 1 else round(found.value * factor, 9)


def place(text: str) -> Place:
    """Device and topology of `A100单机8卡（1x8）`, `A100 1 node, 8 devices (1x8)`, `BI-V100 x8`."""
    rest, topology = tidy(text), None
    if match := _BRACKETED.search(rest):
        topology, rest = _topology(match[1]), rest[: match.start()].rstrip()
    if match := _WORDED.search(rest):
        worded = _worded(match)
        if topology is None or worded == topology:
            return Place(device=rest[: match.start()].rstrip(" ,"), topology=worded)
        # `A10016机8卡`: the name ends in digits, and the bracket tells how many are the machines'
        if (end := _spelt_end(rest, topology)) is not None:
            return Place(device=rest[:end].rstrip(" ,"), topology=topology)
    return Place(device=rest, topology=topology)


def _spelt_end(text: str, topology: Topology) -> int | None:
    spelt = re.search(rf"{topology.nodes}\s*机\s*{topology.devices_per_node}\s*卡$", text)
    return spelt.start() if spelt else None


def _worded(match: re.Match[str]) -> Topology | None:
    found = match.groupdict()
    if found["cards"]:
        return _topology(f"{_count(found['machines'] or '1')}x{_count(found['cards'])}")
    if found["nodes"]:
        return _topology(f"{found['nodes']}x{found['devices']}")
    return _topology(f"1x{found['before']}" if found["before"] else f"{found['rows'] or 1}x{found['after']}")


def _count(text: str) -> int:
    return _COUNTS.get(text) or int(text)


def _topology(text: str) -> Topology | None:
    try:
        return Topology.parse(re.sub(r"\s", "", text))
    except UsageError:
        return None


def batch(text: str) -> BatchCell | None:
    """The batch named in `bs=256,lr=0.8` or `SDK V2.2,bs:128,8x`."""
    match = _BATCH.search(tidy(text))
    return BatchCell(size=int(match[1]), per_device=bool(match[2])) if match else None


def precision(text: str) -> str:
    """Known words in one spelling; anything else as the page writes it."""
    word = tidy(text)
    return word.lower() if word.lower() in (*PRECISIONS, "amp") else word
