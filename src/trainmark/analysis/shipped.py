"""Reads the published rows that come with trainmark, with the findings of their audit."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files

import msgspec

from trainmark.record.published_row import PREFIX, PublishedRow, RowFinding, Source

FINDINGS = "published_findings.csv"
"""Made by scripts/published_findings, whenever rows or checks change."""


@cache
def load_rows() -> tuple[PublishedRow, ...]:
    """The rows of what trainmark trains, each with what the audit found in it when it was shipped."""
    sources = {
        entry["key"]: Source(title=entry["title"], address=entry["address"], date=entry["date"] or None)
        for entry in _table("published_sources.csv")
    }
    findings: dict[str, list[RowFinding]] = {}
    for entry in _table(FINDINGS):
        one = RowFinding(verdict=entry["verdict"], check=entry["check"], sentence=entry["sentence"])
        findings.setdefault(entry["row"], []).append(one)
    return tuple(_row(entry, sources, findings.get(entry["name"], ())) for entry in _table("published.csv"))


def _row(entry: Mapping[str, str], sources: Mapping[str, Source], findings: Sequence[RowFinding]) -> PublishedRow:
    """By the types of the row's fields; what stands in no field was not published."""
    given = {name: value for name, value in entry.items() if value}
    more = {"name": PREFIX + entry["name"], "source": sources[entry["source"]], "findings": findings}
    blank = dict.fromkeys(field.name for field in fields(PublishedRow) if field.default is MISSING)
    return msgspec.convert({**blank, **given, **more}, PublishedRow, strict=False)


def _table(file: str) -> list[dict[str, str]]:
    text = files("trainmark.analysis").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
