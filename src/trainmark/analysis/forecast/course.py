"""How long a stretch of training takes: its steps, and the evaluations and checkpoints that come with them.

A forecast of a whole training and what is left of a running one are reckoned by the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.spec.errors import UsageError
from trainmark.spec.recipe import Span

if TYPE_CHECKING:
    from trainmark.spec.plan import Plan
    from trainmark.spec.rank_log import RankLog

RECENT_STEPS = 200
"""The speed of a running training is that of so many steps at most, the last ones."""
_WHOLE = 1e-9
"""A count of steps or epochs that lies so near to a whole number is meant to be it."""


class Pauses(NamedTuple):
    """When training pauses for something."""

    every: float | None
    """Steps; None: not on its way."""
    first: float = 0.0
    """Steps by which they are shifted."""
    at_end: bool = True

    def times(self, start: float, end: float) -> float:
        """How often from one step to another, the end included."""
        if self.every is None:
            return float(self.at_end and end > start)
        done = self._passed(end) - self._passed(start)
        on_it = abs((end - self.first) / self.every - self._passed(end)) < 1e-6
        return done + (self.at_end and end > start and not on_it)

    def _passed(self, step: float) -> int:
        return math.floor((step - self.first) / (self.every or 1.0) + _WHOLE)


NEVER = Pauses(None, at_end=False)


class CourseSeconds(NamedTuple):
    train: float
    evaluate: float
    checkpoint: float

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True, kw_only=True)
class Course:
    """What every step of a training takes, and every pause."""

    step_s: float
    evaluation: Pauses = NEVER
    evaluation_s: float = 0.0
    saving: Pauses = NEVER
    save_s: float = 0.0

    def seconds(self, start: float, end: float) -> CourseSeconds:
        """From one step to another."""
        return CourseSeconds(
            max(0.0, end - start) * self.step_s,
            self.evaluation.times(start, end) * self.evaluation_s,
            self.saving.times(start, end) * self.save_s,
        )


def pauses(
    recipe: Mapping[str, Any], name: str, *, steps_per_epoch: float | None, items_per_step: float, at_end: bool = True
) -> Pauses | None:
    """What a recipe's `evaluate_every` or `checkpoint_every` asks for; None where nobody can know it in steps."""
    word = str(recipe.get(name, ""))
    if word == "never":
        return NEVER
    if word == "end":
        return Pauses(None, at_end=at_end)
    try:
        span = Span.parse(word)
    except UsageError:  # a recipe of another version, or from outside
        return None
    if span.unit == "epochs":
        if not steps_per_epoch:
            return None
        return Pauses(span.count * steps_per_epoch, span.first * steps_per_epoch, at_end=at_end)
    return Pauses(span.count / (items_per_step if span.unit == "items" else 1.0), at_end=at_end)


def left_s(plan: Plan, log: RankLog, *, step: int, elapsed_s: float | None) -> float | None:
    """About how long a running training still takes from a step on; None where nobody can know."""
    if not log.compute_ns:
        return None
    if plan.limits.wall_s is not None and elapsed_s is not None:
        return max(0.0, plan.limits.wall_s - elapsed_s)
    if plan.limits.seconds is not None:
        return max(0.0, plan.limits.seconds - log.busy_ns / 1e9)
    last = plan.last_step(
        first_step=log.first_step, steps_per_epoch=log.steps_per_epoch, items_per_step=log.items_per_step
    )
    return None if last is None else course_of_log(plan, log).seconds(min(step, last), last).total


def course_of_log(plan: Plan, log: RankLog) -> Course:
    """By what a run has done so far; what it has not yet done once takes no time here."""
    recent = slice(-RECENT_STEPS, None)
    step_s = median(
        (wait + compute) / 1e9 for wait, compute in zip(log.wait_ns[recent], log.compute_ns[recent], strict=True)
    )
    found = {
        name: pauses(
            plan.recipe,
            name,
            steps_per_epoch=log.steps_per_epoch,
            items_per_step=log.items_per_step or 1.0,
            at_end=plan.limits.full,
        )
        for name in ("evaluate_every", "checkpoint_every")
    }
    saved = log.checkpoint()
    return Course(
        step_s=step_s,
        evaluation=found["evaluate_every"] or NEVER,
        evaluation_s=_evaluation_s(log, step_s),
        saving=found["checkpoint_every"] or NEVER,
        save_s=(saved.save_s or 0.0) if saved else 0.0,
    )


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
