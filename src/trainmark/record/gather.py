"""Builds the record of a run from its event files, whether or not it reached its end."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

import trainmark
from trainmark.record import endings, statistics, telemetry_summary as samplers
from trainmark.record.doubts import CLOCKS_FAR_APART, collect_doubts
from trainmark.record.events import Evaluated, FaultFound
from trainmark.record.machine import (
    DeviceClock,
    Environment,
    ExchangeShape,
    FillSearch,
    FlopsFacts,
    PrecisionProof,
    StepCheck,
    StepProfile,
    Telemetry,
)
from trainmark.record.metrics import Measured, measure, withhold
from trainmark.record.numbers import Target
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Evaluation, Quality, Record, Restart, Status, describe_coverage
from trainmark.record.run_folder import RankLog, RunFolder, open_run, read_head, read_plan, read_rank
from trainmark.record.timeline import (
    MAX_INSIDE,
    NO_STEPS,
    RankSums,
    RankTrace,
    StepSeries,
    Timeline,
    build_timeline,
    describe_file,
    thin_series,
)
from trainmark.record.workload_facts import WorkloadFacts


def reduce_ranks(
    folder: RunFolder, *, full: bool
) -> tuple[Sequence[RankLog], Timeline, Sequence[float | None], StepSeries | None]:
    """Reads all ranks of a run; with `full`, warm-up steps count, too.

    Returns everything of the rank logs but their steps, the timeline, the loss of each global batch, which is the plain
    mean as ranks weight theirs by their share, and the series of a run too long to record every rank's.
    """
    together, ranks = _CommonSteps(), []
    traces: list[RankTrace] = []
    for log in folder.each_rank():
        trace = log.trace()
        together.add(trace, log.loss)
        ranks.append(log)
        if together.rank_steps > MAX_INSIDE:
            if together.rank_steps - trace.steps <= MAX_INSIDE:  # this rank exceeds the limit
                traces = [_without_series(before) for before in traces]
            trace = _without_series(trace)
        traces.append(trace)
    if not ranks:
        log = RankLog()
        together.add(trace := log.trace(), ())
        ranks, traces = [log], [trace]
    whole = Timeline(ranks=tuple(traces))
    slowest = together.slowest
    compute_s = np.asarray(slowest.compute_ns[: whole.steps], dtype=np.float64) / 1e9
    steady = statistics.find_steady_start(compute_s, together.items.astype(np.float64)) if whole.steps else 0
    warmup = 0 if full else steady
    if together.rank_steps <= MAX_INSIDE:
        timeline = replace(whole, warmup_steps=warmup, steady_from=steady)
        return ranks, timeline, together.mean_loss(), None
    steps = StepSeries(
        wait_ns=array("q", slowest.wait_ns[: whole.steps]),
        compute_ns=array("q", slowest.compute_ns[: whole.steps]),
        exchange_ns=array("q", slowest.exchange_ns[: whole.steps]) or (),
        items=array("q", together.items.tolist()),
        loss=together.mean_loss(),
    )
    sums = [
        replace(trace, sums=_sums(folder, log, slowest if slowest.rank == trace.rank else trace, warmup, whole.steps))
        for log, trace in zip(ranks, traces, strict=True)
    ]
    timeline = build_timeline(sums, steps, warmup_steps=warmup, steady_from=steady)
    return ranks, timeline, steps.loss, steps


class _CommonSteps:
    """Sums over the ranks read so far, of the steps they all finished."""

    def __init__(self) -> None:
        self.rank_steps = 0
        self.slowest = RankTrace(rank=-1)
        self.items: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._loss: npt.NDArray[np.float64] = np.empty(0)
        self._ranks = 0

    def add(self, trace: RankTrace, loss: Iterable[float | None]) -> None:
        if not self._ranks or trace.busy_ns > self.slowest.busy_ns:
            self.slowest = trace
        items = np.array(trace.items, dtype=np.int64)
        losses = np.array(list(loss), dtype=np.float64)  # None becomes NaN, and so does every sum with it
        self.items = _add_common(self.items, items) if self._ranks else items
        self._loss = _add_common(self._loss, losses) if self._ranks else losses
        self.rank_steps += trace.steps
        self._ranks += 1

    def mean_loss(self) -> list[float | None]:
        means = (self._loss / self._ranks).tolist()
        rounded = means if self._ranks == 1 else [float(f"{mean:.7g}") for mean in means]
        return [mean if np.isfinite(mean) else None for mean in rounded]


def _add_common(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[Any]:
    common = min(len(one), len(other))
    return np.asarray(one[:common] + other[:common])


def _without_series(trace: RankTrace) -> RankTrace:
    """The sums of a rank, before it is known which steps count."""
    if trace.sums:
        return trace
    sums = RankSums(steps=trace.steps, exchanged=trace.exchanged, warmup=NO_STEPS, counted=trace.whole)
    return replace(trace, wait_ns=(), compute_ns=(), exchange_ns=(), items=(), sums=sums)


def _sums(folder: RunFolder, log: RankLog, trace: RankTrace, first: int, last: int) -> RankSums:
    """Sums of a rank with the steps from `first` to `last` counted; rereads its log as far as needed."""
    if trace.sums and (first or trace.steps > last):
        needed = first if trace.steps == last and not log.restarts else None
        found = read_rank(folder.path, log.rank, until=needed).trace()
    else:
        found = trace
    warmup = found.part(slice(first)) if first else NO_STEPS
    rest = found.part(slice(last, None)) if trace.steps > last else NO_STEPS
    return RankSums(
        steps=trace.steps, exchanged=trace.exchanged, warmup=warmup, counted=trace.whole - warmup - rest, rest=rest
    )


AnyFacts = TypeVar("AnyFacts", bound=msgspec.Struct)


def gather_record(path: Path) -> Record:
    """The record of the run in a folder; one that did not reach its end gives an incomplete record.

    Only one rank's series are in memory at a time, beside the sums over ranks.
    """
    folder, head, plan = open_run(path), read_head(path), read_plan(path)
    ranks, timeline, loss, steps = reduce_ranks(folder, full=plan.limits.full)
    first = ranks[0]
    quality = _quality(head.target, plan, first)
    clock = max(filter(None, (log.clock() for log in ranks)), key=lambda found: found.apart, default=None)
    status, ended = _status(plan, ranks, folder.fault, clock)
    machines = Topology.parse(plan.topology).nodes
    nodes = samplers.summarise_nodes(folder, of=machines, settling_ns=timeline.settling_ns)
    environment = _environment(folder, first, clock, nodes)
    measured = Measured(
        item=head.item,
        timeline=timeline,
        memory_capacity_bytes=environment.device.memory_bytes,
        steps_planned=_planned_steps(plan, first, reached=quality.reached),
        target_reached_ns=next(
            (event.elapsed_ns for event in first.evaluations if _meets(head.target, plan, event)), None
        ),
        sensed=samplers.summarise_sensors(nodes, machines),
        flops=environment.flops,
        others=environment.others,
    )
    metrics = measure(measured)
    record = Record(
        run_id=head.run_id,
        created=head.created,
        trainmark=trainmark.__version__,
        revision=head.revision,
        status=status,
        ended=ended,
        group=head.group,
        tags=head.tags,
        note=head.note,
        plan=plan,
        item=head.item,
        metrics=withhold(metrics) if status == "invalid" else metrics,
        coverage=describe_coverage(full=plan.limits.full, steps=timeline.steps, warmup=timeline.warmup_steps),
        quality=quality,
        timeline=timeline,
        loss=loss,
        series_file=describe_file(head.run_id, steps) if steps else None,
        points=thin_series(steps, timeline.steady_from) if steps else None,
        restarts=_restarts(ranks),
        environment=environment,
        telemetry=Telemetry(machines=[node.telemetry for node in nodes]),
        skipped_files=tuple(first.end.skipped) if first.end else (),
        artifacts=first.artifacts,
        event_files=folder.event_files(),
        data_facts=_finite(first.end.facts) if first.end else {},
        workload_facts=WorkloadFacts.from_json(head.workload_facts) if head.workload_facts else None,
    )
    doubts = collect_doubts(
        record,
        reference_global_batch=head.reference_global_batch,
        resumed=first.resumed,
        torn_ranks=[log.rank for log in ranks if log.torn],
        no_sample=first.no_sample,
    )
    return replace(record, doubts=doubts)


def now_utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _environment(
    folder: RunFolder, first: RankLog, clock: DeviceClock | None, nodes: Sequence[samplers.NodeSums]
) -> Environment:
    """Facts of rank 0's machine, with what was checked and measured on it."""
    facts = msgspec.structs.asdict(first.environment) if first.environment else {}
    checks = [log.step_check for log in folder.logs if log.step_check]
    differing = [check for check in checks if check.differing]
    return Environment(
        **facts,
        link=list(first.link),
        link_levels=list(first.link_levels),
        exchange=_strip_event(first.exchange, ExchangeShape),
        profile=_strip_event(first.profile, StepProfile),
        checkpoint=first.checkpoint(),
        flops=_strip_event(first.flops, FlopsFacts),
        precision=_strip_event(first.precision, PrecisionProof),
        fill=_strip_event(folder.fill, FillSearch),
        step_check=_strip_event(next(iter(differing or checks), None), StepCheck),
        clock=clock,
        foreign_load=samplers.foreign_load(nodes),
        idle_power_w=samplers.idle_power(nodes),
        suspended_s=max((log.suspended_ns for log in folder.logs), default=0) / 1e9,
        ranks_apart_at=first.apart_at,
        clock_gap_s=max((log.clock_gap_ns for log in folder.logs), key=abs, default=0) / 1e9,
    )


