"""Reads how published clusters scaled: one submitter's training on the same devices at several sizes.

Rates of MLPerf rows were computed from the logs in mlcommons' repositories of results, evaluations left out; those of
FlagPerf rows are its pages' p_core. Only their ratios mean anything: what a sample is differs between benchmarks.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import NamedTuple


class TrainingNeed(NamedTuple):
    """Items that a training takes until its target: what is usual, and between what it varies."""

    items: float
    fewest: float
    most: float


Reference = Callable[[float], TrainingNeed | None]
"""What a reference training needs at a global batch, in samples; None above the largest that anybody tried."""


ALIKE = 0.12
"""Batches per device that differ by less count as the same: a global batch must divide by the devices."""
SOURCES = {
    "flagperf": "https://github.com/FlagOpen/FlagPerf",
    "mlperf": "https://github.com/mlcommons",
}
FAMILY = ("round", "submitter", "benchmark", "accelerator", "precision")


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Sizes of one training with the same batch on each device, smallest first."""

    round: str
    """`flagperf`, or MLPerf's round."""
    submitter: str
    benchmark: str
    accelerator: str
    rates: tuple[tuple[int, float], ...]
    """Devices, and items per second of all of them."""


@cache
def load_table() -> tuple[dict[str, str], ...]:
    """Every row as it stands, including those of published libraries that give no rate to scale by."""
    text = files("trainmark.analysis").joinpath("clusters.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def find_chains() -> list[Chain]:
    """Every training with two sizes or more of one batch per device; rows without a batch belong to none."""
    families: dict[tuple[str, ...], list[tuple[float, int, float]]] = {}
    for row in load_table():
        if row["items_per_s"] and row["batch_per_device"]:
            point = (float(row["batch_per_device"]), int(row["devices"]), float(row["items_per_s"]))
            families.setdefault(tuple(row[name] for name in FAMILY), []).append(point)
    found: list[Chain] = []
    for (round_, submitter, benchmark, accelerator, _), members in families.items():
        for batch in dict.fromkeys(own for own, _, _ in members):
            rates: dict[int, list[float]] = {}
            for own, devices, rate in members:
                if own == batch:
                    rates.setdefault(devices, []).append(rate)
            near = {devices: rate for own, devices, rate in members if abs(own / batch - 1) < ALIKE}
            for devices, rate in near.items():
                rates.setdefault(devices, [rate])
            sizes = tuple((devices, median(rates[devices])) for devices in sorted(rates))
            chain = Chain(round=round_, submitter=submitter, benchmark=benchmark, accelerator=accelerator, rates=sizes)
            if len(sizes) > 1 and chain not in found:
                found.append(chain)
    return found
