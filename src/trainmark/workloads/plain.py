"""What a workload of your own may leave unsaid: inherit from these and write only what is different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainmark.record.numbers import Target
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.record.workload_facts import QualityFacts
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Progress


def optimizer_kwargs(recipe: Recipe) -> dict[str, Any]:
    """What an optimizer of torch is to be told, so that it goes over the parameters in the way the recipe asks for."""
    return {"fused": recipe.optimizer_kind == "fused", "foreach": recipe.optimizer_kind == "foreach"}


class PlainWorkload:
    """Trained to the first of its `qualities`, at a learning rate that stays."""

    qualities: Sequence[QualityFacts]
    limits: Mapping[str, Limits] = {}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {}

    @property
    def target(self) -> Target:
        return self.qualities[0].target

    def check_data(self, recipe: Any, folder: Path, world: int) -> None:
        """Nothing can be wrong with data that is made or opened later."""

    def build(self, recipe: Any) -> nn.Module:
        raise NotImplementedError

    def learning_rate(self, recipe: Recipe, progress: Progress) -> float:
        return recipe.learning_rate

    def scaled_learning_rate(self, recipe: Recipe, batch_per_device: int) -> float:
        """The same for every batch."""
        return recipe.learning_rate

    def flops_per_item(self, recipe: Any) -> float:
        """Every weight is multiplied and added once forward and twice backward, as networks that count tokens do."""
        with torch.device("meta"):
            return 6.0 * sum(weight.numel() for weight in self.build(recipe).parameters())

    def sample(self, trained: Trained, asked: SampleRequest) -> Sample:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainBatch:
    """A subclass adds tensors, whose first dimension is the samples."""

    count: int
    global_count: int

    def parts(self, count: int) -> list[Any]:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        split = {name: value.tensor_split(count) for name, value in tensors.items() if isinstance(value, Tensor)}
        cuts = [dict(zip(split, cut, strict=True)) for cut in zip(*split.values(), strict=True)]
        found = [(len(next(iter(cut.values()))), cut) for cut in cuts]
        return [replace(self, count=length, **cut) for length, cut in found if length]


class PlainSource:
    """Data of which no file can be unreadable, and nothing has to be closed; a stream unless it is said otherwise."""

    steps_per_epoch: int | None = None
    skipped: Sequence[tuple[str, str]] = ()
    facts: Mapping[str, float] = {}

    def close(self) -> None:
        pass
