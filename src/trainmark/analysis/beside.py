"""Compares runs with published rows of their workload, by throughput per device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark.analysis import published_library as library, published_lookup as imported
from trainmark.analysis.peaks import flops_per_item
from trainmark.record.metrics import THROUGHPUTS
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record

SAME_WITHIN = 0.1
"""Published counts of FLOPs are rounded, and differ in what small layers they leave out."""
BY_WHICH = tuple(reversed(THROUGHPUTS))
"""A page's p_core is taken where it gives one, else its p_train, else its p_whole."""


@dataclass(frozen=True, kw_only=True)
class PublishedSpeed:
    """Throughput per device of a published row."""

    row: PublishedRow
    metric: str
    """Which throughput the page gives; a run is compared by the same."""
    rate: float
    """Of one device."""


def find_published_rows(records: Iterable[Record], store_folder: Path) -> list[PublishedRow]:
    """Published rows of the same workloads, imported ones included."""
    workloads = {record.plan.workload for record in records}
    return [row for row in (*library.load_rows(), *imported.load_rows(store_folder)) if row.workload in workloads]


def list_speeds(rows: Sequence[PublishedRow]) -> list[PublishedSpeed]:
    """Of every row that gives a throughput."""
    found = []
    for row in rows:
        metric = next((name for name in BY_WHICH if getattr(row, name)), None)
        if metric is not None and row.devices:
            rate = getattr(row, metric) / row.devices
            found.append(PublishedSpeed(row=row, metric=metric, rate=rate))
    return found


def rate_per_device(record: Record, metric: str) -> float | None:
    """Throughput per device of a run; None where it is invalid or unknown."""
    quantity = record.metrics.get(metric)
    if record.status != "valid" or quantity is None or not quantity.value:
        return None
    return quantity.value / Topology.parse(record.plan.topology).devices


def is_published_network(record: Record) -> bool:
    """Whether the FLOPs per item match the published network's; a reduced one would seem very fast."""
    flops = record.environment.flops
    published = flops_per_item(record.plan.workload)
    if flops is None or published is None:
        return False
    return abs(flops.per_item / published - 1) < SAME_WITHIN


def is_hand_written(record: Record) -> bool:
    """Whether the run's backward pass is written by hand; those of published rows are plain."""
    return record.plan.recipe.get("implementation") == "fast"


def find_nearest(record: Record, published: Iterable[PublishedSpeed]) -> PublishedSpeed | None:
    """The best row to compare a run with: not one the audit calls wrong, then by the same throughput, precision and
    topology, then the fastest."""
    if not is_published_network(record):
        return None
    alike = [
        speed
        for speed in published
        if speed.row.workload == record.plan.workload and rate_per_device(record, speed.metric) is not None
    ]

    def distance(speed: PublishedSpeed) -> tuple[bool, int, bool, bool, float]:
        row = speed.row
        return (
            row.is_wrong,
            BY_WHICH.index(speed.metric),
            parse_label(row.precision) != record.precision,
            row.topology != record.plan.topology,
            -speed.rate,
        )

    return min(alike, key=distance, default=None)


def parse_label(precision: str) -> str:
    """A page's precision label as our name."""
    return {"amp": "amp-fp16"}.get(precision, precision)
