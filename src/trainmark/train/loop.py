"""The one training loop: warm-up, train, evaluate, until the target is reached or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from trainmark.platforms.platform import Device
from trainmark.spec.events import EventWriter
from trainmark.spec.precision import PRECISIONS, Precision
from trainmark.spec.recipe import Limits, Recipe
from trainmark.spec.record import Evaluation
from trainmark.train import feed, monitor
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.monitor import Monitor
from trainmark.train.precision_proof import Proof
from trainmark.train.stepper import Stepper
from trainmark.workloads.workload import DataSource, Workload

TARGET, CAP = "the target is reached", "the recipe's cap of epochs is reached"


@dataclass(kw_only=True)
class Position:
    """Where training stands: what a checkpoint must restore beside the weights."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    history: list[Evaluation] = field(default_factory=list)
    began_step: int = 0
    """The step this run began with: 0, or where the run stood that it resumed. A restart does not change it."""
    trained_s: float = 0.0
    """How long this run has trained, as of its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a loop needs, opened and ready."""

    workload: Workload
    recipe: Recipe
    limits: Limits
    data: DataSource
    device: Device
    stepper: Stepper
    clock: Clock
    monitor: Monitor
    events: EventWriter
    collectives: Collectives
    save: Callable[[Position], None]
    proof: Proof | None = None
    """On rank 0: what the steps were really computed in."""


def train(job: Job, position: Position) -> str:
    """Trains from a position to the end and returns why it ended."""
    if job.recipe.evaluate_first and position.step == 0:
        evaluate(job, position)
    last_epoch = min(job.recipe.epochs, job.limits.epochs or job.recipe.epochs)
    while position.epoch < last_epoch:
        stopped = train_epoch(job, position)
        if stopped:
            if job.recipe.evaluate_after_limit and stopped in (monitor.STEPS, monitor.SETTLED, monitor.SECONDS):
                evaluate(job, position)
            if stopped != monitor.NOT_FINITE:
                save_if_wanted(job, position, last=True)
            return monitor.REASONS[stopped]
        at_end = position.epoch == last_epoch
        if at_end or position.epoch % job.recipe.evaluate_every_epochs == 0:
            reached = evaluate(job, position)
            if reached and job.limits.full:
                save_if_wanted(job, position, last=True)
                return TARGET
        save_if_wanted(job, position, last=at_end)
    return CAP if last_epoch == job.recipe.epochs else "the epochs asked for are done"


def train_epoch(job: Job, position: Position) -> int:
    """Trains to the end of the epoch and returns 0, or stops before and returns the reason."""
    job.stepper.model.train()
    batches = feed.on_device(job.data.train(position.epoch, position.step_in_epoch), job.device)
    steps_per_epoch = job.data.steps_per_epoch
    with job.clock.training():
        for batch in job.clock.waiting_for(batches):
            with job.clock.step(job.workload.items(batch)):
                reached_epoch = position.epoch + position.step_in_epoch / steps_per_epoch
                job.stepper.set_learning_rate(job.workload.learning_rate(job.recipe, reached_epoch))
                job.monitor.note(job.stepper.step(batch))
            position.step += 1
            position.step_in_epoch += 1
            if reason := job.monitor.stop():
                break
        else:
            position.epoch, position.step_in_epoch, reason = position.epoch + 1, 0, 0
    job.monitor.write_down()
    # the last steps of an epoch are seen only now, and a loss that is not finite must not be evaluated
    [bad] = job.collectives.largest(0 if job.monitor.bad_step is None else monitor.NOT_FINITE)
    return int(bad) or reason


@torch.no_grad()
def evaluate(job: Job, position: Position) -> bool:
    """Scores the whole validation set, each sample once over all ranks; says whether the target is reached."""
    workload, model = job.workload, job.stepper.bare_model
    precision = evaluation_precision(job.recipe, job.stepper.precision)
    arithmetic = job.device.arithmetic(precision)
    with job.clock.phase("evaluate"):
        job.stepper.broadcast_buffers()
        model.eval()
        sums: dict[str, Any] = dict.fromkeys(workload.sums, 0)
        samples = 0
        for batch in feed.on_device(job.data.evaluation(), job.device):
            with arithmetic, job.device.autocast(precision):
                scores = workload.score(model, batch)
            sums = {name: sums[name] + scores[name] for name in sums}
            samples += batch.count
            job.monitor.alive("evaluate", samples)
        totals = job.collectives.total({**{name: float(value) for name, value in sums.items()}, "samples": samples})
    samples = int(totals["samples"])
    values = workload.quality(totals) if samples else {}
    epoch = position.epoch + position.step_in_epoch / job.data.steps_per_epoch
    evaluation = Evaluation(step=position.step, epoch=epoch, values=values, samples=samples)
    position.history.append(evaluation)
    job.events.write(
        "evaluation", step=position.step, epoch=epoch, values=values, samples=samples, elapsed_ns=job.clock.elapsed_ns()
    )
    goal = values.get(workload.target.name)
    return goal is not None and workload.target.reached(goal, job.recipe.target)


def evaluation_precision(recipe: Recipe, training: Precision) -> Precision:
    """What the model is scored in. Weights that autocast leaves in float32 can be used as they are; narrower ones are
    scored as they were trained."""
    return PRECISIONS["fp32"] if training.autocast and recipe.evaluate_in == "fp32" else training


def save_if_wanted(job: Job, position: Position, *, last: bool) -> None:
    every = job.recipe.checkpoint_every_epochs
    if every < 0 or not (last or (every and position.epoch % every == 0)):
        return
    with job.clock.phase("checkpoint"):
        job.save(position)
