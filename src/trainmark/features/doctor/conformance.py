"""Checks that a platform does what a run relies on, with findings its vendor can act on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import msgspec
import torch
from torch import Tensor, nn

from trainmark import workloads
from trainmark.features.doctor import collective_check, device_checks, operators
from trainmark.platforms import files, number_types, sensors
from trainmark.platforms.matmul_rate import time_work
from trainmark.platforms.platform import Device, Platform
from trainmark.platforms.reading import FIELDS
from trainmark.platforms.sensor_table import NvmlSensors, ProgramSensors
from trainmark.record.checks import CheckResult, failed, first_line, format_count, ok, unknown
from trainmark.record.errors import NotReadyError
from trainmark.record.precision import PRECISIONS, Precision

WORK_S = 0.05
"""Minimum duration of the work that synchronize and events are tested on."""
MAX_MATMULS = 1 << 16
TRIES = 3
"""Other load may disturb one measurement, hardly three in a row."""
EVENT_TRIES = 12
EVENT_TOLERANCE = 0.15
SIDE = 256
TENSOR_BYTES = 64 << 20
MAX_TENSORS = 24
"""One of these must raise the peak; the first may stay below an earlier peak of the process."""
STARTS_S = 60.0
NO_PROGRAM = "/nowhere/trainmark-has-no-such-program"


def examine(word: str, begins: Callable[[str], None] = lambda name: None) -> Iterator[CheckResult]:
    """Yields one finding per check; calls `begins` before each check, and again while a long one makes
    progress. Raises NotReadyError where there is no device."""
    begins(OPENS)
    platform = Platform(files.load(word))
    device = platform.open(0)
    devices = format_count(platform.device_count, "core" if device.is_cpu else "device")
    yield replace(ok(f"{device.name()}, {devices}"), name=OPENS)
    for name, check in list_checks(word, device, begins):
        begins(name)
        yield run_check(name, check)


def list_checks(
    word: str, device: Device, begins: Callable[[str], None] = lambda name: None
) -> Iterator[tuple[str, Callable[[], CheckResult]]]:
    yield "synchronises", partial(check_synchronize, device)
    yield "events", partial(check_events, device)
    yield "memory", partial(check_memory, device)
    for precision in _list_precisions(device):
        yield f"precision {precision}", partial(check_precision, device, precision)
    yield "autocast", partial(check_autocast, device)
    yield "loss scaler", partial(check_scaler, device)
    for name in workloads.names():
        check = f"operators {name}"
        yield check, partial(operators.check_operators, device, name, partial(begins, check))
    yield "collectives", partial(check_collectives, word, device.platform)
    yield "sensors", partial(check_sensors, device)
    yield "unplugged tool", partial(check_missing_program, device)
    yield "host settings", partial(check_host_settings, device)
    yield "peak", partial(check_peak, device)


def run_check(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    """Runs a check; one that raises has failed with the driver's error."""
    try:
        return replace(check(), name=name)
    except Exception as error:
        said = f"raised {type(error).__name__}: {first_line(error)}"
        return replace(failed(said, "every run makes the call above"), name=name)


def check_synchronize(device: Device) -> CheckResult:
    """After synchronize() the mark before it is reached, and a result can be read at once."""
    work = _make_work(device)
    tries = []
    for _ in range(TRIES):
        began = time.perf_counter()
        result = work()
        mark = device.marks.mark()
        device.synchronize()
        waited_s = time.perf_counter() - began
        if not device.marks.is_reached(mark):
            return failed(
                "synchronize() returned while a mark recorded before it was not reached",
                "torch.accelerator.synchronize and Event.query must use the same queue",
            )
        with device.arithmetic(FP32):
            result.sum().item()
        tries.append((waited_s, time.perf_counter() - began - waited_s))
    waited_s, read_s = min(tries, key=lambda pair: pair[1] / pair[0])
    if read_s > waited_s / 2:
        return failed(
            f"reading a result took {read_s * 1e3:.1f} ms after a synchronize() that had taken {waited_s * 1e3:.1f} ms",
            "synchronize() must wait for the computation, not only for its launch",
        )
    return ok(f"{waited_s * 1e3:.1f} ms of work were waited for, and the result was read {read_s * 1e3:.1f} ms later")


def check_events(device: Device) -> CheckResult:
    """Compares device time with wall time; a busy host may be late, so one try that agrees is enough."""
    work = _make_work(device)
    closest_s = (0.0, float("inf"))
    for _ in range(EVENT_TRIES):
        device.synchronize()
        began = time.perf_counter()
        first = device.marks.mark()
        work()
        last = device.marks.mark()
        device.synchronize()
        wall_s = time.perf_counter() - began
        tried_s = (device.marks.between_ns(first, last) / 1e9, wall_s)
        closest_s = min(closest_s, tried_s, key=_relative_error)
        if _relative_error(closest_s) <= EVENT_TOLERANCE:
            break
    event_s, wall_s = closest_s
    said = f"{event_s * 1e3:.1f} ms between two events, {wall_s * 1e3:.1f} ms of wall time"
    if _relative_error(closest_s) > EVENT_TOLERANCE:
        return failed(said, "Event.elapsed_time must give milliseconds of the device's own time, recorded in order")
    return ok(said)


