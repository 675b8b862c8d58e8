"""Work after the clock has stopped, which cannot harm the result: FLOPs, device peak, a sample, profiled steps."""

from __future__ import annotations

import math
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import stdev
from typing import Any

import msgspec
import psutil
import torch
from torch import profiler
from torch._C._autograd import DeviceType

from trainmark import features
from trainmark.data import audio
from trainmark.platforms.matmul_rate import BUDGET_S, choose_matmul_type, measure_matmul_flops
from trainmark.platforms.platform import Device
from trainmark.record import endings
from trainmark.record.atomic_files import write_user_file
from trainmark.record.cores import FOREIGN_LOAD
from trainmark.record.errors import TrainmarkError
from trainmark.record.events import ArtifactsLeft, ExchangeCounted, FlopsCounted, NoSample, Profiled
from trainmark.record.machine import Artifact, OperatorUse
from trainmark.record.metrics import MEASURED
from trainmark.record.plan import Plan
from trainmark.record.precision import Precision
from trainmark.record.sample import NetworkUsed, Part, Sample, SampleDocument, SoundPart, TextPart
from trainmark.train import transfers
from trainmark.train.loop import Job
from trainmark.train.schedule import Position
from trainmark.workloads.sampling import SampleRequest, Trained

PEAK_REPEATS = 4
SUFFIXES = {"sound": ".wav", "image": ".png", "text": ".txt"}


@dataclass(frozen=True, kw_only=True)
class DevicePeak:
    tflops: float | None
    source: str
    """Where the figure is from, or why there is none."""
    error: float | None = None
    """Standard deviation of the logarithm, over several measurements."""


def measure_peak(device: Device, precision: Precision) -> DevicePeak:
    """The best of several rates; none where other processes used the machine meanwhile."""
    dtype = choose_matmul_type(device, precision)
    began_s, busy_before_s = time.perf_counter(), _read_foreign_s()
    budget_s = BUDGET_S / PEAK_REPEATS
    rates = [measure_matmul_flops(device, dtype, budget_s=budget_s) / 1e12 for _ in range(PEAK_REPEATS)]
    all_s = (time.perf_counter() - began_s) * (os.cpu_count() or 1)
    others = (_read_foreign_s() - busy_before_s) / all_s
    if others > FOREIGN_LOAD:
        reason = f"others used {100 * others:.0f} % of the machine while its peak was measured"
        return DevicePeak(tflops=None, source=reason)
    kind, threads = str(dtype).removeprefix("torch."), torch.get_num_threads()
    source = f"{MEASURED}large matmuls in {kind}, {threads} threads"
    return DevicePeak(tflops=max(rates), source=source, error=stdev(map(math.log, rates)))


def _read_foreign_s() -> float:
    """CPU seconds of all other processes, of which only differences mean something."""
    times = psutil.cpu_times()
    busy_s = times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)
    return float(busy_s - time.process_time())


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


def leave_sample(job: Job, ended: str, folder: Path, data: Path | None) -> None:
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


def find_data_folder(plan: Plan | None) -> Path | None:
    """The data folder of a plan, if it exists here."""
    folder = Path(plan.data.folder) if plan and plan.data.folder else None
    return folder if folder and folder.is_dir() else None


def _name_files(sample: Sample, place: Path) -> list[tuple[Part, Path]]:
    """The file of each part, named after `place`; a second one of a kind is numbered."""
    found: list[tuple[Part, Path]] = []
    for part in sample.parts:
        kind = "sound" if isinstance(part, SoundPart) else "text" if isinstance(part, TextPart) else "image"
        before = sum(type(other) is type(part) for other, _ in found)
        number = f"-{before + 1}" if before else ""
        found.append((part, place.with_name(f"{place.name}{number}{SUFFIXES[kind]}")))
    return found


def _write_parts(sample: Sample, place: Path) -> tuple[Artifact, ...]:
    """Writes one file per part; all sound at the same level."""
    left = []
    for part, path in _name_files(sample, place):
        if isinstance(part, SoundPart):
            audio.write(path, audio.normalise_level(part.samples))
        else:
            write_user_file(path, part.text.encode() + b"\n" if isinstance(part, TextPart) else part.png)
        left.append(Artifact(file=path.name, caption=part.caption))
    return tuple(left)


@torch.no_grad()
def write_sample(
    trained: Trained, request: SampleRequest, place: Path, check: Callable[[Path], None] = lambda path: None
) -> SampleDocument:
    """Makes a sample and writes its parts and, last, its document; `check` may refuse a file before it is written."""
    wanted = trained.recipe.score_clips if request.score is None else request.score
    speech = features.load("scoring.sample_scorer") if wanted else None
    scorer = speech.installed() if speech else None
    if not (scorer and (scorer.opinion or scorer.transcript)):  # then no clip is made only to be scored
        request = replace(request, score=False)
    began = time.perf_counter()
    sample: Sample = trained.workload.sample(trained, request)
    seconds = time.perf_counter() - began
    for _, path in _name_files(sample, place):
        check(path)
    scores = speech.score(sample.clips, scorer) if speech else None
    has_sound = any(isinstance(part, SoundPart) and part.samples.any() for part in sample.parts)
    document = SampleDocument(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        workload=trained.source.workload,
        input=sample.shown,
        networks=(trained.source, *sample.networks),
        generator=sample.generator,
        settings=dict(setting.split("=", 1) for setting in request.options),
        device=trained.device.name(),
        seconds=seconds,
        level_dbfs=audio.LEVEL_DBFS if has_sound else None,
        files=_write_parts(sample, place),
        facts=dict(sample.facts),
        scores=scores,
        doubts=(*sample.doubts, *(speech.doubts(scores) if speech else ())),
    )
    write_user_file(place.with_name(f"{place.name}.json"), document.dumps())
    return document


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
        return write_sample(trained, SampleRequest(data=data), folder / SAMPLE).files


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


