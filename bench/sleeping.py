"""A workload whose computing is sleep, so that how long it takes does not depend on what else a machine does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn, optim

from trainmark.record.recipe import Recipe
from trainmark.record.workload_facts import QualityFacts
from trainmark.workloads.workload import PlainBatch, PlainSource, PlainWorkload

NUMBERS = 400_000
REFERENCE = Recipe(batch_per_device=8, learning_rate=0.0, weight_decay=0, steps=100, target=0.0, evaluate_every="end")


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch(PlainBatch):
    x: Tensor


class Data(PlainSource):
    def __init__(self, batch: int, share: Any) -> None:
        self.batch, self.share, self.items_per_step = batch, share, float(batch * share.world)

    def _one(self) -> Batch:
        return Batch(x=torch.ones(self.batch), count=self.batch, global_count=self.batch * self.share.world)

    def train(self, epoch: int, start_step: int) -> Iterator[Batch]:
        return (self._one() for _ in itertools.count(start_step))

    def evaluation(self) -> Iterator[Batch]:
        return iter([self._one()] if self.share.rank == 0 else [])


class Sleeper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(NUMBERS))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02 * len(x))
        return self.weights.sum() * x.mean()


class Sleeping(PlainWorkload):
    name, item, data_set, reference_global_batch = "sleeping", "naps", "naps", 8
    sums = ("loss",)
    recipes = {"reference": REFERENCE, "smoke": replace(REFERENCE, steps=20)}  # noqa: RUF012 - as the other workloads
    qualities = (QualityFacts(name="loss", unit="-", better="lower", least=0),)

    def open_data(self, recipe: Any, folder: Any, share: Any, skip_bad: int) -> Data:
        return Data(recipe.batch_per_device, share)

    def build(self, recipe: Any) -> nn.Module:
        return Sleeper()

    def optimizer(self, parameters: Any, recipe: Any) -> optim.Optimizer:
        return optim.SGD(parameters, lr=recipe.learning_rate)

    def items(self, batch: Batch) -> int:
        return batch.count

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch.x)
        return loss

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": model(batch.x)}

    def quality(self, sums: Any) -> dict[str, float]:
        return {"loss": float(sums["loss"])}


WORKLOAD = Sleeping()
