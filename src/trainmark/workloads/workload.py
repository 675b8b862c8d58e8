"""What a workload is to the training loop: a handful of short methods around a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainmark.record.numbers import Target
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.record.workload_facts import QualityFacts
from trainmark.workloads.sampling import SampleRequest, Trained


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


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of the data this rank reads."""

    rank: int
    world: int
    local_ranks: int
    tensor: int = 1
    """Ranks beside each other that compute one batch together, and so read the same."""


class Progress(NamedTuple):
    """How far training has come, the same on every rank."""

    step: int
    """Steps done before this one."""
    epoch: float
    """Passes over the data; 0 for an endless stream, which never completes one."""
    planned_steps: float
    """Where the recipe ends, if its target is not reached before."""
    items_per_step: float

    @property
    def fraction(self) -> float:
        """Of the recipe's length: 0 at the first step, 1 at its end."""
        return self.step / self.planned_steps

    @property
    def items(self) -> float:
        """What throughput counts, over all ranks."""
        return self.step * self.items_per_step


class Batch(Protocol):
    """What the loader hands over: a dataclass that may hold anything beside these. Its tensors, alone or in tuples,
    lists, dicts and further dataclasses, are moved to the device."""

    @property
    def count(self) -> int:
        """Samples of this rank."""

    @property
    def global_count(self) -> int:
        """Samples of this step over all ranks."""

    def parts(self, count: int, /) -> Sequence[Batch]:
        """The batch cut into this many micro-batches of like length, or fewer where it has fewer samples."""


class DataSource(Protocol):
    """Open data of a run; processes that prepare batches live as long as it does."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None: an endless stream, which is one epoch that never ends."""

    @property
    def items_per_step(self) -> float:
        """The mean number of items in a step over all ranks, and the same on all of them; what a recipe or a user says
        in items becomes steps by it."""

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Data files that could not be read and were left out, with the reason."""

    @property
    def facts(self) -> Mapping[str, float]:
        """What the record should say about how the data was read, such as the share of padding. Doubts look at
        `train_samples`, how many there are to train on, `left_out_samples`, how many more the recipe leaves out,
        `chance`, the value of the target that guessing would give, and `loss_floor`, the least that is possible."""

    def train(self, epoch: int, start_step: int) -> Iterator[Any]:
        """This rank's batches from a step of an epoch to the epoch's end; asked for again after every pause, and after
        a resume. An endless stream is asked for its epoch 0 from any step."""

    def evaluation(self) -> Iterator[Any]:
        """This rank's part of what is scored: it ends, also where training data does not."""

    def close(self) -> None: ...


class Workload(Protocol):
    name: str
    item: str
    """What throughput counts."""
    data_set: str
    target: Target
    recipes: Mapping[str, Recipe]
    limits: Mapping[str, Limits]
    """Where the runs of a named recipe stop, if not at its target or cap."""
    on_accelerators: Mapping[str, Mapping[str, int | float]]
    """Fields of a named recipe that are larger where there is an accelerator."""
    reference_global_batch: int

    def check_data(self, recipe: Any, folder: Path, world: int) -> None:
        """Raises NotReadyError where so many ranks could not train on a folder, as far as a look of seconds tells;
        before anything is started, so that nothing is left of a run that could not be."""

    def open_data(self, recipe: Any, folder: Path, share: Share, skip_bad: int) -> DataSource: ...

    def build(self, recipe: Any) -> nn.Module: ...

    def optimizer(self, parameters: Iterable[Tensor], recipe: Any) -> torch.optim.Optimizer: ...

    def learning_rate(self, recipe: Any, progress: Progress) -> float:
        """The rate of the step that comes next."""

    def scaled_learning_rate(self, recipe: Any, batch_per_device: int) -> float:
        """The rate for another batch than the recipe's, by the rule its authors used."""

    def items(self, batch: Any) -> int:
        """How many items throughput counts in this rank's batch."""

    def flops_per_item(self, recipe: Any) -> float:
        """What training on one item takes, forward and backward, by the network's mathematics; a multiply-add is 2."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean over the batch, in float32."""

    sums: tuple[str, ...]
    """What `score` adds up, so that a rank without a sample can add nothing."""

    def score(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Sums over the batch's samples, numbers or vectors; the loop adds them up over batches and ranks."""

    def quality(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """From those sums, a list where there was a vector, the numbers reported; one has the target's name."""

    def sample(self, trained: Trained, asked: SampleRequest) -> Sample:
        """What a trained network makes of an input, for people to judge it by: asked by `trainmark sample`, and after
        training where the recipe has `leave_sample`. Of no matter where its facts have no `shows`."""


@runtime_checkable
class HearsMels(Protocol):
    """A workload whose checkpoints must say in what units its network takes its data."""

    heard: Mapping[str, float]
