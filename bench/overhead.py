"""What the harness costs a step: trainmark's loop beside a bare PyTorch loop doing the same work, in one run.

    python bench/overhead.py [--steps 1000] [--passes 60]

A tiny network makes the step as short as it can be, so that all that is left is overhead. Short passes alternate, and
the median over pairs of passes is reported, on the wall clock and in the thread's CPU time: the wall clock of a shared
machine also shows what others do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import figures
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainmark.platforms import files
from trainmark.platforms.platform import Device, Platform
from trainmark.record.events import EventWriter
from trainmark.record.precision import Precision
from trainmark.record.recipe import Limits, Recipe
from trainmark.train import loop, monitor
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.schedule import Position, Schedule
from trainmark.train.stepper import Stepper
from trainmark.train.transfers import make_losses
from trainmark.workloads.workload import Progress

RECIPE = Recipe(
    batch_per_device=8, learning_rate=0.01, weight_decay=0.0, epochs=1, target=0.0, checkpoint_every="never"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    x: Tensor
    y: Tensor
    count: int = 8
    global_count: int = 8


BATCHES = [Batch(x=torch.randn(8, 16), y=torch.randint(4, (8,))) for _ in range(64)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RECIPE.learning_rate, momentum=0.9, fused=True)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


LOSS = torch.tensor(1.0)


def idle_step(batch: Batch) -> Tensor:
    """A step that trains nothing: what is left around it is the harness alone, and far less noisy to measure."""
    return LOSS


def now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - began[0], time.thread_time() - began[1]


def bare_loop(steps: int, *, idle: bool = False) -> tuple[float, float]:
    """Wall and CPU seconds for the steps of the plainest loop a person would write."""
    model = network()
    updates = optimizer(model.parameters())
    began = now()
    if idle:
        for step in range(steps):
            idle_step(BATCHES[step % len(BATCHES)])
        return since(began)
    for step in range(steps):
        batch = BATCHES[step % len(BATCHES)]
        loss(model, batch).backward()  # type: ignore[no-untyped-call]
        updates.step()
        updates.zero_grad(set_to_none=True)
    return since(began)


@dataclass
class Data:
    steps_per_epoch: int
    items_per_step: float = 8.0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def train(self, epoch: int, start_step: int) -> Iterator[Batch]:
        return (BATCHES[step % len(BATCHES)] for step in range(self.steps_per_epoch))


class Work:
    """The parts of a workload that a training epoch uses."""

    def items(self, batch: Batch) -> int:
        return batch.count

    def learning_rate(self, recipe: Recipe, progress: Progress) -> float:
        return recipe.learning_rate

    loss = staticmethod(loss)
    sums: tuple[str, ...] = ()
    limits: Mapping[str, Limits] = {}


def our_loop(steps: int, device: Device, folder: Path, *, idle: bool = False) -> tuple[float, float]:
    """Wall and CPU seconds for the same steps through the clock, the monitor and the event file."""
    stepper = Stepper(network(), optimizer=optimizer, loss=loss, precision=Precision.parse("fp32"), device=device)
    if idle:
        stepper.step = idle_step  # type: ignore[method-assign, assignment]
    clock = Clock(device.marks, device.synchronize)
    events = EventWriter(folder / "rank0.jsonl")
    schedule = Schedule(recipe=RECIPE, limits=Limits(), steps_per_epoch=steps, items_per_step=8.0)
    watch = monitor.Monitor(
        clock=clock,
        events=events,
        schedule=schedule,
        collectives=Collectives(),
        losses=make_losses(device),
        position=Position(),
    )
    job: Any = loop.Job(
        workload=Work(),  # type: ignore[arg-type]
        recipe=RECIPE,
        schedule=schedule,
        data=Data(steps),  # type: ignore[arg-type]
        device=device,
        stepper=stepper,
        clock=clock,
        monitor=watch,
        events=events,
        collectives=Collectives(),
        save=lambda position: None,
    )
    began = now()
    loop.train_stretch(job, Position())
    return since(began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = Platform(files.load("cpu")).open(0)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        bare_loop(args.steps), our_loop(args.steps, device, Path(folder))  # warms both up
        for number in range(args.passes):
            if number % 2:  # whoever comes second finds warmer caches
                ours = our_loop(args.steps, device, Path(folder))
                pairs.append((bare_loop(args.steps), ours))
            else:
                pairs.append((bare_loop(args.steps), our_loop(args.steps, device, Path(folder))))
        idle_bare = min(bare_loop(args.steps, idle=True)[1] for _ in range(args.passes))
        idle_ours = min(our_loop(args.steps, device, Path(folder), idle=True)[1] for _ in range(args.passes))
    idle = 1e6 * (idle_ours - idle_bare) / args.steps
    print(f"around a step that does nothing the harness adds {idle:.1f} us (best pass)")
    print(f"median of {args.passes} pairs of passes, {args.steps} steps each")
    for kind, name in enumerate(("wall clock", "CPU time")):
        bare = statistics.median(1e6 * bare[kind] / args.steps for bare, _ in pairs)
        added = sorted(1e6 * (ours[kind] - bare[kind]) / args.steps for bare, ours in pairs)
        ratio = statistics.median(ours[kind] / bare[kind] for bare, ours in pairs)
        if name == "wall clock":
            figures.note("harness microseconds", statistics.median(added))
        low, high = added[len(added) // 4], added[3 * len(added) // 4]
        print(
            f"{name:10}  bare loop {bare:6.1f} us a step, harness adds {statistics.median(added):5.1f} us "
            f"(middle half of the passes {low:.1f} to {high:.1f}), ratio {ratio:.3f}"
        )


if __name__ == "__main__":
    main()
