"""Adds the logs of all ranks up, one at a time: what each step took and held, and what each rank's steps sum to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmark.record import series, statistics
from trainmark.record.rank_log import RankLog
from trainmark.record.run_folder import RunFolder, read_rank
from trainmark.record.series import StepSeries
from trainmark.record.timeline import NO_STEPS, RankSums, RankTrace, Timeline


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What a record needs of the ranks' logs."""

    ranks: Sequence[RankLog]
    """All that they said but their steps."""
    timeline: Timeline
    loss: Sequence[float | None]
    """Of each step's global batch: ranks weigh theirs by their share, so it is the plain mean."""
    steps: StepSeries | None = None
    """Of a run too long for its record to keep every rank's series."""


def reduce(folder: RunFolder, *, full: bool) -> Reduced:
    """All ranks of a run; with `full` its warm-up counts like any other step."""
    together, ranks = _Together(), []
    traces: list[RankTrace] = []
    for log in folder.each_rank():
        trace = log.trace()
        together.add(trace, log.loss)
        ranks.append(log)
        if together.rank_steps > series.MOST_INSIDE:
            if together.rank_steps - trace.steps <= series.MOST_INSIDE:  # this rank is the first too many
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
    steady = statistics.steady_start(compute_s, together.items.astype(np.float64)) if whole.steps else 0
    warmup = 0 if full else steady
    if together.rank_steps <= series.MOST_INSIDE:
        timeline = replace(whole, warmup_steps=warmup, steady_from=steady)
        return Reduced(ranks=ranks, timeline=timeline, loss=together.mean_loss())
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
    timeline = series.timeline(sums, steps, warmup_steps=warmup, steady_from=steady)
    return Reduced(ranks=ranks, timeline=timeline, loss=steps.loss, steps=steps)


class _Together:
    """What the ranks that were read so far make together, of the steps they all finished."""

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
        self.items = _added(self.items, items) if self._ranks else items
        self._loss = _added(self._loss, losses) if self._ranks else losses
        self.rank_steps += trace.steps
        self._ranks += 1

    def mean_loss(self) -> list[float | None]:
        means = (self._loss / self._ranks).tolist()
        rounded = means if self._ranks == 1 else [float(f"{mean:.7g}") for mean in means]
        return [mean if np.isfinite(mean) else None for mean in rounded]


def _added(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[Any]:
    common = min(len(one), len(other))
    return np.asarray(one[:common] + other[:common])


def _without_series(trace: RankTrace) -> RankTrace:
    """What is known of a rank before it is known which steps count."""
    if trace.sums:
        return trace
    sums = RankSums(steps=trace.steps, exchanged=trace.exchanged, warmup=NO_STEPS, counted=trace.whole)
    return RankTrace(
        rank=trace.rank,
        host=trace.host,
        phases_ns=trace.phases_ns,
        memory_peak_bytes=trace.memory_peak_bytes,
        sums=sums,
    )


def _sums(folder: RunFolder, log: RankLog, trace: RankTrace, first: int, last: int) -> RankSums:
    """A rank's steps, those from `first` to `last` counted; its log is read again as far as that asks for it."""
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
