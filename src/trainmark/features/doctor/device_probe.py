"""Measures what the devices really reach: matmuls in each arithmetic, and copies within their memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from trainmark.platforms import matmul_rate
from trainmark.platforms.files import PlatformFile
from trainmark.platforms.matmul_rate import Now, Work
from trainmark.platforms.platform import Device
from trainmark.record.checks import CheckResult, check, doubt, failed, ok
from trainmark.record.doubts import RANK_SKEW
from trainmark.record.precision import PRECISIONS, Precision

BUDGET_S = 20.0
QUICK_S = 2.0
MIN_REPEATS = 5
REPEAT_S = 0.02
"""Shorter work is done several times over for one reading of the clock."""
SIDES = (256, 512, 1024, 2048, 4096, 8192)
COPY_BYTES = 512 << 20
"""Beyond what caches hold; less where the memory is small."""
MEMORY_SHARE = 16
UNSTEADY = 0.10
WANTED_OF_PEAK, MAX_OF_PEAK = 0.5, 1.05
"""Large matmuls reach 60 to 95 % of a data sheet. More than all of it means that another arithmetic ran."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What repeats of one work reached, each for itself."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance within which the middle 80 % lie, as a share of the median."""
        cuts = quantiles(self.values, n=10, method="inclusive")
        return (cuts[-1] - cuts[0]) / 2 / self.median


def matmul_check(devices: Sequence[Device], precision: Precision, *, budget_s: float) -> CheckResult:
    """Matmuls of large matrices on every device; `budget_s` is for all of them."""

    @check(f"matmul {precision.family}", "Speed")
    def look() -> CheckResult:
        try:
            rates = [matmul(device, precision, budget_s=budget_s / len(devices)) for device in devices]
        except RuntimeError as error:
            return failed(f"the device cannot do it: {str(error).partition(chr(10))[0]}")
        finally:
            devices[0].set_precision(PRECISIONS["fp32"])
        peak = devices[0].platform.file.peak(devices[0].name())
        return judged(
            rates,
            unit="TFLOP/s",
            file=devices[0].platform.file,
            peak=peak.tflops.get(precision.family) if peak else None,
            source=peak.source if peak else "",
        )

    return look()


def copy_check(devices: Sequence[Device], *, budget_s: float) -> CheckResult:
    """Copies of a large buffer within the memory of every device."""

    @check("memory copy", "Speed")
    def look() -> CheckResult:
        try:
            rates = [copy(device, budget_s=budget_s / len(devices)) for device in devices]
        except RuntimeError as error:
            return failed(f"the device cannot do it: {str(error).partition(chr(10))[0]}")
        return judged(rates, unit="GB/s", file=devices[0].platform.file)

    return look()


def matmul(device: Device, precision: Precision, *, budget_s: float, now_s: Now = time.perf_counter) -> Rate:
    """TFLOP/s of the largest matmul that can be repeated within the budget."""
    device.set_precision(precision)
    with device.arithmetic(precision):
        return _largest_matmul(device, precision, budget_s, now_s)


def _largest_matmul(device: Device, precision: Precision, budget_s: float, now_s: Now) -> Rate:
    dtype = torch.float32 if precision.allows_tf32 else getattr(torch, precision.computes_in)
    for side in SIDES:
        multiply = matmul_rate.make_matmul(device, dtype, side)
        once_s = min(matmul_rate.time_work(device, multiply, now_s=now_s) for _ in range(2))
        if 8 * once_s * (MIN_REPEATS + 2) > budget_s:
            break
    return _rate(device, multiply, 1e-12 * matmul_rate.count_matmul_flops(side), budget_s, once_s, now_s)


def copy(device: Device, *, budget_s: float, now_s: Now = time.perf_counter) -> Rate:
    """GB/s, reading and writing counted, as memory is sold."""
    size = min(COPY_BYTES, (device.memory_capacity_bytes() or COPY_BYTES * MEMORY_SHARE) // MEMORY_SHARE)
    with device.arithmetic(PRECISIONS["fp32"]):
        source = torch.ones(size // 4, device=device.torch)
        target = torch.zeros_like(source)

        def move() -> None:
            target.copy_(source)

        once_s = matmul_rate.time_work(device, move, now_s=now_s)
        return _rate(device, move, 2e-9 * 4 * source.numel(), budget_s, once_s, now_s)


def judged(
    rates: Sequence[Rate], *, unit: str, file: PlatformFile, peak: float | None = None, source: str = ""
) -> CheckResult:
    """The sentence for what each device reached."""
    middle = median(rate.median for rate in rates)
    spread = max(rate.spread for rate in rates)
    slow = min(range(len(rates)), key=lambda index: rates[index].median)
    facts: dict[str, Any] = {
        "unit": unit,
        "median": middle,
        "spread": spread,
        "peak": peak,
        "share_of_peak": middle / peak if peak else None,
        "source": source or None,
        "devices": [{"median": rate.median, "spread": rate.spread, "repeats": len(rate.values)} for rate in rates],
    }
    sentence = f"{_worded(middle, unit)} ±{100 * spread:.2g} %"
    if peak:
        sentence += f", {100 * middle / peak:.0f} % of {peak:g} ({source})"
    if len(rates) > 1:
        sentence += f"; slowest is device {slow} with {_worded(rates[slow].median, unit)}"
    proof = f"trainmark platform check {file.word}"
    if peak and middle > MAX_OF_PEAK * peak:
        return doubt(
            f"{sentence}: more than it has, so another arithmetic ran, or it is another device", proof, **facts
        )
    if peak and middle < WANTED_OF_PEAK * peak:
        return doubt(f"{sentence}: see whether it is shared, hot, or limited in power", proof, **facts)
    if rates[slow].median < (1 - RANK_SKEW) * middle:
        alone = f"export {file.visible_devices}={slow}; trainmark doctor" if file.visible_devices else ""
        below = f"{100 * (1 - rates[slow].median / middle):.0f} % below the middle of all"
        return doubt(f"{sentence}, {below}", alone, **facts)
    if spread > UNSTEADY:
        return doubt(f"{sentence}: not steady, so something else uses it", "top -b -n 1 -o %CPU | head -15", **facts)
    return ok(sentence, **facts)


def _worded(rate: float, unit: str) -> str:
    """`251 TFLOP/s`, `34.9 GFLOP/s`."""
    return f"{1000 * rate:.3g} G{unit[1:]}" if unit.startswith("T") and rate < 1 else f"{rate:.3g} {unit}"


def _rate(device: Device, work: Work, amount: float, budget_s: float, once_s: float, now_s: Now) -> Rate:
    """`amount` is what one work does, in the unit of the rate times a second."""
    times = max(1, min(1000, round(REPEAT_S / max(once_s, 1e-9))))
    taken = matmul_rate.time_repeats(device, work, budget_s=budget_s, times=times, least=MIN_REPEATS, now_s=now_s)
    return Rate(values=tuple(times * amount / seconds for seconds in taken))
