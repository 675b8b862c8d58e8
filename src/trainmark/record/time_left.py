"""Estimates how long a running training still takes, with the evaluations and checkpoints to come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark.record.errors import UsageError
from trainmark.record.recipe import Span

if TYPE_CHECKING:
    from trainmark.record.plan import Plan
    from trainmark.record.rank_log import RankLog

RECENT_STEPS = 200
"""Last steps that determine the current speed."""
_ROUNDING = 1e-9
"""Tolerance when rounding a count of epochs."""


def time_left_s(plan: Plan, log: RankLog, *, step: int, elapsed_s: float | None) -> float | None:
    """Estimated time left from a step on; None where unknown."""
    if not log.compute_ns:
        return None
    if plan.limits.wall_s is not None and elapsed_s is not None:
        return max(0.0, plan.limits.wall_s - elapsed_s)
    if plan.limits.seconds is not None:
        return max(0.0, plan.limits.seconds - log.busy_ns / 1e9)
    last = plan.last_step(
        first_step=log.first_step, steps_per_epoch=log.steps_per_epoch, items_per_step=log.items_per_step
    )
    if last is None:
        return None
    step, step_s, saved = min(step, last), median_step_s(log), log.checkpoint()
    evaluations = _count_pauses(plan, log, "evaluate_every", step, last)
    saves = _count_pauses(plan, log, "checkpoint_every", step, last)
    # what has not happened yet counts as zero
    save_s = (saved.save_s or 0.0) if saved else 0.0
    return (last - step) * step_s + evaluations * _evaluation_s(log, step_s) + saves * save_s


def median_step_s(log: RankLog) -> float:
    """Of the last steps, with the wait for their data."""
    recent = slice(-RECENT_STEPS, None)
    pairs = zip(log.wait_ns[recent], log.compute_ns[recent], strict=True)
    return median((wait + compute) / 1e9 for wait, compute in pairs)


def _count_pauses(plan: Plan, log: RankLog, name: str, start: int, end: int) -> int:
    """Number of evaluations or checkpoints between two steps, the end included."""
    word, at_end = str(plan.recipe.get(name, "")), plan.limits.full and end > start
    if word == "end":
        return int(at_end)
    try:
        span = Span.parse(word)
    except UsageError:  # `never`, or a recipe of another version
        return 0
    steps = {"epochs": log.steps_per_epoch, "items": 1 / (log.items_per_step or 1.0)}.get(span.unit, 1)
    if not steps:
        return 0
    every, first = span.count * steps, span.first * steps
    before, after = (math.floor((step - first) / every + _ROUNDING) for step in (start, end))
    ends_on_one = abs((end - first) / every - after) < 1e-6
    return after - before + (at_end and not ends_on_one)


def _evaluation_s(log: RankLog, step_s: float) -> float:
    """Time of one evaluation: by the phases at the last checkpoint, else by the time between two evaluations."""
    if log.saved:
        step, phases = log.saved[-1]
        if count := sum(event.step <= step for event in log.evaluations):
            return phases.get("evaluate", 0) / count / 1e9
    between = [
        (later.elapsed_ns - sooner.elapsed_ns) / 1e9 - (later.step - sooner.step) * step_s
        for sooner, later in pairwise(log.evaluations)
    ]
    return max(0.0, median(between)) if between else 0.0
