"""Profiles extra steps with torch.profiler, after those that count."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import profiler
from torch._C._autograd import DeviceType

from trainmark.record import endings
from trainmark.record.events import Profiled
from trainmark.record.machine import OperatorUse
from trainmark.record.plan import Plan
from trainmark.train import transfers
from trainmark.train.loop import Job
from trainmark.train.schedule import Position

ORDER = 1
TRACE = "trace.json.gz"
MAX_NAMED = 12
"""Operators that are listed one by one."""


def work(job: Job, position: Position, ended: str, folder: Path, plan: Plan) -> None:
    """Profiles extra steps, which all ranks run; rank 0 leaves a Chrome trace and writes the longest operators.

    The result is measured already, so an error only goes to the log of the rank, unless others would wait for it."""
    steps = plan.profile
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
