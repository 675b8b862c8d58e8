"""What is already known of a row's workload and device, so that a page that was read can be reckoned with."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from trainmark import workloads
from trainmark.published import library
from trainmark.published.cells import key, tidy
from trainmark.spec.published_row import PREFIX, PublishedRow

UNKNOWN = "unknown"

_FORM = re.compile(r"[- _](?:sxm[0-9]*|pcie|nvl|oam|[0-9]+ ?gi?b?)\b.*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PublishedQuality:
    unit: str | None
    target: float | None
    better: str | None


@dataclass(frozen=True, kw_only=True)
class DeviceName:
    vendor: str
    name: str


def workload(text: str) -> str | None:
    """The workload a text speaks of, if it is one of ours."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return next(
        (known.name for known in workloads.all_facts() if any(re.search(name, plain) for name in known.on_pages)), None
    )


@lru_cache(maxsize=1000)
def item(workload: str) -> str | None:
    """What throughput counts."""
    return next((row.item for row in library.rows() if row.workload == workload and row.item), None)


@lru_cache(maxsize=1000)
def own_batch(workload: str) -> int | None:
    """Of the recipe that `/` in fix_hp stands for."""
    rows = (row for row in library.rows() if row.workload == workload and row.fix_hp == "/")
    return next((row.batch_per_device for row in rows), None)


@lru_cache(maxsize=1000)
def quality(workload: str, name: str) -> PublishedQuality:
    for row in library.rows():
        if row.workload == workload and row.quality_name is not None and key(row.quality_name) == key(name):
            return PublishedQuality(unit=row.quality_unit, target=row.target, better=row.better)
    return PublishedQuality(unit=None, target=None, better=None)


def short_device(name: str) -> str:
    """`A100` of `A100-SXM4-40GB`: without how it is mounted and how much memory it has."""
    return _FORM.sub("", name) or name


@lru_cache(maxsize=1000)
def device(text: str) -> DeviceName:
    """Vendor and name of `NVIDIA_A100-SXM4-40GB`; without a vendor's word, the library's for that name, or none."""
    name, vendor = tidy(text), ""
    vendors = {row.vendor for row in library.rows()}
    while (first := re.match(r"([^\s_]+)[\s_]+(\S.*)", name)) and first[1].casefold() in vendors:
        vendor, name = first[1].casefold(), first[2]
    known = {key(short_device(row.device)): row.vendor for row in library.rows()}
    return DeviceName(vendor=vendor or known.get(key(short_device(name)), ""), name=name)


def slug(text: str, otherwise: str = UNKNOWN) -> str:
    """A text as a part of a row's name: letters, digits, dots and single hyphens."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[^\w.]+|_+", "-", folded)[:60].strip("-.") or otherwise


def named(rows: Iterable[PublishedRow], page: str) -> tuple[PublishedRow, ...]:
    """The rows with names made of what tells them apart; a further row of one name is numbered."""
    counts: Counter[str] = Counter()
    found = []
    for row in rows:
        batch = re.match(r"bs[=:]\s*([0-9]+)", row.fix_hp or "")
        what = slug(short_device(row.device)), slug(row.workload), row.topology, slug(row.precision)
        name = PREFIX + "-".join((slug(page, "page"), *what, *((f"bs{batch[1]}",) if batch else ())))
        counts[name] += 1
        found.append(replace(row, name=name if counts[name] == 1 else f"{name}-{counts[name]}"))
    return tuple(found)
