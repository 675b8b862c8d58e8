"""DeepSpark's Stability: how many of five trainings to the target ended within 1 % of their median."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.record.record import Record

TRAININGS = 5
NEAR = 0.01
"""Of the median, on either side."""


def stability(values: Sequence[float]) -> float | None:
    """1 - 0.2 for each of the first five values further than 1 % from their median; None of fewer."""
    first = values[:TRAININGS]
    if len(first) < TRAININGS:
        return None
    base = median(first)
    # a distance of 1 % that was rounded up is still one of 1 %
    far = sum(abs(value - base) > abs(base) * NEAR * (1 + 1e-9) for value in first)
    return round(1 - far / TRAININGS, 3)


def stability_of(repeats: Sequence[Record]) -> float | None:
    """Of the first five repeats of one full run; None where there are fewer, or one of them missed the target."""
    first = sorted(repeats, key=lambda record: (record.created, record.run_id))[:TRAININGS]
    ended = [
        record.quality.value
        for record in first
        if record.status == "valid" and record.plan.limits.full and record.quality.reached
    ]
    return stability([value for value in ended if value is not None])
