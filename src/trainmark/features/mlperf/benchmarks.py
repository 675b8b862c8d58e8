"""The benchmarks of MLPerf Training: their rounds, runs, data and targets."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files

from trainmark.record.plan import Topology
from trainmark.record.record import Record

CLOSES = {
    "1.0": "2021-05-21", "1.1": "2021-10-08", "2.0": "2022-05-20", "2.1": "2022-10-07", "3.0": "2023-05-19",
    "3.1": "2023-10-06", "4.0": "2024-05-10", "4.1": "2024-10-11", "5.0": "2025-05-02", "5.1": "2025-10-10",
    "6.0": "2026-05-08", "6.1": "2026-10-16",
}  # fmt: skip
"""The submission deadline of each round."""
OLDER_TARGETS = {("ssd", "1.0"): 0.23, ("ssd", "1.1"): 0.23}
MAX_EPOCHS = 20_000
"""A larger count is of samples, in benchmarks whose logs counted either."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    rounds: tuple[str, ...]
    runs: int
    """Runs a result is scored from."""
    dropped: int
    """Runs left out of the mean at either end; as many may fail."""
    workload: str
    """The workload's name, or empty."""
    item: str
    train_samples: float | None
    better: str
    target: float | None
    """None where it is not one number."""
    units: tuple[str, ...]
    """Units of training progress in logs, oldest first: epochs, samples or tokens."""

    def target_in(self, round_name: str | None) -> float | None:
        return OLDER_TARGETS.get((self.name, round_name or ""), self.target)


@cache
def load_benchmarks() -> Mapping[str, Benchmark]:
    return {
        entry["benchmark"]: Benchmark(
            name=entry["benchmark"],
            rounds=_list_rounds(*entry["rounds"].split("-")),
            runs=int(entry["runs"]),
            dropped=int(entry["dropped"]),
            workload=entry["workload"],
            item=entry["item"],
            train_samples=_parse_number(entry["train_samples"]),
            better=entry["better"],
            target=_parse_number(entry["target"]),
            units=tuple(entry["unit"].split()),
        )
        for entry in read_table("benchmarks.csv")
    }


def find_benchmark(workload: str) -> Benchmark | None:
    """The benchmark that trains a workload of ours."""
    return next((one for one in load_benchmarks().values() if one.workload == workload), None)


def find_unit(name: str, place: float | None = None) -> str:
    """What a log of a benchmark that converged at `place` counts its training in; empty where that is not known."""
    known = load_benchmarks().get(name)
    units = known.units if known else ()
    return "" if not units else units[0] if place is not None and place <= MAX_EPOCHS else units[-1]


def find_round(name: str, *, path: str, time_ms: float | None) -> str | None:
    """The round whose rules apply to a log: the one its path names, else the first that closed after it was run.

    None where no round has the benchmark."""
    known = load_benchmarks().get(name)
    if known is None:
        return None
    match = re.search(r"(?:results?|training)_?v?([0-9]\.[0-9])(?![0-9])", path)
    if match and match[1] in known.rounds:
        return match[1]
    day = "9999" if time_ms is None else _format_day(time_ms)
    return next((name for name in known.rounds if day <= CLOSES[name]), known.rounds[-1])


def olympic_mean(values: Sequence[float], dropped: int) -> float:
    """The mean without the lowest and highest `dropped` values; of all where too few."""
    ordered = sorted(values)
    return statistics.fmean(ordered[dropped : len(ordered) - dropped] or ordered)


def compute_global_batch(record: Record) -> int:
    recipe = record.plan.recipe
    devices = Topology.parse(record.plan.topology).devices
    return int(recipe["batch_per_device"]) * int(recipe.get("accumulate", 1)) * devices


def read_table(name: str) -> list[dict[str, str]]:
    text = files("trainmark.features.mlperf").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _list_rounds(first: str, last: str = "") -> tuple[str, ...]:
    known = tuple(CLOSES)
    return known[known.index(first) : known.index(last or first) + 1]


def _parse_number(text: str) -> float | None:
    return float(text) if text else None


def _format_day(time_ms: float) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).date().isoformat()
    except (OverflowError, OSError, ValueError):
        return "9999"
