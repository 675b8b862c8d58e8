"""Scaling efficiency of published tables, by each throughput, which may contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmark.analysis.scaling import scaling_efficiency
from trainmark.record.metrics import THROUGHPUTS, Quantity
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow

CONTRADICTION = 0.15
"""Waiting, evaluating and saving do not shrink with more devices: p_whole may not scale better by more than this.

Less than it is what a different number of evaluations, or of files in the cache, makes of honest rows."""


@dataclass(frozen=True, kw_only=True)
class PublishedPoint:
    row: PublishedRow
    devices: int
    efficiency: Mapping[str, float | None]
    """By throughput; None where it, or the base's, is not published."""


@dataclass(frozen=True, kw_only=True)
class PublishedScaling:
    """Rows of one page, device, workload, precision label and batch per device, smallest topology first."""

    points: tuple[PublishedPoint, ...]
    notes: tuple[str, ...]

    @property
    def base(self) -> PublishedRow:
        return self.points[0].row


def find_published_scalings(rows: Iterable[PublishedRow]) -> list[PublishedScaling]:
    """Every group of rows with two topologies or more and a throughput to compare."""
    groups: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in rows:
        if row.devices and any(getattr(row, alias) is not None for alias in THROUGHPUTS):
            recipe = (row.batch_per_device, row.batch_per_device is None and row.fix_hp, _settings(row))
            key = (row.source, row.workload, row.device, row.precision, *recipe)
            groups.setdefault(key, []).append(row)
    return [_measure_group(members) for members in groups.values() if len({row.topology for row in members}) > 1]


def _settings(row: PublishedRow) -> tuple[object, ...]:
    """What else tells rows of one table apart: fine-tuned how, cut into which sizes."""
    return (row.remark, *((detail.name, detail.text) for detail in row.details if detail.value is None))


def to_json(found: PublishedScaling, aliases: Sequence[str] = THROUGHPUTS) -> dict[str, Any]:
    """For programs; null is what was not published."""
    return {
        "kind": "published",
        "source": found.base.source.title,
        "address": found.base.source.address,
        "workload": found.base.workload,
        "device": found.base.device,
        "precision": found.base.precision,
        "batch_per_device": found.base.batch_per_device,
        "base": found.base.topology,
        "points": [
            {
                "name": point.row.name,
                "topology": point.row.topology,
                "devices": point.devices,
                "throughput": {alias: getattr(point.row, alias) for alias in aliases},
                "efficiency": {alias: point.efficiency[alias] for alias in aliases},
            }
            for point in found.points
        ],
        "notes": list(found.notes),
    }


def _measure_group(members: Sequence[PublishedRow]) -> PublishedScaling:
    sized = sorted(((Topology.parse(row.topology), row) for row in members), key=lambda pair: pair[0].devices)
    smallest, base = sized[0]
    points = tuple(
        PublishedPoint(
            row=row,
            devices=topology.devices,
            efficiency={
                alias: _efficiency(getattr(row, alias), topology.devices, getattr(base, alias), smallest.devices)
                for alias in THROUGHPUTS
            },
        )
        for topology, row in sized
    )
    return PublishedScaling(points=points, notes=(*_batch_notes(base), *_contradictions(points[0], points[1:])))


def _efficiency(value: float | None, devices: int, base: float | None, base_devices: int) -> float | None:
    if not value or not base:  # an imported page may also hold zeros
        return None
    return scaling_efficiency(
        Quantity(value=value, unit=""), devices, Quantity(value=base, unit=""), base_devices
    ).value


def _batch_notes(base: PublishedRow) -> list[str]:
    if base.batch_per_device is not None:
        return []
    note = f" ({base.remark})" if base.remark else ""
    return [f"the batch per device is not published, so it is not known whether like was compared with like{note}"]


def _contradictions(base: PublishedPoint, points: Sequence[PublishedPoint]) -> list[str]:
    notes = []
    for point in points:
        whole, core = point.efficiency["p_whole"], point.efficiency["p_core"]
        if whole is not None and core is not None and whole - core > CONTRADICTION:
            notes.append(
                f"{base.row.topology} to {point.row.topology} is {whole:.2f} by p_whole and {core:.2f} by p_core: "
                f"{_outside(base.row)} % of the first row's time would lie outside of compute, {_outside(point.row)} % "
                "of the second's, so they hardly measure the same"
            )
    return notes


def _outside(row: PublishedRow) -> str:
    """Percent of all time that is not compute: both throughputs count the same items."""
    return f"{100 * (1 - (row.p_whole or 0) / (row.p_core or 1)):.0f}"
