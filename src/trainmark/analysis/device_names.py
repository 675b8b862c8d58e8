"""Normalises the names of workloads, devices, vendors and frameworks on published pages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import msgspec

from trainmark import workloads
from trainmark.analysis import published_library
from trainmark.record import escape
from trainmark.record.published_row import PREFIX, PublishedRow


@lru_cache(maxsize=5000)
def tidy(text: str) -> str:
    """One spelling for what looks the same: no full-width letters, no doubled blanks, nothing a terminal obeys."""
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    return " ".join(unicodedata.normalize("NFKC", escape.terminal(" ".join(text.split()))).split())


@lru_cache(maxsize=5000)
def fold_key(text: str) -> str:
    """Lookup key of table words: `e2e time`, `E2E_time` and `ｅ２ｅ－ｔｉｍｅ` are one."""
    return re.sub(r"[\s_\-'\"`]", "", unicodedata.normalize("NFKC", text).casefold())


UNKNOWN = "unknown"

_NAMES: Mapping[str, Any] = msgspec.toml.decode(files("trainmark.analysis").joinpath("names.toml").read_bytes())
_FRAMEWORKS: Mapping[str, str] = _NAMES["frameworks"]
_MAKER_WORDS = frozenset(word for maker in _NAMES["makers"].values() for word in maker["words"])
_HARMLESS = _MAKER_WORDS | frozenset(_NAMES["models"]["harmless"])
_FORM = re.compile(r"[- _](?:sxm[0-9]*|pcie|nvl|oam|[0-9]+ ?gi?b?)\b.*", re.IGNORECASE)
_PLAIN_PAGE = re.compile(r"readme(?:[._-][a-z-]{2,5})?|index|page|-|", re.IGNORECASE)
_BESIDE = re.compile(r"[A-Za-z0-9.+]+|[^\sA-Za-z0-9.+_-]+")
_APART = re.compile(r"[/|,;:()\[\]，：；（）]")
_PATH = re.compile(r"[/\\]|__")


@dataclass(frozen=True, kw_only=True)
class PublishedQuality:
    unit: str | None
    target: float | None
    better: str | None


@dataclass(frozen=True, kw_only=True)
class DeviceName:
    vendor: str
    name: str


@dataclass(frozen=True, kw_only=True)
class _Maker:
    vendor: str
    words: re.Pattern[str]
    """At the beginning of a device's name."""
    cards: re.Pattern[str]


def find_workload(text: str) -> str | None:
    """The workload a text names, if it is certainly one of ours: `SE_X_vd` is not X."""
    plain = unicodedata.normalize("NFKC", text).casefold()[:500]
    for known in workloads.all_facts():
        for pattern in known.on_pages:
            for match in re.finditer(pattern, plain, re.IGNORECASE):
                if _is_separate(plain, match.start(), match.end()):
                    return known.name
    return None


def _is_separate(text: str, start: int, end: int) -> bool:
    before, after = _APART.split(text[:start])[-1], _APART.split(text[end:])[0]
    if _is_letter(before[-1:]) or _is_letter(after[:1]):
        return False
    beside = [*_BESIDE.findall(before)[-1:], *_BESIDE.findall(after)[:1]]
    return all(_is_harmless(word.strip(".")) for word in beside)


def _is_letter(sign: str) -> bool:
    return sign.isascii() and sign.isalnum()


def _is_harmless(word: str) -> bool:
    return not any(map(_is_letter, word)) or not word.isascii() or word in _HARMLESS


def find_workload_in_path(name: str) -> str | None:
    """Of a page's own place: `training/VENDOR/MODEL-FRAMEWORK/README.md`."""
    parts = _PATH.split(name)
    return next(
        (found for part in reversed(parts) if (found := find_workload(re.sub(r"\.[a-z]{2,8}$", "", part)))), None
    )


def find_model_in_path(name: str) -> str | None:
    """The model that the folders of such pages are called by: `training/VENDOR/mask_rcnn-pytorch/README.md`."""
    parts = [re.sub(r"\.(?:md|markdown|txt)$", "", part) for part in _PATH.split(name)][-4:]
    if not any(map(find_framework, parts[-2:])):
        return None
    words = "|".join(_FRAMEWORKS.values())
    for part in reversed(parts):
        bare = re.sub(rf"(?:^|[-_])(?:{words})[0-9.]*$", "", part, flags=re.IGNORECASE)
        if bare and not _PLAIN_PAGE.fullmatch(bare):
            return bare
    return None


