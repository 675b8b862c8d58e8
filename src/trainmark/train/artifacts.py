"""Lets a trained model leave files for people, after the clock has stopped and without risk to the result."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from trainmark.spec.errors import TrainmarkError, WorkloadError
from trainmark.spec.record import Artifact
from trainmark.train import monitor
from trainmark.train.loop import Job

NONE_AFTER = {monitor.REASONS[reason] for reason in (monitor.INTERRUPTED, monitor.TERMINATED, monitor.NOT_FINITE)}
"""Ends of a run whose model has nothing to show, or whose user waits for the end."""


def leave(job: Job, ended: str, folder: Path) -> None:
    """Rank 0 has its model leave samples in the run's folder while the others wait, so that all leave together."""
    if ended in NONE_AFTER or not job.clock.steps:
        return
    job.monitor.alive("sample", 0)
    if job.collectives.rank == 0:
        try:
            with ending_at_signals():
                artifacts = _left(job, folder)
            job.events.write("artifacts", artifacts=[asdict(artifact) for artifact in artifacts])
        except (Exception, KeyboardInterrupt) as error:  # the result is measured already: nothing here may cost it
            traceback.print_exc()
            job.events.write("no-sample", reason=_reason(error))
    job.collectives.barrier()


@torch.no_grad()
def _left(job: Job, folder: Path) -> tuple[Artifact, ...]:
    model = job.stepper.bare_model
    model.eval()
    with job.stepper.arithmetic, job.device.autocast(job.stepper.precision):
        artifacts = job.workload.leave_samples(model, job.recipe, job.data, folder)
    for artifact in artifacts:
        if not (folder / artifact.file).is_file():
            raise WorkloadError(f"{artifact.file} was announced and is not there")
    return artifacts


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, TrainmarkError) else f"{type(error).__name__}: {first_line}"


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """A signal ends what is done for people, so that the finished result is flushed before anyone loses patience."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
