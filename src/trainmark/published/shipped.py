"""Reads the published rows that come with trainmark, with the findings of their audit."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from trainmark.spec.published_row import PREFIX, PublishedRow, RowFinding, Source

FINDINGS = "published_findings.csv"
"""Made by scripts/published_findings, whenever rows or checks change."""


@cache
def rows() -> tuple[PublishedRow, ...]:
    """The rows of what trainmark trains, each with what the audit found in it when it was shipped."""
    sources = {
        entry["key"]: Source(title=entry["title"], address=entry["address"], date=entry["date"] or None)
        for entry in _table("published_sources.csv")
    }
    findings: dict[str, list[RowFinding]] = {}
    for entry in _table(FINDINGS):
        one = RowFinding(verdict=entry["verdict"], check=entry["check"], sentence=entry["sentence"])
        findings.setdefault(entry["row"], []).append(one)
    return tuple(_row(entry, sources, tuple(findings.get(entry["name"], ()))) for entry in _table("published.csv"))


def _row(entry: Mapping[str, str], sources: Mapping[str, Source], findings: tuple[RowFinding, ...]) -> PublishedRow:
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
        findings=findings,
    )


def _table(file: str) -> list[dict[str, str]]:
    text = files("trainmark.published").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