def find_vendor_in_path(name: str) -> str:
    """The vendor a folder of such pages is called by, or none."""
    parts = [part.casefold() for part in _PATH.split(name)]
    return next((find_vendor(part) for part in parts if part in _MAKER_WORDS), "")


def find_framework(text: str) -> str | None:
    """The framework a text names, in one spelling."""
    plain = unicodedata.normalize("NFKC", text).casefold()[:500]
    found = (name for name, words in _FRAMEWORKS.items() if re.search(rf"(?<![a-z])(?:{words})(?![a-z])", plain))
    return next(found, None)


def page_name(name: str) -> str:
    """What tells a page from others: its file's name, or its folders' where all such files have one name."""
    path = PurePath(name)
    if _PLAIN_PAGE.fullmatch(path.stem) and find_model_in_path(name):
        return "-".join(path.parts[:-1][-2:])
    return path.stem or name


@lru_cache(maxsize=1000)
def find_item(workload: str) -> str | None:
    """What throughput counts."""
    return next((row.item for row in published_library.load_rows() if row.workload == workload and row.item), None)


@lru_cache(maxsize=1000)
def find_quality(workload: str, name: str) -> PublishedQuality:
    for row in published_library.load_rows():
        if row.workload == workload and row.quality_name is not None and fold_key(row.quality_name) == fold_key(name):
            return PublishedQuality(unit=row.quality_unit, target=row.target, better=row.better)
    return PublishedQuality(unit=None, target=None, better=None)


def short_device(name: str) -> str:
    """`A100` of `A100-SXM4-40GB`: without how it is mounted and how much memory it has."""
    return _FORM.sub("", name) or name


def _compile_maker(vendor: str, words: Iterable[str], cards: str) -> _Maker:
    # a Chinese word may stand close to the name
    begin = (rf"{re.escape(word)}[\s_]+(?=\S)" if word.isascii() else rf"{word}[\s_]*(?=\S)" for word in words)
    return _Maker(
        vendor=vendor,
        words=re.compile("|".join(begin), re.IGNORECASE),
        cards=re.compile(rf"(?:{cards})(?![0-9A-Za-z])", re.IGNORECASE),
    )


_MAKERS = [_compile_maker(vendor, **entry) for vendor, entry in _NAMES["makers"].items()]


def find_vendor(text: str) -> str:
    """A vendor's word in one spelling."""
    plain = tidy(text).casefold()
    return next((maker.vendor for maker in _MAKERS if maker.words.match(f"{plain} x")), plain)


@lru_cache(maxsize=1000)
def parse_device(text: str) -> DeviceName:
    """Vendor and name of `NVIDIA_A100-SXM4-40GB`; without a vendor's word, whose such cards are, or none."""
    name, found = tidy(text), ""
    while maker := next((maker for maker in _MAKERS if maker.words.match(name)), None):
        found, name = found or maker.vendor, maker.words.sub("", name, count=1)
    known = {fold_key(short_device(row.device)): row.vendor for row in published_library.load_rows()}
    by_card = next((maker.vendor for maker in _MAKERS if maker.cards.match(name)), "")
    return DeviceName(vendor=found or known.get(fold_key(short_device(name)), by_card), name=name)


def slugify(text: str, otherwise: str = UNKNOWN) -> str:
    """A text as a part of a row's name: letters, digits, dots and single hyphens."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[^\w.]+|_+", "-", folded)[:60].strip("-.") or otherwise


def name_rows(rows: Iterable[PublishedRow], page: str) -> tuple[PublishedRow, ...]:
    """The rows with names made of what tells them apart; a further row of one name is numbered."""
    counts: Counter[str] = Counter()
    found = []
    for row in rows:
        batch = re.match(r"bs[=:]\s*([0-9]+)", row.fix_hp or "")
        what = slugify(short_device(row.device)), slugify(row.workload), row.topology, slugify(row.precision)
        name = PREFIX + "-".join((slugify(page, "page"), *what, *((f"bs{batch[1]}",) if batch else ())))
        counts[name] += 1
        found.append(replace(row, name=name if counts[name] == 1 else f"{name}-{counts[name]}"))
    return tuple(found)
