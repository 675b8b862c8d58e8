"""What is done for people once the clock has stopped, without risk to the result: FLOPs and peak, and artifacts."""

from __future__ import annotations

import signal
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from trainmark.platforms.platform import Device
from trainmark.record import endings
from trainmark.record.artifact import Artifact
from trainmark.record.errors import TrainmarkError
from trainmark.record.events import ArtifactsLeft, ExchangeCounted, FlopsCounted, NoSample
from trainmark.record.precision import Precision
from trainmark.record.sample import NetworkUsed
from trainmark.train import cpu_peak, sampling
from trainmark.train.cpu_peak import DevicePeak
from trainmark.train.loop import Job
from trainmark.workloads.sampling import SampleRequest, Trained

SAMPLE = "sample"
"""What its files are called."""


def write_flops(job: Job, ended: str) -> None:
    """Rank 0 writes down what its speed is to be held to: the FLOPs of an item, and what its device could reach at
    most. No phase holds that time, and no memory figure it."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or job.collectives.rank != 0:
        return
    job.monitor.alive("sample", 0)
    try:
        with _ending_at_signals():
            per_item = float(job.workload.flops_per_item(job.recipe))
            otherwise: dict[str, float] = getattr(job.workload, "flops_otherwise", lambda recipe: {})(job.recipe)
            found = peak(job.device, job.stepper.precision)
    except (Exception, KeyboardInterrupt):  # the result is measured already: nothing here may cost it
        traceback.print_exc()
        return
    job.events.write(
        FlopsCounted(
            per_item=per_item,
            otherwise=otherwise,
            peak_tflops=found.tflops,
            peak_source=found.source,
            peak_error=found.error,
        )
    )


def write_exchange(job: Job) -> None:
    """Rank 0 writes down what a step exchanged, in how many messages, and what there was to hide it behind."""
    parallel = job.stepper.parallel
    if job.collectives.rank or parallel.exchanged is None:
        return
    parameters = sum(weight.numel() for weight in job.stepper.bare_model.parameters() if weight.requires_grad)
    backward_s = parallel.backward.median_s() if parallel.backward else None
    if found := parallel.exchanged.shape(parameters, backward_s):
        job.events.write(ExchangeCounted(**msgspec.structs.asdict(found)))


def leave_sample(job: Job, ended: str, folder: Path, data: Path | None) -> None:
    """Rank 0 has its network show what it learnt while the others wait, so that all end together; what it shows lies in
    the run's folder. Where no rank can compute alone, the others go along, and what they make is thrown away."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or not job.recipe.leave_sample:
        return
    job.monitor.alive("sample", 0)
    if job.collectives.rank and job.stepper.parallel.together:
        with tempfile.TemporaryDirectory() as aside, _ending_at_signals():
            _sample(job, Path(aside), data)
    if job.collectives.rank == 0:
        try:
            with _ending_at_signals():
                artifacts = _sample(job, folder, data)
            job.events.write(ArtifactsLeft(artifacts=artifacts))
        except (Exception, KeyboardInterrupt) as error:  # the result is measured already: nothing here may cost it
            traceback.print_exc()
            job.events.write(NoSample(reason=_reason(error)))
    job.collectives.barrier()


def peak(device: Device, precision: Precision) -> DevicePeak:
    """Of one device in a precision, with where the figure is from, or why there is none."""
    if device.is_cpu:
        return cpu_peak.measured(device, precision)
    sheet = device.platform.file.peak(device.name())
    tflops = sheet.tflops.get(precision.family) if sheet else None
    if sheet is None or tflops is None:
        reason = f"platform {device.platform.file.name} names no peak of {device.name()} in {precision.family}"
        return DevicePeak(tflops=None, source=reason)
    return DevicePeak(tflops=tflops, source=sheet.source)


def _sample(job: Job, folder: Path, data: Path | None) -> tuple[Artifact, ...]:
    model = job.stepper.bare_model
    model.eval()
    trained = Trained(
        workload=job.workload,
        model=model,
        recipe=job.recipe,
        device=job.device,
        source=NetworkUsed(workload=job.workload.name, file="", sha256=""),
    )
    with job.stepper.judged_weights(), job.stepper.arithmetic, job.device.autocast(job.stepper.precision):
        return sampling.write(trained, SampleRequest(data=data), folder / SAMPLE).files


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, TrainmarkError) else f"{type(error).__name__}: {first_line}"


@contextmanager
def _ending_at_signals() -> Iterator[None]:
    """A signal ends what is done for people, so that the finished result is flushed before anyone loses patience."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
