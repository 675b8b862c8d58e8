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
    from trainmark.record.run_folder import RankLog

RECENT_STEPS = 200
"""The last steps that the speed of a running training is measured over."""
_ROUNDING = 1e-9
"""A count of epochs this close to a whole number is that number."""


def time_left_s(plan: Plan, log: RankLog, *, step: int, elapsed_s: float | None) -> float | None:
    """About how long a running training still takes from a step on; None where that is not known."""
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
    evaluations, saves = (
        count_pauses(
            plan.recipe,
            name,
            step,
            last,
            steps_per_epoch=log.steps_per_epoch,
            items_per_step=log.items_per_step or 1.0,
            at_end=plan.limits.full,
        )
        or 0
        for name in ("evaluate_every", "checkpoint_every")
    )
    # what the run has not done once takes no time here
    save_s = (saved.save_s or 0.0) if saved else 0.0
    return (last - step) * step_s + evaluations * _evaluation_s(log, step_s) + saves * save_s


def median_step_s(log: RankLog) -> float:
    """Of the last steps, with the wait for their data."""
    recent = slice(-RECENT_STEPS, None)
    pairs = zip(log.wait_ns[recent], log.compute_ns[recent], strict=True)
    return median((wait + compute) / 1e9 for wait, compute in pairs)


def count_pauses(
    recipe: Mapping[str, Any],
    name: str,
    start: float,
    end: float,
    *,
    steps_per_epoch: float | None,
    items_per_step: float,
    at_end: bool = True,
) -> int | None:
    """How often `evaluate_every` or `checkpoint_every` pauses training between two steps, the end included.

    `at_end`: the training pauses at its end in any case. None where the steps between two pauses are not known.
    """
    word, at_end = str(recipe.get(name, "")), at_end and end > start
    if word in ("never", "end"):
        return int(word == "end" and at_end)
    try:
        span = Span.parse(word)
    except UsageError:  # a recipe of another version, or from outside
        return None
    unit = {"epochs": steps_per_epoch, "items": 1 / items_per_step}.get(span.unit, 1.0)
    if not unit:
        return None
    every, first = span.count * unit, span.first * unit
    before, after = (math.floor((step - first) / every + _ROUNDING) for step in (start, end))
    ends_on_one = abs((end - first) / every - after) < 1e-6
    return after - before + (at_end and not ends_on_one)


def _evaluation_s(log: RankLog, step_s: float) -> float:
    """Of one: by the phases at the last checkpoint, else by what passed between two evaluations beside their steps."""
    if log.saved:
        step, phases = log.saved[-1]
        if count := sum(event.step <= step for event in log.evaluations):
            return phases.get("evaluate", 0) / count / 1e9
    between = [
        (later.elapsed_ns - sooner.elapsed_ns) / 1e9 - (later.step - sooner.step) * step_s
        for sooner, later in pairwise(log.evaluations)
    ]
    return max(0.0, median(between)) if between else 0.0
