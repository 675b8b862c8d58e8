"""How published clusters scaled: one submitter's training on the same devices at several sizes.

Rates of MLPerf rows were computed from the logs in mlcommons' repositories of results, evaluations left out; those of
FlagPerf rows are its pages' p_core. Only their ratios mean anything: what a sample is differs between benchmarks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from statistics import median

ALIKE = 0.12
"""Batches per device that differ by less count as the same: a global batch must divide by the devices."""
SOURCES = {
    "flagperf": "https://github.com/FlagOpen/FlagPerf",
    "mlperf": "https://github.com/mlcommons",
}


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One size of one submitter's training."""

    round: str
    """`flagperf`, or MLPerf's round."""
    submitter: str
    benchmark: str
    accelerator: str
    nodes: int
    devices: int
    batch_per_device: float | None
    precision: str
    items_per_s: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Sizes of one training with the same batch on each device, smallest first."""

    round: str
    submitter: str
    benchmark: str
    accelerator: str
    rates: tuple[tuple[int, float], ...]
    """Devices, and items a second of all of them."""

    @property
    def pairs(self) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
        return combinations(self.rates, 2)


@cache
def table() -> tuple[dict[str, str], ...]:
    """Every row as it stands, those of published libraries that give no rate to scale by among them."""
    text = files("trainmark.analysis.forecast").joinpath("clusters.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


@cache
def points() -> tuple[ScalingPoint, ...]:
    return tuple(
        ScalingPoint(
            round=row["round"],
            submitter=row["submitter"],
            benchmark=row["benchmark"],
            accelerator=row["accelerator"],
            nodes=int(row["nodes"]),
            devices=int(row["devices"]),
            batch_per_device=float(row["batch_per_device"]) if row["batch_per_device"] else None,
            precision=row["precision"],
            items_per_s=float(row["items_per_s"]),
        )
        for row in table()
        if row["items_per_s"]
    )


def chains() -> list[Chain]:
    """Every training with two sizes or more of one batch per device; rows that do not tell theirs belong to none."""
    families: dict[tuple[str, ...], list[ScalingPoint]] = {}
    for point in points():
        if point.batch_per_device:
            key = (point.round, point.submitter, point.benchmark, point.accelerator, point.precision)
            families.setdefault(key, []).append(point)
    found = []
    for (round_, submitter, benchmark, accelerator, _), members in families.items():
        for batch in dict.fromkeys(point.batch_per_device for point in members):
            rates: dict[int, list[float]] = {}
            for point in members:
                if point.batch_per_device == batch:
                    rates.setdefault(point.devices, []).append(point.items_per_s)
            near = {p.devices: p for p in members if batch and abs((p.batch_per_device or 0) / batch - 1) < ALIKE}
            for devices, point in near.items():
                rates.setdefault(devices, [point.items_per_s])
            if len(rates) > 1:
                sizes = tuple((devices, median(rates[devices])) for devices in sorted(rates))
                chain = Chain(
                    round=round_, submitter=submitter, benchmark=benchmark, accelerator=accelerator, rates=sizes
                )
                if chain not in found:
                    found.append(chain)
    return found
