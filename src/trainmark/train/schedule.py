"""Counts a run in steps: where it stands, and when it evaluates, saves and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trainmark.record import endings
from trainmark.record.errors import UsageError
from trainmark.record.recipe import Limits, Recipe, Span
from trainmark.record.record import Evaluation


@dataclass(kw_only=True)
class Position:
    """Where training stands: what a checkpoint must restore beside the weights."""

    epoch: int = 0
    """Whole passes over the data; an endless stream stays in its first."""
    step_in_epoch: int = 0
    step: int = 0
    history: list[Evaluation] = field(default_factory=list)
    began_step: int = 0
    """The step this run began with: 0, or where the run stood that it resumed. A restart does not change it."""
    trained_s: float = 0.0
    """How long this run has trained, as of its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a recipe and a run's limits ask for, in the steps of the data that is open."""

    recipe: Recipe
    limits: Limits
    steps_per_epoch: int | None
    """None: an endless stream."""
    items_per_step: float
    """The mean, over all ranks; items become steps by it, so that all ranks agree without asking each other."""

    def __post_init__(self) -> None:
        if self.planned_steps == math.inf:
            stream = "an endless stream has no epochs, and " if self.steps_per_epoch is None else ""
            raise UsageError(f"{stream}the recipe has no other end; set its steps or its items, as in --set steps=1000")

    @property
    def planned_steps(self) -> float:
        """Where the recipe ends at the latest, whatever the limits of this run."""
        by_epochs = self.recipe.epochs * (self.steps_per_epoch or 0)
        return min((cap for cap in (self.recipe.steps, by_epochs, self._cap_of_items) if cap), default=math.inf)

    def end_reason(self, position: Position) -> str:
        """Why training is over at a position; empty where it goes on."""
        recipe, limits = self.recipe, self.limits
        if recipe.epochs and position.epoch >= recipe.epochs:
            return endings.CAP
        if recipe.steps and position.step >= recipe.steps:
            return endings.CAP_OF_STEPS
        if recipe.items and position.step >= self._cap_of_items:
            return endings.CAP_OF_ITEMS
        return endings.EPOCHS if limits.epochs is not None and position.epoch >= limits.epochs else ""

    def next_pause(self, position: Position) -> float:
        """The next step after which there is something to do other than to train; ends of epochs are pauses anyway."""
        pauses = [step for step in (self.recipe.steps, self._cap_of_items) if step]
        for word in (self.recipe.evaluate_every, self.recipe.checkpoint_every):
            if word not in ("end", "never") and (span := Span.parse(word)).unit != "epochs":
                done = self._times(span, position.step)
                step = math.ceil((done + 1) * span.count / self._counted_by(span))
                # a product of fractions may come out a hair below the whole number it stands for
                pauses.append(step if self._times(span, step) > done else step + 1)
        return min(pauses, default=math.inf)

    def is_due(self, every: str, position: Position) -> bool:
        """Whether a recipe's word such as `500 steps` names the position, at which training has just paused."""
        if every in ("end", "never"):
            return False
        span = Span.parse(every)
        if span.unit == "epochs":
            return position.step_in_epoch == 0 and (position.epoch - span.first) % span.count == 0
        return self._times(span, position.step) > self._times(span, position.step - 1)

    @property
    def _cap_of_items(self) -> int:
        return math.ceil(self.recipe.items / self.items_per_step)

    def _counted_by(self, span: Span) -> float:
        return self.items_per_step if span.unit == "items" else 1

    def _times(self, span: Span, step: int) -> int:
        """How often a span of steps or items has gone by."""
        return math.floor(step * self._counted_by(span) / span.count)
