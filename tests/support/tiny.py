"""The smallest workload there is: a few numbers to fit, for tests of the loop around it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Platform
from trainmark.record.events import EventWriter
from trainmark.record.numbers import Target
from trainmark.record.precision import Precision
from trainmark.record.recipe import Limits, Recipe
from trainmark.record.sample import Sample
from trainmark.train import loop, monitor
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.schedule import Position, Schedule
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import make_losses
from trainmark.workloads.sampling import SampleRequest, Trained
from trainmark.workloads.workload import Progress, Share

RECIPE = Recipe(batch_per_device=4, learning_rate=0.1, weight_decay=0.0, epochs=5, target=0.001, optimizer_kind="plain")


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    x: Tensor
    y: Tensor
    count: int
    global_count: int

    def parts(self, count: int) -> list[Points]:
        cuts = zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True)
        return [replace(self, x=x, y=y, count=len(x)) for x, y in cuts if len(x)]


@dataclass
class PointData:
    """Ten points on a line: an epoch is two full batches and a short one."""

    poison_at: int | None = None
    """The step of an epoch whose batch is not finite."""
    steps_per_epoch: int | None = 3
    items_per_step: float = 10 / 3
    skipped: list[tuple[str, str]] = field(default_factory=list)
    facts: Mapping[str, float] = field(default_factory=dict)
    closed: bool = False

    def train(self, epoch: int, start_step: int) -> Iterator[Points]:
        x = torch.linspace(-1, 1, 10)[torch.randperm(10, generator=torch.Generator().manual_seed(epoch))]
        for step in range(start_step, 3):
            part = x[step * 4 : step * 4 + 4]
            if step == self.poison_at:
                part = part * float("nan")
            yield Points(x=part, y=3 * part + 1, count=len(part), global_count=len(part))

    def evaluation(self) -> Iterator[Points]:
        x = torch.linspace(-1, 1, 5)
        yield Points(x=x, y=3 * x + 1, count=5, global_count=5)

    def close(self) -> None:
        self.closed = True


@dataclass
class PointStream(PointData):
    """Points without end, a function of the step alone."""

    steps_per_epoch: int | None = None
    items_per_step: float = 4.0
    asked_from: list[int] = field(default_factory=list)

    def train(self, epoch: int, start_step: int) -> Iterator[Points]:
        self.asked_from.append(start_step)
        for step in itertools.count(start_step):
            x = torch.rand(4, generator=torch.Generator().manual_seed(step))
            yield Points(x=x, y=3 * x + 1, count=4, global_count=4)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(1))
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x + self.offset


class LineFit:
    name = "linefit"
    item = "points"
    data_set = "points"
    target = Target(name="error", unit="-", better="lower")
    recipes: Mapping[str, Recipe] = {"reference": RECIPE}
    limits: Mapping[str, Limits] = {}
    on_accelerators: Mapping[str, Mapping[str, int | float]] = {}
    reference_global_batch = 4
    sums: tuple[str, ...] = ("error",)

    def check_data(self, recipe: Recipe, folder: Path, world: int) -> None: ...

    def open_data(self, recipe: Recipe, folder: Path, share: Share, skip_bad: int) -> PointData:
        return PointData()

    def build(self, recipe: Recipe) -> nn.Module:
        return Line()

    def optimizer(self, parameters: Iterable[Tensor], recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, momentum=0.5)

    def learning_rate(self, recipe: Recipe, progress: Progress) -> float:
        return recipe.learning_rate

    def items(self, batch: Points) -> int:
        return batch.count

    def flops_per_item(self, recipe: Recipe) -> float:
        return 6.0

    def loss(self, model: nn.Module, batch: Points) -> Tensor:
        return (model(batch.x) - batch.y).square().mean().float()

    def score(self, model: nn.Module, batch: Points) -> dict[str, Tensor]:
        return {"error": (model(batch.x) - batch.y).square().sum()}

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"error": sums["error"] / sums["samples"]}

    def sample(self, trained: Trained, asked: SampleRequest) -> Sample:
        raise NotImplementedError


def at_epoch(epoch: float) -> Progress:
    """So far in a training of which only the epochs matter."""
    return Progress(step=0, epoch=epoch, planned_steps=1, items_per_step=1)


def job(
    folder: Path,
    *,
    recipe: Recipe = RECIPE,
    limits: Limits | None = None,
    data: PointData | None = None,
    position: Position | None = None,
    precision: str = "fp32",
    platform: str = "cpu",
    saved: list[tuple[int, dict[str, Any]]] | None = None,
    workload: LineFit | None = None,
) -> loop.Job:
    """A loop's job, ready to train; `saved` collects what checkpoints would hold."""
    workload, device = workload or LineFit(), Platform(files.load(platform)).open(0)
    stepper = Stepper(
        workload.build(recipe),
        optimizer=lambda parameters: workload.optimizer(parameters, recipe),
        loss=workload.loss,
        precision=Precision.parse(precision),
        device=device,
        accumulate=recipe.accumulate,
    )
    clock = Clock(device.marks, device.synchronize)
    events = EventWriter(folder / "rank0.jsonl")
    data = data or PointData()
    schedule = Schedule(
        recipe=recipe,
        limits=limits or Limits(),
        steps_per_epoch=data.steps_per_epoch,
        items_per_step=data.items_per_step,
    )
    watch = monitor.Monitor(
        clock=clock,
        events=events,
        schedule=schedule,
        collectives=Collectives(),
        losses=make_losses(device),
        position=position or Position(),
    )
    return loop.Job(
        workload=workload,
        recipe=recipe,
        schedule=schedule,
        data=data,
        device=device,
        stepper=stepper,
        clock=clock,
        monitor=watch,
        events=events,
        collectives=Collectives(),
        save=lambda at: None if saved is None else saved.append((at.step, stepper.state())),
    )
