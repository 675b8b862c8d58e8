"""What a run's speed is to be held to: the FLOPs of an item, and what its device could reach at most."""

from __future__ import annotations

import traceback

import torch

from trainmark.platforms.platform import Device
from trainmark.platforms.rate import matmul_flops, product_type
from trainmark.spec.precision import Precision
from trainmark.train.artifacts import NONE_AFTER, ending_at_signals
from trainmark.train.loop import Job


def write_down(job: Job, ended: str) -> None:
    """Rank 0 counts and measures after the clock has stopped: no phase holds that time, and no memory figure it."""
    if ended in NONE_AFTER or not job.clock.steps or job.collectives.rank != 0:
        return
    job.monitor.alive("sample", 0)
    try:
        with ending_at_signals():
            per_item = float(job.workload.flops_per_item(job.recipe))
            tflops, source = peak(job.device, job.stepper.precision)
    except (Exception, KeyboardInterrupt):  # the result is measured already: nothing here may cost it
        traceback.print_exc()
        return
    job.events.write("flops", per_item=per_item, peak_tflops=tflops, peak_source=source)


def peak(device: Device, precision: Precision) -> tuple[float | None, str]:
    """Of one device in a precision, with where the figure is from, or why there is none."""
    if device.is_cpu:
        dtype = product_type(device, precision)
        name = str(dtype).removeprefix("torch.")
        measured = matmul_flops(device, dtype) / 1e12
        return measured, f"measured: large matrix products in {name}, {torch.get_num_threads()} threads"
    sheet = device.platform.file.peak(device.name())
    tflops = sheet.tflops.get(precision.family) if sheet else None
    if sheet is None or tflops is None:
        return None, f"platform {device.platform.file.name} names no peak of {device.name()} in {precision.family}"
    return tflops, sheet.source
