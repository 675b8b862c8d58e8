"""How a step's own computing depends on the batch: a fixed part, and a part for each sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from trainmark.analysis.forecast.law import RUN_ERROR
from trainmark.spec.record import Record

USUAL_FIXED, USUAL_FIXED_ERROR = 0.03, 0.06
"""The share of a step that does not depend on its batch, as published sizes of smaller batches show it: the middle, and
how unlike trainings are."""
FARTHEST = 2.0
"""Times that a batch may lie below the smallest known one."""


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """A step's computing over its batch, as a straight line."""

    batch: int
    """Of the runs a forecast goes by."""
    fixed: float
    """The share of their computing that does not depend on the batch."""
    error: float
    """Its standard deviation."""
    batches: tuple[int, ...]
    """That are known, smallest first."""
    source: str
    """In words; empty where only published trainings say it."""

    def times(self, batch: int) -> float:
        """How many times as long a step of another batch computes."""
        return self.fixed + (1 - self.fixed) * batch / self.batch

    def log_error(self, batch: int) -> float:
        """Standard deviation of the logarithm of what it computes, as the fixed part is not exactly known."""
        return abs(1 - batch / self.batch) * self.error / self.times(batch)


def batch_line(batch: int, alike: Sequence[Record], others: Sequence[Record]) -> BatchLine:
    """By runs of other batches at a size that is known, else by what the search of a batch tried, else as usual."""
    runs = [(int(record.plan.recipe["batch_per_device"]), own_s(record)) for record in (*alike, *others)]
    sizes = {record.plan.topology for record in others}
    at_one_size = [
        pair for record, pair in zip((*alike, *others), runs, strict=True) if record.plan.topology in sizes and pair[1]
    ]
    if others and (found := _line(batch, at_one_size, "runs of several batches")):
        return found
    for record in alike:
        search = record.environment.fill
        tries = [(entry.batch, entry.step_s) for entry in search.curve if not entry.unfit] if search else []
        if found := _line(batch, tries, "the batches that the search of a batch tried"):
            return found
    return BatchLine(batch=batch, fixed=USUAL_FIXED, error=USUAL_FIXED_ERROR, batches=(batch,), source="")


def own_s(record: Record) -> float:
    """What a step computes, without the exchange, on the average rank."""
    timeline = record.timeline
    counted = timeline.steps - timeline.warmup_steps
    return fmean(map(timeline.own_ns, timeline.ranks)) / counted / 1e9 if counted > 0 else 0.0


def _line(batch: int, times: Iterable[tuple[int, float]], source: str) -> BatchLine | None:
    """The line that fits them best by their ratios; None where they are not several batches, or grow shorter."""
    known = [(size, seconds) for size, seconds in times if seconds > 0]
    if len({size for size, _ in known}) < 2:
        return None
    rows = np.array([[1 / seconds, size / seconds] for size, seconds in known])
    (fixed_s, sample_s), *_ = np.linalg.lstsq(rows, np.ones(len(known)), rcond=None)
    if sample_s <= 0:
        return None
    off = rows @ np.array([fixed_s, sample_s]) - 1
    noise = max(RUN_ERROR, math.sqrt(float(off @ off) / max(1, len(known) - 2)))
    whole_s = max(fixed_s, 0.0) + sample_s * batch
    error = noise * math.sqrt(float(np.linalg.inv(rows.T @ rows)[0, 0])) / whole_s
    fixed = min(max(float(fixed_s) / whole_s, 0.0), 0.9)
    return BatchLine(
        batch=batch,
        fixed=fixed,
        error=error,
        batches=tuple(sorted({size for size, _ in known} | {batch})),
        source=source,
    )