def _strip_event(event: AnyFacts | None, kind: type[AnyFacts]) -> AnyFacts | None:
    return None if event is None else kind(**msgspec.structs.asdict(event))


def _status(
    plan: Plan, ranks: Sequence[RankLog], found: FaultFound | None, clock: DeviceClock | None
) -> tuple[Status, str]:
    failures = [log.failed for log in ranks if log.failed]
    # the launcher has found the root cause; without it, only causes precede consequences, as host clocks differ
    fault = found or min(failures, key=lambda failure: failure.consequence, default=None)
    if fault:
        return "invalid" if fault.exit_code == endings.INVALID_CODE else "incomplete", fault.sentence
    wanted = set(range(Topology.parse(plan.topology).devices))
    if absent := wanted - {log.rank for log in ranks}:
        return "incomplete", f"nothing came from rank {', '.join(map(str, sorted(absent)))}"
    if ranks[0].end is None or any(log.end is None for log in ranks):
        return "incomplete", endings.CUT_OFF
    ended = ranks[0].end.ended
    if clock is not None and clock.apart > CLOCKS_FAR_APART:
        return "invalid", endings.CLOCKS_APART
    return ("incomplete" if ended in endings.BY_SIGNAL else "valid"), ended


def _restarts(ranks: Sequence[RankLog]) -> tuple[Restart, ...]:
    """The restarts of rank 0, each with the reason the failed rank gave."""
    found = []
    for index, restart in enumerate(ranks[0].restarts):
        reasons = [log.restarts[index].reason for log in ranks if len(log.restarts) > index]
        found.append(replace(restart, reason=next((reason for reason in reasons if reason), None)))
    return tuple(found)


def _quality(target: Target, plan: Plan, log: RankLog) -> Quality:
    history = tuple(
        Evaluation(step=event.step, epoch=event.epoch, values=_finite(event.values), samples=event.samples)
        for event in log.evaluations
    )
    return Quality(
        name=target.name,
        unit=target.unit,
        goal=float(plan.recipe["target"]),
        better=target.better,
        value=history[-1].values.get(target.name) if history else None,
        reached=bool(history) and _meets(target, plan, history[-1]),
        history=history,
    )


def _meets(target: Target, plan: Plan, evaluation: Evaluated | Evaluation) -> bool:
    value = evaluation.values.get(target.name)
    return value is not None and target.is_reached(value, float(plan.recipe["target"]))


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Finite values only, as JSON has no others."""
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _planned_steps(plan: Plan, log: RankLog, *, reached: bool) -> int | None:
    """Planned steps, where fixed; a run that reached its target needed no more."""
    if reached and plan.limits.full:
        return log.step - log.first_step
    last = plan.last_step(
        first_step=log.first_step, steps_per_epoch=log.steps_per_epoch, items_per_step=log.items_per_step
    )
    return None if last is None else last - log.first_step
