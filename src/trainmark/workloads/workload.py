"""The workload interface of the training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from trainmark.record.numbers import Target
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.record.workload_facts import QualityFacts
from trainmark.workloads import read_facts, read_recipes
from trainmark.workloads.sampling import SampleRequest, Trained


def optimizer_kwargs(recipe: Recipe) -> dict[str, Any]:
    """Arguments of a torch optimizer for the recipe's implementation (foreach, fused)."""
    return {"fused": recipe.optimizer_kind == "fused", "foreach": recipe.optimizer_kind == "foreach"}


class PlainWorkload:
    """Trained to the first of its `qualities`, at a constant learning rate."""

    qualities: Sequence[QualityFacts]
    limits: Mapping[str, Limits] = {}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {}

    @property
    def target(self) -> Target:
        return self.qualities[0].target

    def check_data(self, recipe: Any, folder: Path, world: int) -> None:
        """No check by default."""

    def build(self, recipe: Any) -> nn.Module:
        raise NotImplementedError

    def learning_rate(self, recipe: Any, progress: Progress) -> float:
        return float(recipe.learning_rate)

    def scaled_learning_rate(self, recipe: Any, batch_per_device: int) -> float:
        """Constant, as the published rows of speech keep Adam's rate at every batch."""
        return float(recipe.learning_rate)

    def flops_per_item(self, recipe: Any) -> float:
        """Not stated: the matmuls of the first step are counted instead."""
        return 0.0

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        raise NotImplementedError


class KnownWorkload(PlainWorkload):
    """A workload of ours: `facts.toml` says what it is called and trained to, `recipes.toml` how."""

    def __init__(self, name: str, recipe: type[Recipe]) -> None:
        self.facts = read_facts(name)
        self.recipes: Mapping[str, Any]
        self.recipes, self.on_accelerators = read_recipes(name, recipe)

    limits: Mapping[str, Limits] = {"quick": Limits(half_width=0.02, seconds=60)}

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def item(self) -> str:
        return self.facts.item

    @property
    def data_set(self) -> str:
        return self.facts.data_set

    @property
    def target(self) -> Target:
        return self.facts.quality.target

    @property
    def reference_global_batch(self) -> int:
        return self.facts.reference.global_batch if self.facts.reference else 1


def cut_samples(samples: int, parts: int) -> list[slice]:
    """Samples as this many slices of similar length, or fewer, none empty."""
    parts = min(parts, samples)
    return [slice(samples * number // parts, samples * (number + 1) // parts) for number in range(parts)]


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainBatch:
    """A subclass adds tensors whose first dimension is the samples, and names its tuples of one value per sample."""

    per_sample: ClassVar[Sequence[str]] = ()
    count: int
    global_count: int

    def parts(self, count: int) -> list[Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        cut = {name: value for name, value in values.items() if isinstance(value, Tensor) or name in self.per_sample}
        return [
            replace(self, count=part.stop - part.start, **{name: value[part] for name, value in cut.items()})
            for part in cut_samples(self.count, count)
        ]


class PlainSource:
    """Data without files to skip or close; an endless stream by default."""

    steps_per_epoch: int | None = None
    skipped: Sequence[tuple[str, str]] = ()
    facts: Mapping[str, float] = {}

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Share:
    """This rank's part of the data."""

    rank: int
    world: int
    local_ranks: int
    tensor: int = 1
    """Neighbouring ranks that share one batch, and so read the same."""


class Progress(NamedTuple):
    """Training progress, the same on every rank."""

    step: int
    """Steps done before this one."""
    epoch: float
    """Completed passes over the data; always 0 for an endless stream."""
    planned_steps: float
    """Last step of the recipe, if its target is not reached before."""
    items_per_step: float

    @property
    def fraction(self) -> float:
        """0 at the first step, 1 at the recipe's end."""
        return self.step / self.planned_steps

    @property
    def items(self) -> float:
        """Items of throughput, over all ranks."""
        return self.step * self.items_per_step


class Batch(Protocol):
    """A dataclass with any further fields. Its tensors, also in tuples, lists, dicts and dataclasses, are moved to the
    device."""

    @property
    def count(self) -> int:
        """Samples of this rank."""

    @property
    def global_count(self) -> int:
        """Samples of this step over all ranks."""

    def parts(self, count: int, /) -> Sequence[Batch]:
        """The batch as this many micro-batches of similar length, or fewer if it has fewer samples."""


class DataSource(Protocol):
    """Open data of a run; its worker processes live as long as it does."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None: an endless stream, which is one infinite epoch."""

    @property
    def items_per_step(self) -> float:
        """Mean items per step over all ranks, the same on all of them; converts limits in items to steps."""

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Unreadable files that were skipped, with the reason."""

    @property
    def facts(self) -> Mapping[str, float]:
        """Facts about the data for the record, such as the share of padding. Doubts use `train_samples`,
        `left_out_samples` (excluded by the recipe), `chance` (the target's value when guessing) and `loss_floor`."""

    def train(self, epoch: int, start_step: int) -> Iterator[Any]:
        """This rank's batches from a step of an epoch to the epoch's end; called again after every pause and
        resume. An endless stream has only epoch 0."""

    def evaluation(self) -> Iterator[Any]:
        """This rank's evaluation batches; finite even for endless training data."""

    def close(self) -> None: ...


class Workload(Protocol):
    name: str
    item: str
    """Unit of throughput."""
    data_set: str
    target: Target
    recipes: Mapping[str, Recipe]
    limits: Mapping[str, Limits]
    """Stop conditions of named recipes, beside target and cap."""
    on_accelerators: Mapping[str, Mapping[str, int | float]]
    """Fields of named recipes that are larger on an accelerator."""
    reference_global_batch: int

    def check_data(self, recipe: Any, folder: Path, world: int) -> None:
        """Raises NotReadyError if this many ranks cannot train on a folder; a check of seconds before anything is
        started."""

    def open_data(self, recipe: Any, folder: Path, share: Share, skip_bad: int) -> DataSource: ...

    def build(self, recipe: Any) -> nn.Module: ...

    def optimizer(self, parameters: Iterable[Tensor], recipe: Any) -> torch.optim.Optimizer: ...

    def learning_rate(self, recipe: Any, progress: Progress) -> float:
        """The rate of the next step."""

    def scaled_learning_rate(self, recipe: Any, batch_per_device: int) -> float:
        """The rate for another batch than the recipe's, by the rule its authors used."""

    def items(self, batch: Any) -> int:
        """How many items throughput counts in this rank's batch."""

    def flops_per_item(self, recipe: Any) -> float:
        """FLOPs of the forward and backward pass for one item; a multiply-add is 2. 0 where it is not stated."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean over the batch, in float32."""

    sums: tuple[str, ...]
    """Keys of `score`, so that a rank without samples can contribute zeros."""

    def score(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        """Sums over the batch's samples, scalars or vectors; reduced over batches and ranks."""

    def quality(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The reported metrics from those sums (vectors become lists); one has the target's name."""

    def sample(self, trained: Trained, request: SampleRequest) -> Sample:
        """Output of a trained network for people to judge: called by `trainmark sample`, and after training if the
        recipe has `leave_sample`. Unused if its facts have no `shows`."""


@runtime_checkable
class HearsMels(Protocol):
    """A workload whose checkpoints record the units of its input mels."""

    heard: Mapping[str, float]
