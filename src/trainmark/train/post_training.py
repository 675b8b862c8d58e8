"""Work after the clock has stopped, which cannot harm the result: FLOPs, device peak, sample artifacts."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

import msgspec
import torch

from trainmark.data.synthetic import cache_folder
from trainmark.platforms.matmul_rate import choose_matmul_type, measure_matmul_flops
from trainmark.platforms.platform import Device, read_cpu_name
from trainmark.record import cores, endings
from trainmark.record.atomic_files import write_atomic
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.errors import TrainmarkError
from trainmark.record.events import ArtifactsLeft, ExchangeCounted, FlopsCounted, NoSample
from trainmark.record.machine import Artifact
from trainmark.record.metrics import MEASURED
from trainmark.record.precision import Precision
from trainmark.record.sample import NetworkUsed
from trainmark.train import sampling
from trainmark.train.loop import Job
from trainmark.workloads.sampling import SampleRequest, Trained

FILE = "peaks.json"
MAX_KEPT = 100


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    tflops: float
    others: float | None
    """The share of the machine that other processes used meanwhile; None where unknown."""

    @property
    def quiet(self) -> bool:
        return self.others is None or self.others <= FOREIGN_LOAD


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    tflops: float | None
    source: str
    """Where the figure is from, or why there is none."""
    error: float | None = None
    """Standard deviation of the logarithm, over the measurements on a quiet machine."""


def measure_peak(device: Device, precision: Precision) -> DevicePeak:
    """The best rate ever measured on this CPU model, with the same number of threads and the same type."""
    dtype = choose_matmul_type(device, precision)
    kind, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    found = _measure_with_load(lambda: measure_matmul_flops(device, dtype) / 1e12)
    kept = _remember(f"{read_cpu_name()}, {threads} threads, {kind}", found)
    return choose_peak(kept, f"large matmuls in {kind}, {threads} threads")


def choose_peak(measurements: list[Measurement], what: str) -> DevicePeak:
    quiet = [measurement.tflops for measurement in measurements if measurement.quiet]
    if not quiet:
        least = min(measurement.others or 0.0 for measurement in measurements)
        reason = f"no peak was measured yet while others used less than {100 * least:.0f} % of the machine"
        return DevicePeak(tflops=None, source=reason)
    error = stdev(map(math.log, quiet)) if len(quiet) > 1 else None
    times = f", the best of {len(measurements)} times" if len(measurements) > 1 else ""
    return DevicePeak(tflops=max(each.tflops for each in measurements), source=f"{MEASURED}{what}{times}", error=error)


def _measure_with_load(measure: Callable[[], float]) -> Measurement:
    """A rate, with the load of other processes while it was measured."""
    began_s, before_s, own_before_s = time.monotonic(), cores.read_busy_s(), time.process_time()
    tflops = measure()
    took_s, after_s, own_s = time.monotonic() - began_s, cores.read_busy_s(), time.process_time() - own_before_s
    others = (after_s - before_s - own_s) / (os.cpu_count() or 1) / took_s
    return Measurement(tflops=tflops, others=min(1.0, max(0.0, others)))


def _remember(key: str, new: Measurement, file: Path | None = None) -> list[Measurement]:
    """The new measurement after those of earlier runs; an unreadable or unwritable file is ignored."""
    file = file or cache_folder() / FILE
    every: dict[str, list[Measurement]] = {}
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        every = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Measurement]])
    known = [each for each in every.get(key, []) if 0 < each.tflops < math.inf]
    highest = [max(known, key=lambda each: each.tflops)] if len(known) >= MAX_KEPT else []
    every[key] = [*highest, *known[len(highest) - MAX_KEPT + 1 :], new] if highest else [*known, new]
    with contextlib.suppress(OSError):
        write_atomic(file, msgspec.json.encode(every))
    return every[key]


SAMPLE = "sample"
"""The stem of its file names."""


def write_flops(job: Job, ended: str) -> None:
    """Rank 0 writes the FLOPs per item and the peak of its device; outside all phases and memory figures."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or job.collectives.rank != 0:
        return
    job.monitor.report_alive("sample", 0)
    try:
        with _interrupt_on_signals():
            per_item = float(job.workload.flops_per_item(job.recipe))
            otherwise: dict[str, float] = getattr(job.workload, "flops_otherwise", lambda recipe: {})(job.recipe)
            found = find_peak(job.device, job.stepper.precision)
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
    """Rank 0 writes what a step exchanged, in how many messages, and the backward pass that may hide it."""
    parallel = job.stepper.parallel
    if job.collectives.rank or parallel.exchanged is None:
        return
    parameters = sum(weight.numel() for weight in job.stepper.bare_model.parameters() if weight.requires_grad)
    backward_s = parallel.backward.median_s() if parallel.backward else None
    if found := parallel.exchanged.shape(parameters, backward_s):
        job.events.write(ExchangeCounted(**msgspec.structs.asdict(found)))


def write_sample(job: Job, ended: str, folder: Path, data: Path | None) -> None:
    """Rank 0 writes a sample of its network into the run folder while the others wait. Where no rank can compute alone,
    all ranks make one, and only that of rank 0 is kept."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or not job.recipe.leave_sample:
        return
    job.monitor.report_alive("sample", 0)
    if job.collectives.rank and job.stepper.parallel.together:
        with tempfile.TemporaryDirectory() as scratch, _interrupt_on_signals():
            _make_sample(job, Path(scratch), data)
    if job.collectives.rank == 0:
        try:
            with _interrupt_on_signals():
                artifacts = _make_sample(job, folder, data)
            job.events.write(ArtifactsLeft(artifacts=artifacts))
        except (Exception, KeyboardInterrupt) as error:  # the result is measured already: nothing here may cost it
            traceback.print_exc()
            job.events.write(NoSample(reason=_describe_error(error)))
    job.collectives.barrier()


def find_peak(device: Device, precision: Precision) -> DevicePeak:
    """The peak of one device in a precision, with its source, or why there is none."""
    if device.is_cpu:
        return measure_peak(device, precision)
    sheet = device.platform.file.peak(device.name())
    tflops = sheet.tflops.get(precision.family) if sheet else None
    if sheet is None or tflops is None:
        reason = f"platform {device.platform.file.name} names no peak of {device.name()} in {precision.family}"
        return DevicePeak(tflops=None, source=reason)
    return DevicePeak(tflops=tflops, source=sheet.source)


def _make_sample(job: Job, folder: Path, data: Path | None) -> tuple[Artifact, ...]:
    model = job.stepper.bare_model
    model.eval()
    trained = Trained(
        workload=job.workload,
        model=model,
        recipe=job.recipe,
        device=job.device,
        source=NetworkUsed(workload=job.workload.name, file="", sha256=""),
    )
    with job.stepper.use_evaluation_weights(), job.stepper.arithmetic, job.device.autocast(job.stepper.precision):
        return sampling.write_sample(trained, SampleRequest(data=data), folder / SAMPLE).files


def _describe_error(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    first_line = str(error).partition("\n")[0]
    return first_line if isinstance(error, TrainmarkError) else f"{type(error).__name__}: {first_line}"


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """A signal interrupts this optional work, so that the finished result is flushed at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
