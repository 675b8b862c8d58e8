"""Finds out whether a platform does what a run takes for granted, in lines its vendor can act on."""

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
from trainmark.platforms.matmul_rate import seconds
from trainmark.platforms.platform import Device, Platform
from trainmark.platforms.reading import FIELDS
from trainmark.platforms.sensor_table import NvmlSensors, ProgramSensors
from trainmark.record.checks import CheckResult, failed, first_line, format_count, ok, unknown
from trainmark.record.errors import NotReadyError
from trainmark.record.precision import PRECISIONS, Precision

WORK_S = 0.05
"""How long the work is at least that waits and events are tried on."""
MAX_MATMULS = 1 << 16
TRIES = 3
"""A machine that does something else meanwhile may spoil a time, hardly three in a row."""
EVENT_TRIES = 12
EVENT_TOLERANCE = 0.15
SIDE = 256
TENSOR_BYTES = 64 << 20
MAX_TENSORS = 24
"""One of so many must raise the peak; the first may hide below what the process once had."""
STARTS_S = 60.0
NO_PROGRAM = "/nowhere/trainmark-has-no-such-program"


def examine(word: str, begins: Callable[[str], None] = lambda name: None) -> Iterator[CheckResult]:
    """One finding after the other; `begins` hears of each check before it is made, and of a long one again while it
    gets on. Raises NotReadyError where there is no device to look at."""
    begins(OPENS)
    platform = Platform(files.load(word))
    device = platform.open(0)
    devices = format_count(platform.device_count, "core" if device.is_cpu else "device")
    yield replace(ok(f"{device.name()}, {devices}"), name=OPENS)
    for name, check in checks(word, device, begins):
        begins(name)
        yield guarded(name, check)


def checks(
    word: str, device: Device, begins: Callable[[str], None] = lambda name: None
) -> Iterator[tuple[str, Callable[[], CheckResult]]]:
    yield "synchronises", partial(synchronises, device)
    yield "events", partial(events_agree, device)
    yield "memory", partial(memory_counted, device)
    for precision in _listed(device):
        yield f"precision {precision}", partial(precision_is_real, device, precision)
    yield "autocast", partial(autocast_works, device)
    yield "loss scaler", partial(scaler_works, device)
    for name in workloads.names():
        check = f"operators {name}"
        yield check, partial(operators.check, device, name, partial(begins, check))
    yield "collectives", partial(exchanges, word, device.platform)
    yield "sensors", partial(sensors_parse, device)
    yield "unplugged tool", partial(unplugged_tool, device)
    yield "host settings", partial(host_settings_valid, device)
    yield "peak", partial(peak_known, device)


def guarded(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    """A check that raises has failed: a driver's error is what its vendor wants to see."""
    try:
        return replace(check(), name=name)
    except Exception as error:
        said = f"raised {type(error).__name__}: {first_line(error)}"
        return replace(failed(said, "the call above is one that every run makes"), name=name)


def synchronises(device: Device) -> CheckResult:
    """After a wait nothing is left to wait for: the mark before it is reached, and a result is there at once."""
    work = _work(device)
    tries = []
    for _ in range(TRIES):
        began = time.perf_counter()
        result = work()
        mark = device.marks.mark()
        device.synchronize()
        waited_s = time.perf_counter() - began
        if not device.marks.reached(mark):
            return failed(
                "synchronize() returned while a mark recorded before it was not reached",
                "torch.accelerator.synchronize and Event.query must look at the same queue",
            )
        with device.arithmetic(FP32):
            result.sum().item()
        tries.append((waited_s, time.perf_counter() - began - waited_s))
    waited_s, read_s = min(tries, key=lambda pair: pair[1] / pair[0])
    if read_s > waited_s / 2:
        return failed(
            f"reading a result took {read_s * 1e3:.1f} ms after a synchronize() that had taken {waited_s * 1e3:.1f} ms",
            "synchronize() must wait for the computing, not only for its launch",
        )
    return ok(f"{waited_s * 1e3:.1f} ms of work are waited for, and the result is there {read_s * 1e3:.1f} ms later")


def events_agree(device: Device) -> CheckResult:
    """A busy host may notice the end of the work late: one try that agrees is enough, and a clock that is wrong never
    does."""
    work = _work(device)
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
        closest_s = min(closest_s, tried_s, key=_apart)
        if _apart(closest_s) <= EVENT_TOLERANCE:
            break
    event_s, wall_s = closest_s
    said = f"{event_s * 1e3:.1f} ms between two events, {wall_s * 1e3:.1f} ms on the wall"
    if _apart(closest_s) > EVENT_TOLERANCE:
        return failed(said, "Event.elapsed_time must give milliseconds of the device's own time, recorded in order")
    return ok(said)


def _apart(event_and_wall_s: tuple[float, float]) -> float:
    event_s, wall_s = event_and_wall_s
    return abs(event_s / wall_s - 1)


def memory_counted(device: Device) -> CheckResult:
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


def precision_is_real(device: Device, precision: Precision) -> CheckResult:
    """It trains, and matmuls come out with the bits the precision has, no more and no fewer."""
    if reason := device.refuses(precision):
        return failed(f"one layer could not be trained: {reason}", "take it from the file's precisions, or mend it")
    device.set_precision(precision)
    try:
        for kind, computed_type in number_types.KINDS.items():
            if precision.allows_tf32 and kind != "matmul":
                continue  # a library may choose a way without TF32, and be right to
            used = computed_type(device, precision, getattr(torch, precision.weights))
            if used != precision.unscaled:
                return _another_type(kind, used, precision.unscaled)
        for asked, used in number_types.scaled_types(device, precision).items() if precision.scaled else ():
            if used != asked:
                return _another_type("matmul", used, asked)
    finally:
        device.set_precision(FP32)
    return ok(f"trains; products come out as {precision.computes_in} rounds them")


def _another_type(kind: str, used: str, computes_in: str) -> CheckResult:
    return failed(
        f"{kind}: numbers whose products tell types apart were multiplied in {used}, not in {computes_in}",
        "it computes in another type than the one asked for, or lowers float32 by itself",
    )


def autocast_works(device: Device) -> CheckResult:
    listed = [precision for precision in _listed(device) if precision.autocast]
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
                f"torch.autocast({device.torch.type!r}) must lower matrix products and keep the weights as they are",
            )
    return ok(f"{', '.join(map(str, listed))}: products are lowered, gradients of the weights stay float32")