def _relative_error(event_and_wall_s: tuple[float, float]) -> float:
    event_s, wall_s = event_and_wall_s
    return abs(event_s / wall_s - 1)


def check_memory(device: Device) -> CheckResult:
    capacity, before = device.memory_capacity_bytes(), device.peak_memory_bytes()
    if not capacity or before is None:
        missing = "mem_get_info" if not capacity else "max_memory_allocated"
        return failed("its memory is not known", f"torch's module for the device must have {missing}")
    size = min(TENSOR_BYTES, capacity // 8)
    held: list[Tensor] = []
    while len(held) < MAX_TENSORS and (len(held) + 1) * size < capacity / 4:
        with device.arithmetic(FP32):
            held.append(torch.ones(size // 4, device=device.torch))
        device.synchronize()
        after = device.peak_memory_bytes() or 0
        if after - before >= size * 0.9:
            grown = f"a tensor of {size / 2**20:.0f} MiB raised the peak by {(after - before) / 2**20:.0f} MiB"
            return ok(f"{grown}; capacity {capacity / 2**30:.1f} GiB")
        before = max(before, after)
    return failed(
        f"the peak stayed at {before / 2**20:.0f} MiB while {len(held)} tensors of {size / 2**20:.0f} MiB were made",
        "max_memory_allocated must count what tensors hold",
    )


def check_precision(device: Device, precision: Precision) -> CheckResult:
    """Trains a layer, and checks that matmuls have exactly the bits of the precision."""
    if reason := device.explain_refusal(precision):
        return failed(f"one layer could not be trained: {reason}", "remove it from the file's precisions, or fix it")
    device.set_precision(precision)
    try:
        for kind, computed_type in number_types.KINDS.items():
            if precision.allows_tf32 and kind != "matmul":
                continue  # a library may choose an algorithm without TF32
            used = computed_type(device, precision, getattr(torch, precision.weights))
            if used != precision.unscaled:
                return _report_type(kind, used, precision.unscaled)
        for asked, used in number_types.find_scaled_types(device, precision).items() if precision.scaled else ():
            if used != asked:
                return _report_type("matmul", used, asked)
    finally:
        device.set_precision(FP32)
    return ok(f"trains; matmuls are rounded as {precision.computes_in}")


def _report_type(kind: str, used: str, computes_in: str) -> CheckResult:
    return failed(
        f"{kind}: computed in {used}, not in {computes_in}",
        "it computes in another type than requested, or lowers float32 by itself",
    )


def check_autocast(device: Device) -> CheckResult:
    listed = [precision for precision in _list_precisions(device) if precision.autocast]
    if not listed:
        return unknown("the file lists no amp precision")
    for precision in listed:
        layer = nn.Linear(8, 8, device=device.torch)
        with device.arithmetic(precision):
            with device.autocast(precision):
                out = layer(torch.ones(2, 8, device=device.torch))
            out.float().sum().backward()
        gradient = layer.weight.grad
        if out.dtype != getattr(torch, str(precision.autocast)) or gradient is None or gradient.dtype != torch.float32:
            got = "none" if gradient is None else str(gradient.dtype).removeprefix("torch.")
            return failed(
                f"{precision}: a linear layer gave {out.dtype} and a gradient of type {got}, "
                f"expected {precision.autocast} and float32",
                f"torch.autocast({device.torch.type!r}) must lower matmuls and leave the weights unchanged",
            )
    return ok(f"{', '.join(map(str, listed))}: matmuls are lowered, weight gradients stay float32")


def check_scaler(device: Device) -> CheckResult:
    """A step with finite gradients is made; one with an infinite gradient is skipped and the scale halved."""
    if not any(precision.scales_loss for precision in _list_precisions(device)):
        return unknown("the file lists no precision whose loss is scaled")
    layer = nn.Linear(4, 4, device=device.torch)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler(device.torch.type, init_scale=1024.0)
    moved = []
    for factor in (1.0, float("inf")):
        before = layer.weight.detach().clone()
        with device.arithmetic(FP32):
            scaled: Tensor = scaler.scale(layer(torch.ones(1, 4, device=device.torch)).sum() * factor)
            scaled.backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        moved.append(not torch.equal(before, layer.weight.detach()))
    if moved != [True, False] or scaler.get_scale() != 512.0:
        return failed(
            f"a good step {'was' if moved[0] else 'was not'} made, a step with an infinite gradient "
            f"{'was' if moved[1] else 'was not'}, and the scale went from 1024 to {scaler.get_scale():g}, not 512",
            "torch.amp.GradScaler needs _amp_foreach_non_finite_check_and_unscale_ and _amp_update_scale_",
        )
    return ok("makes good steps, skips one with an infinite gradient, halves its scale")


def check_sensors(device: Device) -> CheckResult:
    file = device.platform.file
    if file.sensors is None:
        return unknown("the file names no sensors")
    readings, unavailable = device_checks.read_sensors(file)
    given = [name for name in FIELDS if name not in unavailable]
    by_reason = device_checks.group_by_reason(unavailable)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    if not readings or not given:
        said = f"nothing could be read: {_first_reason(unavailable)}"
        return unknown(said) if device.is_cpu else failed(said, "see [sensors] in the file, and run its program")
    if not device.is_cpu and len(readings) < device.platform.device_count:
        return failed(
            f"{len(readings)} of {device.platform.device_count} devices were read",
            "the program's output must have every device in it",
        )
    said = f"{', '.join(given)} of {len(readings)} device{'' if len(readings) == 1 else 's'}"
    return ok(f"{said}; unavailable: {reasons}" if reasons else said)


def check_missing_program(device: Device) -> CheckResult:
    """Replaces the file's programs by a missing one: nothing but the reading may fail."""
    file = device.platform.file
    if not isinstance(file.sensors, (NvmlSensors, ProgramSensors)) or not file.sensors.programs:
        return unknown("the file's sensors need no program")
    gone = (msgspec.structs.replace(program, argv=(NO_PROGRAM, *program.argv[1:])) for program in file.sensors.programs)
    reader = sensors.ProgramReader(tuple(gone))
    try:
        readings, unavailable = reader.read(), dict(reader.unavailable)
    finally:
        reader.close()
    if readings or not all(unavailable.get(name) for name in FIELDS):
        return failed(f"{len(readings)} readings came from a missing program", "internal error, please report")
    return ok(f"unavailable, with the reason: {_first_reason(unavailable)}")


def check_host_settings(device: Device) -> CheckResult:
    """Starts torch with the variables that workers get: a wrong library fails."""
    settings = device.platform.file.host_settings
    if not settings:
        return unknown("the file has none")
    code = "import torch; torch.ones(8, 8) @ torch.ones(8, 8)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STARTS_S,
    )
    complaint = done.stderr.strip().partition("\n")[0]
    if done.returncode or complaint:
        said = f"with {', '.join(settings)} torch ends with {done.returncode}: {complaint}"
        return failed(said, "see [host_settings] in the file")
    return ok(f"torch works with {', '.join(settings)}")


def check_peak(device: Device) -> CheckResult:
    name, file = device.name(), device.platform.file
    if device.is_cpu:
        return unknown("the peak of a CPU is measured in each run")
    if device.is_stand_in:
        return unknown("a stand-in has none")
    peak = file.peak(name)
    if peak is None:
        return unknown(f"no peak is known for {name!r}, so no run shows its MFU", "add a [[peaks]] entry to the file")
    said = ", ".join(f"{family} {tflops:g} TFLOP/s" for family, tflops in peak.tflops.items())
    return ok(f"{said} ({peak.source})")


def check_collectives(word: str, platform: Platform) -> CheckResult:
    if platform.file.collectives == files.NO_COLLECTIVES:
        return unknown("the file declares no collectives")
    ranks = 2 if platform.is_cpu or platform.device_count > 1 else 1
    failure = collective_check.find_failure(word, ranks)
    if failure:
        remedy = f"torch.distributed's backend {platform.file.collectives!r} must join and sum float32 on the devices"
        return failed(failure, remedy)
    alone = "" if ranks > 1 else ", as there is one device"
    return ok(f"{platform.file.collectives} joins {ranks} rank{'s' if ranks > 1 else ''} and sums correctly{alone}")


FP32 = PRECISIONS["fp32"]
OPENS = "opens"


def report_not_opened(word: str, error: NotReadyError) -> CheckResult:
    """The finding where there is no device."""
    return replace(
        failed(str(error), f"`trainmark platform check {word}` needs one device that torch sees"), name=OPENS
    )


def _make_work(device: Device) -> Callable[[], Tensor]:
    """Makes a function that launches enough matmuls to outlast their launch."""
    numbers = torch.full((SIDE, SIDE), 1 / SIDE, device=device.torch)
    matmuls = 4

    def work() -> Tensor:
        result = numbers
        with device.arithmetic(FP32):
            for _ in range(matmuls):
                result = result @ numbers
        return result

    work()  # warm up: threads, memory, libraries
    while matmuls < MAX_MATMULS:
        if time_work(device, work) >= WORK_S:
            break
        matmuls *= 2
    return work


def _list_precisions(device: Device) -> list[Precision]:
    return [PRECISIONS[name] for name in device.platform.file.precisions]


def _first_reason(unavailable: Mapping[str, str]) -> str:
    """The first reason other than that a field is not declared."""
    reasons = list(dict.fromkeys(unavailable.values()))
    return next((reason for reason in reasons if reason != sensors.NOT_DECLARED), "no device answered")
