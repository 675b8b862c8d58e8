"""The library of published rows that comes with trainmark."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from trainmark.spec.errors import UsageError, nearest
from trainmark.spec.published_row import PREFIX, PublishedRow, Source


def rows(workload: str | None = None) -> tuple[PublishedRow, ...]:
    """Every published row, or those of one workload."""
    everything = _all_rows()
    if workload is None:
        return everything
    if workload.casefold() not in (known := workloads()):
        raise UsageError(f"no published rows of {workload!r}; {nearest(workload, known)}")
    return tuple(row for row in everything if row.workload == workload.casefold())


def workloads() -> tuple[str, ...]:
    """What there are published rows of."""
    return tuple(dict.fromkeys(row.workload for row in _all_rows()))


@cache
def _all_rows() -> tuple[PublishedRow, ...]:
    sources = {
        entry["key"]: Source(title=entry["title"], address=entry["address"], date=entry["date"] or None)
        for entry in _table("published_sources.csv")
    }
    return tuple(_row(entry, sources) for entry in _table("published.csv"))


def _row(entry: Mapping[str, str], sources: Mapping[str, Source]) -> PublishedRow:
    def number(name: str) -> float | None:
        return float(entry[name]) if entry[name] else None

    return PublishedRow(
        name=PREFIX + entry["name"],
        source=sources[entry["source"]],
        vendor=entry["vendor"],
        device=entry["device"],
        workload=entry["workload"],
        topology=entry["topology"],
        precision=entry["precision"],
        fix_hp=entry["fix_hp"] or None,
        batch_per_device=int(entry["batch_per_device"]) if entry["batch_per_device"] else None,
        item=entry["item"] or None,
        e2e_time_s=number("e2e_time_s"),
        p_whole=number("p_whole"),
        p_train=number("p_train"),
        p_core=number("p_core"),
        quality_name=entry["quality_name"] or None,
        quality_unit=entry["quality_unit"] or None,
        quality=number("quality"),
        target=number("target"),
        better=entry["better"] or None,
        mem_used_gib=number("mem_used_gib"),
        mem_total_gib=number("mem_total_gib"),
        remark=entry["remark"] or None,
    )


def _table(file: str) -> list[dict[str, str]]:
    text = files("trainmark.published").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
