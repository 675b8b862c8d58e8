"""One row of a published benchmark table: what other people measured, and on which page they say so."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Stays the same between versions: page, device, workload, topology, precision."""
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
    remark: str | None
    """What a reader has to know that no column says."""
