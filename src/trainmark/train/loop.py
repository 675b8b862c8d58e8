"""The one training loop: warm-up, train, evaluate, until the target is reached or the budget is spent."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainmark.platforms.platform import Device
from trainmark.record import endings
from trainmark.record.errors import WorkloadError
from trainmark.record.events import Evaluated, EventWriter, RanksApart, StretchTimed
from trainmark.record.precision import PRECISIONS, Precision
from trainmark.record.recipe import Recipe
from trainmark.record.record import Evaluation
from trainmark.train import monitor, transfers
from trainmark.train.clock import Clock
from trainmark.train.collectives import Collectives
from trainmark.train.monitor import Monitor
from trainmark.train.parallel import DataParallel
from trainmark.train.precision_proof import Proof
from trainmark.train.schedule import Position, Schedule
from trainmark.train.stepper import Stepper
from trainmark.workloads.workload import DataSource, Progress, Workload

HASHED_NUMBERS = 4096
"""Of each weight, at an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a loop needs, opened and ready."""

    workload: Workload
    recipe: Recipe
    schedule: Schedule
    data: DataSource
    device: Device
    stepper: Stepper
    clock: Clock
    monitor: Monitor
    events: EventWriter
    collectives: Collectives
    save: Callable[[Position], None]
    compare_again: Callable[[Position], None] = lambda at: None
    """Compares a step on the device with the CPU, after the clock has stopped."""
    proof: Proof | None = None
    """On rank 0: the types that the steps were really computed in."""


def train(job: Job, position: Position) -> str:
    """Trains from a position to the end and returns why it ended."""
    if job.recipe.evaluate_first and position.step == 0:
        evaluate(job, position)
    while not (ended := job.schedule.end_reason(position)):
        stopped = train_stretch(job, position)
        if stopped:
            if job.recipe.evaluate_after_limit and stopped in monitor.LIMITS:
                evaluate(job, position)
            if stopped != monitor.NOT_FINITE:
                save_if_due(job, position, last=True)
            return monitor.REASONS[stopped]
        at_end = bool(job.schedule.end_reason(position))
        if at_end or job.schedule.is_due(job.recipe.evaluate_every, position):
            reached = evaluate(job, position)
            if reached and job.schedule.limits.to_target:
                save_if_due(job, position, last=True)
                return endings.TARGET
        save_if_due(job, position, last=at_end)
    return ended


def train_stretch(job: Job, position: Position) -> int:
    """Trains to the next pause - the end of the epoch, or a step with an evaluation or checkpoint - and returns 0, or
    stops earlier and returns the reason."""
    job.stepper.model.train()
    batches = transfers.move_batches(job.data.train(position.epoch, position.step_in_epoch), job.device)
    steps_per_epoch = job.schedule.steps_per_epoch or math.inf
    planned, items_per_step = job.schedule.planned_steps, job.schedule.items_per_step
    pause = job.schedule.next_pause(position)
    with job.clock.training():
        for batch in job.clock.waiting_for(batches):
            epoch = position.epoch + position.step_in_epoch / steps_per_epoch
            progress = Progress(position.step, epoch, planned, items_per_step)
            job.stepper.set_learning_rate(job.workload.learning_rate(job.recipe, progress))
            job.monitor.note(job.stepper.step(batch))
            job.clock.end_step(job.workload.items(batch))
            position.step += 1
            position.step_in_epoch += 1
            reason = job.monitor.stop()
            # at the end of an epoch, the data source ends the stretch
            if reason or (position.step >= pause and position.step_in_epoch != steps_per_epoch):
                break
        else:
            if job.schedule.steps_per_epoch is None:
                raise WorkloadError(f"the endless stream of training data ended at step {position.step}")
            position.epoch, position.step_in_epoch, reason = position.epoch + 1, 0, 0
    job.monitor.write_steps()
    if job.clock.stretch and not job.device.is_cpu:  # where marks are readings of the host clock
        job.events.write(StretchTimed(**job.clock.stretch._asdict()))
    # the last steps of an epoch are seen only now, and a loss that is not finite must not be evaluated
    [bad] = job.collectives.reduce_max(0 if job.monitor.bad_step is None else monitor.NOT_FINITE)
    return int(bad) or reason


@torch.no_grad()
def evaluate(job: Job, position: Position) -> bool:
    """Scores the evaluation set, each sample once over all ranks; returns whether the target is reached."""
    workload, model = job.workload, job.stepper.bare_model
    precision = choose_evaluation_precision(job.recipe, job.stepper.precision)
    arithmetic = job.device.arithmetic(precision)
    with job.clock.phase("evaluate"), job.stepper.use_evaluation_weights():
        job.stepper.parallel.broadcast_buffers(model)
        model.eval()
        sums: dict[str, Any] = dict.fromkeys(workload.sums, 0)
        samples = 0
        for batch in transfers.move_batches(job.data.evaluation(), job.device):
            with arithmetic, job.device.autocast(precision):
                scores = workload.score(model, batch)
            sums = {name: sums[name] + scores[name] for name in sums}
            samples += batch.count
            job.monitor.report_alive("evaluate", samples)
        totals = reduce_sums(job.collectives, {**sums, "samples": samples})
        if isinstance(job.stepper.parallel, DataParallel):
            own = float(hash_weights(model))
            most, least = job.collectives.reduce_max(own, -own)
            if most != -least:
                job.events.write(RanksApart(step=position.step))
    samples = int(totals["samples"])
    values = workload.quality(totals) if samples else {}
    per_epoch = job.schedule.steps_per_epoch
    epoch = position.epoch + position.step_in_epoch / per_epoch if per_epoch else None
    evaluation = Evaluation(step=position.step, epoch=epoch, values=values, samples=samples)
    position.history.append(evaluation)
    elapsed_ns = job.clock.elapsed_ns()
    job.events.write(Evaluated(step=position.step, epoch=epoch, values=values, samples=samples, elapsed_ns=elapsed_ns))
    goal = values.get(workload.target.name)
    return goal is not None and workload.target.is_reached(goal, job.recipe.target)


def hash_weights(model: nn.Module) -> int:
    """Of evenly spaced numbers of every weight: ranks that drift apart differ nearly everywhere."""
    found = 0
    for weight in model.parameters():
        flat = weight.detach().reshape(-1)
        numbers = flat[:: max(1, flat.numel() // HASHED_NUMBERS)].float().cpu()
        found = zlib.crc32(numbers.numpy().tobytes(), found)
    return found


def reduce_sums(collectives: Collectives, sums: Mapping[str, Any]) -> dict[str, Any]:
    """Sums over all ranks, by name: a number, or a list where any rank has a vector; a rank without a sample has 0."""
    own = {name: torch.as_tensor(value).flatten().tolist() for name, value in sums.items()}
    lengths = {name: len(own[name]) if getattr(value, "ndim", 0) else 0 for name, value in sums.items()}
    lengths = dict(zip(lengths, map(int, collectives.reduce_max(*lengths.values())), strict=True))
    numbers = {
        f"{name}/{place}": float(own[name][place]) if place < len(own[name]) else 0.0
        for name, length in lengths.items()
        for place in range(length or 1)
    }
    totals = collectives.reduce_sum(numbers)
    return {
        name: [totals[f"{name}/{place}"] for place in range(length)] if length else totals[f"{name}/0"]
        for name, length in lengths.items()
    }


def choose_evaluation_precision(recipe: Recipe, training: Precision) -> Precision:
    """The precision of evaluation: float32 weights under autocast can be used as they are; narrower ones are scored as
    they were trained."""
    return PRECISIONS["fp32"] if training.autocast and recipe.evaluate_in == "fp32" else training


def save_if_due(job: Job, position: Position, *, last: bool) -> None:
    every = job.recipe.checkpoint_every
    if every == "never" or not (last or job.schedule.is_due(every, position)):
        return
    with job.clock.phase("checkpoint"):
        job.save(position)
