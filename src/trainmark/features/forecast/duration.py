"""Computes how long a number of training steps takes, with the evaluations and checkpoints between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainmark.record.errors import UsageError
from trainmark.record.recipe import Span

_ROUNDING = 1e-9
"""A count of steps or epochs this close below a whole number is that number."""


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
        return math.floor((step - self.first) / (self.every or 1.0) + _ROUNDING)


NEVER = Pauses(None, at_end=False)


class PhaseSeconds(NamedTuple):
    """By what the time is spent on."""

    train: float
    evaluate: float
    checkpoint: float

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True, kw_only=True)
class TrainingTimes:
    """What every step of a training takes, and every pause."""

    step_s: float
    evaluation: Pauses = NEVER
    evaluation_s: float = 0.0
    saving: Pauses = NEVER
    save_s: float = 0.0

    def seconds(self, start: float, end: float) -> PhaseSeconds:
        """From one step to another."""
        return PhaseSeconds(
            max(0.0, end - start) * self.step_s,
            self.evaluation.times(start, end) * self.evaluation_s,
            self.saving.times(start, end) * self.save_s,
        )


def parse_pauses(
    recipe: Mapping[str, Any], name: str, *, steps_per_epoch: float | None, items_per_step: float
) -> Pauses | None:
    """What a recipe's `evaluate_every` or `checkpoint_every` asks for; None where nobody can know it in steps."""
    word = str(recipe.get(name, ""))
    if word == "never":
        return NEVER
    if word == "end":
        return Pauses(None)
    try:
        span = Span.parse(word)
    except UsageError:  # a recipe of another version, or from outside
        return None
    if span.unit == "epochs":
        if not steps_per_epoch:
            return None
        return Pauses(span.count * steps_per_epoch, span.first * steps_per_epoch)
    return Pauses(span.count / (items_per_step if span.unit == "items" else 1.0))
