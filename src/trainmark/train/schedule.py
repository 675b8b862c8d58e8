"""The schedule of a run in steps: its position, and when it evaluates, saves and ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trainmark.record import endings
from trainmark.record.errors import UsageError
from trainmark.record.recipe import Limits, Recipe, Span
from trainmark.record.record import Evaluation


@dataclass(kw_only=True)
class Position:
    """The position of training, which a checkpoint restores beside the weights."""

    epoch: int = 0
    """Whole passes over the data; 0 for an endless stream."""
    step_in_epoch: int = 0
    step: int = 0
    history: list[Evaluation] = field(default_factory=list)
    began_step: int = 0
    """The first step of this run: 0, or the step it resumed from. A restart does not change it."""
    trained_s: float = 0.0
    """How long this run has trained, as of its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A recipe and the limits of a run, in steps of the opened data."""

    recipe: Recipe
    limits: Limits
    steps_per_epoch: int | None
    """None for an endless stream."""
    items_per_step: float
    """The mean over all ranks; it converts items to steps, so that all ranks agree without communication."""

    def __post_init__(self) -> None:
        if self.planned_steps == math.inf:
            stream = "an endless stream has no epochs, and " if self.steps_per_epoch is None else ""
            raise UsageError(f"{stream}the recipe has no other end; set its steps or its items, as in --set steps=1000")

    @property
    def planned_steps(self) -> float:
        """The last step of the recipe, whatever the limits of this run."""
        by_epochs = self.recipe.epochs * (self.steps_per_epoch or 0)
        return min((cap for cap in (self.recipe.steps, by_epochs, self._cap_of_items) if cap), default=math.inf)

    def end_reason(self, position: Position) -> str:
        """Why training is over at a position; empty where it continues."""
        recipe, limits = self.recipe, self.limits
        if recipe.epochs and position.epoch >= recipe.epochs:
            return endings.CAP
        if recipe.steps and position.step >= recipe.steps:
            return endings.CAP_OF_STEPS
        if recipe.items and position.step >= self._cap_of_items:
            return endings.CAP_OF_ITEMS
        return endings.EPOCHS if limits.epochs is not None and position.epoch >= limits.epochs else ""

    def next_pause(self, position: Position) -> float:
        """The next step followed by an evaluation, a checkpoint or the end; ends of epochs are pauses anyway."""
        pauses = [step for step in (self.recipe.steps, self._cap_of_items) if step]
        for word in (self.recipe.evaluate_every, self.recipe.checkpoint_every):
            if word not in ("end", "never") and (span := Span.parse(word)).unit != "epochs":
                done = self._times(span, position.step)
                step = math.ceil((done + 1) * span.count / self._counted_by(span))
                # rounding may leave a product of fractions just below a whole number
                pauses.append(step if self._times(span, step) > done else step + 1)
        return min(pauses, default=math.inf)

    def is_due(self, every: str, position: Position) -> bool:
        """Whether an interval of the recipe, such as `500 steps`, ends at this position."""
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
        """How many spans of steps or items have passed."""
        return math.floor(step * self._counted_by(span) / span.count)