TRACE = "trace.json.gz"
MAX_NAMED = 12
"""Operators that are listed one by one."""


def write_profile(job: Job, position: Position, ended: str, folder: Path, steps: int) -> None:
    """Profiles extra steps, which all ranks run; rank 0 leaves a Chrome trace and writes the longest operators.

    The result is measured already, so an error only goes to the log of the rank, unless others would wait for it."""
    if not steps or ended in endings.WITHOUT_A_MODEL or not job.clock.steps:
        return
    job.monitor.report_alive("sample", 0)
    try:
        _profile_steps(job, position, folder, steps)
    except Exception:
        if job.collectives.world > 1:
            raise
        traceback.print_exc()


def _profile_steps(job: Job, position: Position, folder: Path, steps: int) -> None:
    job.stepper.model.train()
    batches = _iterate_batches(job, position)
    job.stepper.step(next(batches))  # warm-up, after evaluation and samples
    job.device.synchronize()
    if job.collectives.rank:
        for _ in range(steps):
            job.stepper.step(next(batches))
        job.device.synchronize()
        return
    profile = profiler.profile(
        activities=profiler.supported_activities(),  # type: ignore[no-untyped-call]
        profile_memory=True,
        acc_events=True,
    )
    with profile:
        began = time.perf_counter()
        for _ in range(steps):
            job.stepper.step(next(batches))
        job.device.synchronize()
        seconds = time.perf_counter() - began
    job.events.write(summarize(profile, steps, seconds, _write_trace(profile, folder)))


def _iterate_batches(job: Job, position: Position) -> Iterator[Any]:
    """From where training stopped, over as many epochs as needed."""
    epoch, first = position.epoch, position.step_in_epoch
    while True:
        yield from transfers.move_batches(job.data.train(epoch, first), job.device)
        epoch, first = epoch + 1, 0


def _write_trace(profile: profiler.profile, folder: Path) -> str:
    try:
        profile.export_chrome_trace(str(folder / TRACE))
    except (OSError, RuntimeError):
        traceback.print_exc()
        return ""
    return TRACE


def summarize(profile: profiler.profile, steps: int, seconds: float, trace: str) -> Profiled:
    """By operator, in device time where the profiler saw the device."""
    found = profile.events() or []  # type: ignore[no-untyped-call]
    on_device = [event for event in found if event.device_type != DeviceType.CPU and not event.is_user_annotation]
    on_host = [event for event in found if event.device_type == DeviceType.CPU and event.name.startswith(OPERATORS)]
    uses = [
        OperatorUse(
            name=each.key.partition("::")[2] or each.key,
            calls=each.count,
            seconds=(each.self_device_time_total if on_device else each.self_cpu_time_total) / 1e6,
            size_bytes=max(0, each.device_memory_usage if on_device else each.cpu_memory_usage),
        )
        for each in profile.key_averages()
        if each.device_type == DeviceType.CPU and each.key.startswith(OPERATORS)
    ]
    uses.sort(key=lambda use: (-use.seconds, use.name))
    named, rest = uses[:MAX_NAMED], uses[MAX_NAMED:]
    busy = on_device or on_host
    return Profiled(
        steps=steps,
        seconds=seconds,
        busy_s=min(seconds, measure_union((event.time_range.start, event.time_range.end) for event in busy) / 1e6),
        launches=len(on_device) or sum(map(_is_work, on_host)),
        on_device=bool(on_device),
        operators=named,
        others=_merge(rest) if rest else None,
        trace=trace,
    )


OPERATORS = ("aten::", "c10d::", "gloo:", "nccl:", "mkldnn::")
"""Prefixes of operators that compute or communicate; other events only contain these."""


WITHOUT_WORK = frozenset(
    {
        "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "lift_fresh", "narrow",
        "permute", "resolve_conj", "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unfold",
        "unsqueeze", "view",
    }
)  # fmt: skip
"""Operators that only allocate, or return a view."""


def _is_work(event: Any) -> bool:
    """It computes itself, and does not only call operators that do."""
    own, *called = (each.name.partition("::")[2] not in WITHOUT_WORK for each in (event, *event.cpu_children))
    return own and not any(called)


def _merge(uses: Iterable[OperatorUse]) -> OperatorUse:
    uses = list(uses)
    return OperatorUse(
        name=f"{len(uses)} others",
        calls=sum(use.calls for use in uses),
        seconds=sum(use.seconds for use in uses),
        size_bytes=sum(use.size_bytes for use in uses),
    )


def measure_union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
