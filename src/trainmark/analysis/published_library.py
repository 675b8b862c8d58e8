"""The library of published rows: those of what trainmark trains, with the findings of their audit, and of others."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from trainmark.analysis import clusters
from trainmark.record.errors import UsageError, nearest
from trainmark.record.published_row import PREFIX, PublishedDetail, PublishedRow, RowFinding, Source

FINDINGS = "published_findings.csv"
"""Made by scripts/published_findings, whenever rows or checks change."""
FLAGPERF_REVISION = "0078403cff4cff3120a75ffdeb6ae734bae09377"
"""Of the pages that rows were read from."""
MAX_EPOCHS = 200
"""Results that took fewer items to their target count epochs; older rounds log nothing finer."""
MLPERF_REMARK = (
    "rates were reckoned from the result logs, p_train without evaluations; time is from run_start to run_stop"
)


@dataclass(frozen=True, kw_only=True)
class PageStatement:
    """One statement of a page about a quantity, in its own words."""

    place: str
    """Where on the page: `table 2, line 41`."""
    quantity: str
    """What it is about: `quality`, `throughput`, `memory`, `power`, `scalability`, `stability`, `convergence`; of a
    `configuration` only what its words and its bracket say differently."""
    word: str
    """What the page calls it there: `val_loss`, `final_acc1`, `FPS`, `Performance`."""
    unit: str | None = None
    """As the page gives it; None where it gives none."""
    value: float | None = None
    """None where only the word stands there."""


@dataclass(frozen=True, kw_only=True)
class PublishedPage:
    """What a page holds, by our words."""

    title: str
    rows: tuple[PublishedRow, ...]
    said: tuple[PageStatement, ...] = ()
    unread: tuple[str, ...] = ()
    """What could not be read: a sentence each, with the line."""
    devices: tuple[str, ...] = ()
    """The page's own, as its lists of machines give them."""
    data_sets: tuple[str, ...] = ()
    """As the page calls them."""
    was_read: bool = False
    """False where only rows are known, and not the page around them."""


@dataclass(frozen=True, kw_only=True)
class FoundPage:
    name: str
    """As the user reaches it."""
    page: PublishedPage
    content: bytes
    """What tells it from other pages."""


def load_rows(workload: str | None = None) -> tuple[PublishedRow, ...]:
    """The rows of what trainmark trains, or those of one training, whichever it is."""
    if workload is None:
        return _load_own_rows()
    if workload.casefold() not in (known := list_workloads()):
        raise UsageError(f"no published rows of {workload!r}; {nearest(workload, known)}")
    return tuple(row for row in (*_load_own_rows(), *load_other_rows()) if row.workload == workload.casefold())


def list_workloads() -> tuple[str, ...]:
    """What there are published rows of."""
    return tuple(dict.fromkeys(row.workload for row in (*_load_own_rows(), *load_other_rows())))


@cache
def _load_own_rows() -> tuple[PublishedRow, ...]:
    """Each with what the audit found in it when it was shipped."""
    sources = {entry["key"]: {**entry, "date": entry["date"] or None} for entry in _read_table("published_sources.csv")}
    findings: dict[str, list[RowFinding]] = {}
    for entry in _read_table(FINDINGS):
        findings.setdefault(entry.pop("row"), []).append(RowFinding(**entry))
    found = []
    for entry in _read_table("published.csv"):
        given: dict[str, Any] = {name: value for name, value in entry.items() if value}
        given |= {"name": PREFIX + entry["name"], "source": sources[entry["source"]]}
        found.append(_make_row({**given, "findings": findings.get(entry["name"], ())}))
    return tuple(found)


def _make_row(given: Mapping[str, Any]) -> PublishedRow:
    """By the types of the row's fields; what stands in no field was not published."""
    blank = dict.fromkeys(field.name for field in fields(PublishedRow) if field.default is MISSING)
    return msgspec.convert({**blank, **given}, PublishedRow, strict=False)


def _read_table(file: str) -> list[dict[str, str]]:
    text = files("trainmark.analysis").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def load_other_rows() -> tuple[PublishedRow, ...]:
    """How other trainings scaled: FlagPerf's pages by the names of their cases, MLPerf's results as `mlperf-NAME`."""
    found: list[PublishedRow] = []
    pages = {row.source.address.rpartition("/training/")[2].removesuffix("/README.md") for row in _load_own_rows()}
    taken: Counter[str] = Counter()
    for entry in clusters.load_table():
        if entry["round"] == "flagperf" and f"{entry['submitter']}/{entry['benchmark']}" in pages:
            continue  # it stands among the others, with its quality
        row = _make_row(_read_flagperf(entry) if entry["round"] == "flagperf" else _read_mlperf(entry))
        taken[row.name] += 1
        found.append(row if taken[row.name] == 1 else replace(row, name=f"{row.name}-{taken[row.name]}"))
    return tuple(found)


def _read_flagperf(entry: Mapping[str, str]) -> dict[str, Any]:
    vendor, case, remark = entry["submitter"], *entry["benchmark"].partition(" (")[::2]
    address = f"{clusters.SOURCES['flagperf']}/blob/{FLAGPERF_REVISION}/training/{vendor}/{case}/README.md"
    tokens = entry["tokens_per_device_s"]
    measured = (
        PublishedDetail(name="token/p/s", text=f"{float(tokens):g}", value=float(tokens), unit="tokens/s")
        if tokens
        else None
    )
    return {
        **_read_common(entry, entry["benchmark"].replace("-pytorch", "")),
        "source": Source(title=f"FlagPerf: {case} on {vendor}", address=address, date=None),
        "vendor": vendor,
        "item": "samples",
        "p_train": entry["train_per_s"] or None,
        "p_core": entry["items_per_s"] or None,
        "remark": remark.rstrip(")") or None,
        "details": (measured,) if measured else (),
    }


def _read_mlperf(entry: Mapping[str, str]) -> dict[str, Any]:
    number, case = entry["round"].removeprefix("mlperf-"), entry["benchmark"].partition(" (")[0]
    title = f"MLPerf Training {number}: {case} by {entry['submitter']}"
    address = f"{clusters.SOURCES['mlperf']}/training_results_v{number}"
    maker = entry["accelerator"].split()[0].casefold()
    return {
        **_read_common(entry, f"mlperf-{case}"),
        "source": Source(title=title, address=address, date=None),
        "vendor": {"habana": "intel"}.get(maker, maker),
        "item": "samples" if float(entry["items_to_target"] or MAX_EPOCHS) >= MAX_EPOCHS else "epochs",
        "p_train": entry["items_per_s"] or None,
        "remark": MLPERF_REMARK,
    }


def _read_common(entry: Mapping[str, str], training: str) -> dict[str, Any]:
    nodes, devices, batch = int(entry["nodes"]), int(entry["devices"]), float(entry["batch_per_device"] or 0)
    topology = f"{nodes}x{devices // nodes}" if devices % nodes == 0 else f"{devices} devices"
    size = f"{batch:g}" if batch else ""
    words = [entry["round"], entry["submitter"], training.removeprefix("mlperf-"), entry["accelerator"], topology]
    words += [entry["precision"], size and f"bs{size}"]
    return {
        "name": PREFIX + re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-"),
        "device": entry["accelerator"] or "unknown",
        "workload": training.casefold(),
        "topology": topology,
        "precision": entry["precision"],
        "fix_hp": entry["fix_hp"] or (size and f"bs={size}") or None,
        "batch_per_device": int(batch) if batch and batch == int(batch) else None,
        "e2e_time_s": entry["time_to_train_s"] or None,
        "p_whole": entry["whole_per_s"] or None,
    }