def scaler_works(device: Device) -> CheckResult:
    """A step with good gradients is made; one with a gradient that is not finite is left out and the scale halved."""
    if not any(precision.scales_loss for precision in _listed(device)):
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
    return ok("makes good steps, leaves out one with an infinite gradient, halves its scale")


def sensors_parse(device: Device) -> CheckResult:
    file = device.platform.file
    if file.sensors is None:
        return unknown("the file names no sensors")
    readings, unavailable = device_checks.read_sensors(file)
    given = [name for name in FIELDS if name not in unavailable]
    by_reason = device_checks.group_by_reason(unavailable)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    if not readings or not given:
        said = f"nothing could be read: {_telling(unavailable)}"
        return unknown(said) if device.is_cpu else failed(said, "see [sensors] in the file, and run its program")
    if not device.is_cpu and len(readings) < device.platform.device_count:
        return failed(
            f"{len(readings)} of {device.platform.device_count} devices were read",
            "the program's output must have every device in it",
        )
    said = f"{', '.join(given)} of {len(readings)} device{'' if len(readings) == 1 else 's'}"
    return ok(f"{said}; unavailable: {reasons}" if reasons else said)


def unplugged_tool(device: Device) -> CheckResult:
    """The file's programs are replaced by one that is nowhere: nothing may fail but the reading."""
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
        return failed(f"{len(readings)} readings came from a program that is not there", "this is ours to mend")
    return ok(f"unavailable, with the reason: {_telling(unavailable)}")


def host_settings_valid(device: Device) -> CheckResult:
    """A program must start under the variables that workers get: one with a wrong library does not."""
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
        said = f"under {', '.join(settings)} torch ends with {done.returncode}: {complaint}"
        return failed(said, "see [host_settings] in the file")
    return ok(f"torch works under {', '.join(settings)}")


def peak_known(device: Device) -> CheckResult:
    name, file = device.name(), device.platform.file
    if device.is_cpu:
        return unknown("the peak of a processor is measured in each run")
    if device.is_stand_in:
        return unknown("a stand-in has none")
    peak = file.peak(name)
    if peak is None:
        return unknown(f"no peak is known for {name!r}, so no run shows its MFU", "add a [[peaks]] entry to the file")
    said = ", ".join(f"{family} {tflops:g} TFLOP/s" for family, tflops in peak.tflops.items())
    return ok(f"{said} ({peak.source})")


def exchanges(word: str, platform: Platform) -> CheckResult:
    if platform.file.collectives == files.NO_COLLECTIVES:
        return unknown("the file says that its devices cannot work together")
    ranks = 2 if platform.is_cpu or platform.device_count > 1 else 1
    failure = collective_check.failure(word, ranks)
    if failure:
        remedy = f"torch.distributed's backend {platform.file.collectives!r} must join and sum float32 on the devices"
        return failed(failure, remedy)
    alone = "" if ranks > 1 else ", which is all that one device can show"
    return ok(f"{platform.file.collectives} joins {ranks} rank{'s' if ranks > 1 else ''} and sums right{alone}")


FP32 = PRECISIONS["fp32"]
OPENS = "opens"


def unopened(word: str, error: NotReadyError) -> CheckResult:
    """What is found where there is no device to look at."""
    return replace(
        failed(str(error), f"`trainmark platform check {word}` needs one device that torch sees"), name=OPENS
    )


def _work(device: Device) -> Callable[[], Tensor]:
    """Launches matmuls, enough of them for their time to be told from their launch."""
    numbers = torch.full((SIDE, SIDE), 1 / SIDE, device=device.torch)
    matmuls = 4

    def work() -> Tensor:
        result = numbers
        with device.arithmetic(FP32):
            for _ in range(matmuls):
                result = result @ numbers
        return result

    work()  # the first one also wakes threads, takes memory, loads libraries
    while matmuls < MAX_MATMULS:
        if seconds(device, work) >= WORK_S:
            break
        matmuls *= 2
    return work


def _listed(device: Device) -> list[Precision]:
    return [PRECISIONS[name] for name in device.platform.file.precisions]


def _telling(unavailable: Mapping[str, str]) -> str:
    """Of the reasons the one that says most: that a field is not asked for says nothing."""
    reasons = list(dict.fromkeys(unavailable.values()))
    return next((reason for reason in reasons if reason != sensors.NOT_DECLARED), "no device answered")
