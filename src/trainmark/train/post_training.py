"""Work after the clock has stopped, which cannot harm the result: exchange, FLOPs, peak of the device."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

import msgspec
import torch

from trainmark import features, workloads
from trainmark.data import synthetic
from trainmark.platforms.matmul_probe import BUDGET_S, choose_matmul_type, measure_matmul_flops
from trainmark.platforms.platform import Device, read_cpu_name
from trainmark.record import endings
from trainmark.record.atomic_files import write_atomic
from trainmark.record.cores import FOREIGN_LOAD, read_foreign_s
from trainmark.record.errors import InvalidResultError, NotReadyError
from trainmark.record.events import ExchangeCounted, FlopsCounted
from trainmark.record.metrics import MEASURED
from trainmark.record.precision import Precision
from trainmark.train.loop import Job
from trainmark.train.schedule import Position
from trainmark.workloads import weights

PEAK_REPEATS = 4
PEAKS_FILE = "peaks.json"
"""In the cache: a single measurement on a machine that others use is often too low."""
MAX_PEAKS = 20


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    tflops: float | None
    source: str
    """Where the figure is from, or why there is none."""
    error: float | None = None
    """Standard deviation of the logarithm, over several measurements."""


def measure_peak(device: Device, precision: Precision) -> DevicePeak:
    """The best of several rates and of those of earlier runs; none where other processes used the machine meanwhile."""
    dtype = choose_matmul_type(device, precision)
    began_s, busy_before_s = time.perf_counter(), read_foreign_s()
    budget_s = BUDGET_S / PEAK_REPEATS
    rates = [measure_matmul_flops(device, dtype, budget_s=budget_s) / 1e12 for _ in range(PEAK_REPEATS)]
    all_s = (time.perf_counter() - began_s) * (os.cpu_count() or 1)
    others = (read_foreign_s() - busy_before_s) / all_s
    if others > FOREIGN_LOAD:
        reason = f"others used {100 * others:.0f} % of the machine while its peak was measured"
        return DevicePeak(tflops=None, source=reason)
    kind, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    what = f"large matmuls in {kind}, {threads} threads"
    best = remember_peaks(f"{read_cpu_name()}, {what}", max(rates), synthetic.cache_folder() / PEAKS_FILE)
    times = f", the best of {len(best)} runs" if len(best) > 1 else ""
    return DevicePeak(tflops=max(best), source=f"{MEASURED}{what}{times}", error=stdev(map(math.log, rates)))


def remember_peaks(key: str, peak: float, file: Path) -> list[float]:
    """The peaks of earlier runs and this one, of which the highest is never forgotten; a damaged file is ignored."""
    every: dict[str, list[float]] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        every = msgspec.json.decode(file.read_bytes(), type=dict[str, list[float]])
    known = sorted(each for each in every.get(key, []) if 0 < each < math.inf)
    every[key] = [*known[-MAX_PEAKS + 1 :], peak]
    with contextlib.suppress(OSError):
        write_atomic(file, msgspec.json.encode(every))
    return every[key]


def write_flops(job: Job, ended: str) -> None:
    """Rank 0 writes the FLOPs per item and the peak of its device; outside all phases and memory figures."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or job.collectives.rank != 0:
        return
    job.monitor.report_alive("sample", 0)
    try:
        with interrupt_on_signals():
            stated, counted = float(job.workload.flops_per_item(job.recipe)), _count_flops(job)
            otherwise: dict[str, float] = getattr(job.workload, "flops_otherwise", lambda recipe: {})(job.recipe)
            found = find_peak(job.device, job.stepper.precision)
            parameters = weights.count_weights(weights.build_network(job.workload, job.recipe))
    except (Exception, KeyboardInterrupt):  # the result is measured already: nothing here may cost it
        traceback.print_exc()
        return
    job.events.write(
        FlopsCounted(
            per_item=counted or stated,
            stated=stated or None if counted else None,
            otherwise=otherwise,
            peak_tflops=found.tflops,
            peak_source=found.source,
            peak_error=found.error,
            parameters=parameters,
        )
    )


def _count_flops(job: Job) -> float | None:
    """Per item, by the first step; the counts of our own workloads are held to torch's by tests."""
    if job.workload.name in workloads.names() or job.proof is None:
        return None
    return job.proof.count_flops() / job.monitor.first_items or None


def check_links(job: Job, ended: str) -> None:
    """All ranks exchange known numbers once more."""
    if job.collectives.world == 1 or ended in endings.WITHOUT_A_MODEL:
        return
    job.monitor.report_alive("sample", 0)
    try:
        for feature in features.offers("rank_check"):
            feature.check_again(job.device, job.collectives)
    except NotReadyError as error:
        raise InvalidResultError(f"after training, {error}") from error


def check_again(job: Job, position: Position, ended: str) -> None:
    """Checks the arithmetic of the device once more, as it may change after the first step."""
    if ended in endings.WITHOUT_A_MODEL or not job.clock.steps or job.device.is_cpu:
        return
    job.monitor.report_alive("sample", 0)
    try:
        with interrupt_on_signals():
            if job.proof:
                job.proof.probe_again()
            job.compare_again(position)
    except (Exception, KeyboardInterrupt):  # the result is measured already: nothing here may cost it
        traceback.print_exc()


def write_exchange(job: Job) -> None:
    """Rank 0 writes what a step exchanged, in how many messages, and the backward pass that may hide it."""
    parallel = job.stepper.parallel
    if job.collectives.rank or parallel.exchanged is None:
        return
    parameters = sum(weight.numel() for weight in job.stepper.bare_model.parameters() if weight.requires_grad)
    backward_s = parallel.backward.median_s() if parallel.backward else None
    if found := parallel.exchanged.shape(parameters, backward_s):
        job.events.write(ExchangeCounted(**msgspec.structs.asdict(found)))


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


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """A signal interrupts this optional work, so that the finished result is flushed at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
