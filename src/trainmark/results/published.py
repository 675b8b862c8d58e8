"""The rows of published benchmark tables, as data: what other people measured, and on which page they say so."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trainmark.spec.errors import UsageError, nearest
from trainmark.spec.topology import Topology

FLOPS_PER_ITEM = {"resnet50": 24.3e9, "vit": 105.2e9, "tacotron2": 145e6}
"""Of training on one image or mel frame by the reference recipe; a multiply-add is 2."""

PREFIX = "published:"
"""Begins the name of every published row, so that no run can be taken for one."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A page that figures were read from."""

    title: str
    address: str
    date: str | None
    """Year and month, or day, of the release or measurement, where the page tells it."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """One row of a published table. None is what the page leaves out: not published."""

    name: str
    """Stays the same between versions: `published:flagperf-a100-resnet50-1x8-fp32`."""
    source: Source
    vendor: str
    device: str
    workload: str
    topology: str
    precision: str
    """As the page labels it, which need not be what ran."""
    fix_hp: str | None
    """As the page writes it: `/` says that the workload's own recipe was used."""
    batch_per_device: int | None
    """From fix_hp, or where that is `/` from the recipe it stands for."""
    item: str | None
    """What throughput counts."""
    e2e_time_s: float | None
    p_whole: float | None
    p_train: float | None
    p_core: float | None
    quality_name: str | None
    quality_unit: str | None
    quality: float | None
    target: float | None
    better: str | None
    """Whether a `higher` or a `lower` quality is better."""
    mem_used_gib: float | None
    mem_total_gib: float | None
    peak_tflops: float | None
    """What one device could reach in the labelled precision, dense; `amp` is taken as fp16."""
    peak_source: Source | None
    remark: str | None
    """What a reader has to know that no column says."""


def rows(workload: str | None = None) -> tuple[PublishedRow, ...]:
    """Every published row, or those of one workload."""
    everything = _all_rows()
    if workload is None:
        return everything
    if workload not in (known := workloads()):
        raise UsageError(f"no published rows of {workload!r}; {nearest(workload, known)}")
    return tuple(row for row in everything if row.workload == workload)


def workloads() -> tuple[str, ...]:
    """What there are published rows of."""
    return tuple(dict.fromkeys(row.workload for row in _all_rows()))


def mfu(row: PublishedRow) -> float | None:
    """What share of its devices' peak a row used, in percent; from p_train where the page gives no p_core.

    Above 100 the row cannot have run in the precision its label says.
    """
    rate, flops = row.p_core or row.p_train, FLOPS_PER_ITEM.get(row.workload)
    if rate is None or flops is None or row.peak_tflops is None:
        return None
    return 100 * rate * flops / (Topology.parse(row.topology).devices * row.peak_tflops * 1e12)


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
        peak_tflops=number("peak_tflops"),
        peak_source=sources[entry["peak_source"]] if entry["peak_source"] else None,
        remark=entry["remark"] or None,
    )


def _table(file: str) -> list[dict[str, str]]:
    text = files("trainmark.results").joinpath(file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
