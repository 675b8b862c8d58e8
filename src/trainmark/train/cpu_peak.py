"""What a CPU can reach at most: measured after every run, kept between runs, the best of all told with its spread."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

import msgspec
import torch

from trainmark.data.synthetic import cache_folder
from trainmark.platforms import proc
from trainmark.platforms.matmul_rate import matmul_flops, matmul_type
from trainmark.platforms.platform import Device, cpu_name
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.metrics import MEASURED
from trainmark.record.precision import Precision
from trainmark.record.whole_files import write_whole

FILE = "peaks.json"
MOST_KEPT = 100


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    tflops: float
    others: float | None
    """The share of the machine that others used meanwhile; None where nobody can say it."""

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


def measured(device: Device, precision: Precision) -> DevicePeak:
    """The best of all that was ever measured on this kind of processor, with as many threads and in the same type."""
    dtype = matmul_type(device, precision)
    kind, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    found = _beside_others(lambda: matmul_flops(device, dtype) / 1e12)
    kept = _kept(f"{cpu_name()}, {threads} threads, {kind}", found)
    return best(kept, f"large matrix products in {kind}, {threads} threads")


def best(measurements: list[Measurement], what: str) -> DevicePeak:
    quiet = [measurement.tflops for measurement in measurements if measurement.quiet]
    if not quiet:
        least = min(measurement.others or 0.0 for measurement in measurements)
        reason = f"no peak was measured yet while others used less than {100 * least:.0f} % of the machine"
        return DevicePeak(tflops=None, source=reason)
    error = stdev(map(math.log, quiet)) if len(quiet) > 1 else None
    times = f", the best of {len(measurements)} times" if len(measurements) > 1 else ""
    return DevicePeak(tflops=max(each.tflops for each in measurements), source=f"{MEASURED}{what}{times}", error=error)


def _beside_others(measure: Callable[[], float]) -> Measurement:
    """A figure, and what others used of the machine while it was measured."""
    before, own_before_s = _ticks(), time.process_time()
    tflops = measure()
    after, own_s = _ticks(), time.process_time() - own_before_s
    if before is None or after is None or after.every <= before.every:
        return Measurement(tflops=tflops, others=None)
    others = after.busy - before.busy - own_s * proc.TICKS_PER_S
    return Measurement(tflops=tflops, others=min(1.0, max(0.0, others / (after.every - before.every))))


def _ticks() -> proc.CpuTicks | None:
    with contextlib.suppress(OSError):
        return proc.cpu_ticks()
    return None


def _kept(key: str, new: Measurement, file: Path | None = None) -> list[Measurement]:
    """The new one with those of earlier runs; a file that cannot be read or written costs nothing but its memory."""
    file = file or cache_folder() / FILE
    every: dict[str, list[Measurement]] = {}
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        every = msgspec.json.decode(file.read_bytes(), type=dict[str, list[Measurement]])
    known = [each for each in every.get(key, []) if 0 < each.tflops < math.inf]
    highest = [max(known, key=lambda each: each.tflops)] if len(known) >= MOST_KEPT else []
    every[key] = [*highest, *known[len(highest) - MOST_KEPT + 1 :], new] if highest else [*known, new]
    with contextlib.suppress(OSError):
        write_whole(file, msgspec.json.encode(every))
    return every[key]
