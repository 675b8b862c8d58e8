"""The time of a run: seconds per phase, items trained, step series per rank."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import add, sub
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainmark.record.events import Steps
from trainmark.record.foreign_files import open_plain
from trainmark.record.numbers import Count, Finite

PHASES = ("startup", "init", "warmup", "data_wait", "compute", "evaluate", "checkpoint", "restart", "other")
"""They never overlap and sum to the end-to-end time."""

Floats = npt.NDArray[np.float64]


class StepSums(NamedTuple):
    """Some of a rank's steps added up."""

    wait_ns: Count = 0
    compute_ns: Count = 0
    exchange_ns: Count = 0
    items: Count = 0

    def __add__(self, other: object) -> StepSums:
        return StepSums(*map(add, self, other)) if isinstance(other, StepSums) else NotImplemented

    def __sub__(self, other: StepSums) -> StepSums:
        return StepSums(*map(sub, self, other))


NO_STEPS = StepSums()


@dataclass(frozen=True, kw_only=True)
class RankSums:
    """All of a rank's steps added up, where their series are too long to be kept."""

    steps: Count
    exchanged: Count
    """Steps with a measured exchange."""
    warmup: StepSums
    counted: StepSums
    """After the warm-up, those that all ranks finished."""
    rest: StepSums = NO_STEPS
    """Last steps that not all ranks finished."""


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank's raw series, in whole nanoseconds so that sums are exact."""

    rank: int
    host: str = ""
    phases_ns: Mapping[str, int] = field(default_factory=dict)
    """Phases that are not made of steps: startup, init, evaluate, checkpoint, restart, other."""
    wait_ns: Sequence[int] = ()
    compute_ns: Sequence[int] = ()
    exchange_ns: Sequence[int] = ()
    """The exposed exchange within each computation; empty where not measured."""
    items: Sequence[int] = ()
    memory_peak_bytes: int | None = None
    sums: RankSums | None = None
    """Of a long run: there only the slowest rank has series, of the steps all ranks finished."""

    @property
    def steps(self) -> int:
        return self.sums.steps if self.sums else len(self.compute_ns)

    @property
    def exchanged(self) -> int:
        """Steps with a measured exchange."""
        return self.sums.exchanged if self.sums else len(self.exchange_ns)

    @property
    def busy_ns(self) -> int:
        """Time of all its steps, waiting included; the rank with the most sets the run's time."""
        return self.whole.wait_ns + self.whole.compute_ns

    @cached_property
    def whole(self) -> StepSums:
        """All its steps added up."""
        if self.sums:
            return self.sums.warmup + self.sums.counted + self.sums.rest
        return self.part(slice(None))

    def part(self, steps: slice) -> StepSums:
        """Some of the steps it has series of, added up."""
        return StepSums(*(sum(kept[steps]) for kept in (self.wait_ns, self.compute_ns, self.exchange_ns, self.items)))


class Skew(NamedTuple):
    slow: RankTrace
    fast: RankTrace
    factor: float
    """Ratio of their times, beyond what more items explain."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A run's time as its slowest rank saw it, and its items as all ranks counted them."""

    ranks: tuple[RankTrace, ...]
    warmup_steps: int = 0
    """Steps left out of throughput; 0 in a full run, whose throughput covers every step."""
    steady_from: int = 0
    """The step from which the series is steady; intervals and drift are judged from there on."""
    items_of_steps: Sequence[int] = ()
    """Of all ranks together, where only the slowest rank's own series are kept."""

    @cached_property
    def slowest(self) -> RankTrace:
        return max(self.ranks, key=lambda trace: trace.busy_ns)

    @cached_property
    def steps(self) -> int:
        """Steps every rank finished; the last one of a run cut short may be missing on some."""
        return min(trace.steps for trace in self.ranks)

    @cached_property
    def step_items(self) -> Floats:
        """Items of each counted step, summed over ranks."""
        if len(self.items_of_steps):
            return self._after_warmup(self.items_of_steps)
        return np.asarray(sum(self._after_warmup(trace.items) for trace in self.ranks))

    @cached_property
    def compute_s(self) -> Floats:
        return self._after_warmup(self.slowest.compute_ns) / 1e9

    @cached_property
    def step_s(self) -> Floats:
        """Each counted step with its data wait."""
        return (self._after_warmup(self.slowest.wait_ns) + self._after_warmup(self.slowest.compute_ns)) / 1e9

    @property
    def items(self) -> int:
        return sum(self.sum_counted(trace).items for trace in self.ranks)

    @cached_property
    def exchange_known(self) -> bool:
        return bool(self.ranks) and all(trace.exchanged >= self.steps for trace in self.ranks)

    @cached_property
    def exchange_s(self) -> Floats:
        """Of each counted step, the exchange with other ranks that computing did not hide."""
        return self._after_warmup(self.slowest.exchange_ns) / 1e9

    @cached_property
    def skew(self) -> Skew | None:
        """The two ranks whose own computing differs most; None where fewer than two computed.

        All ranks take equally long for a step, as the fast ones wait for the slow one inside their exchange: it is left
        out where it was measured. A rank that took longer because it was given more items is not slow.
        """
        if len(self.ranks) < 2:
            return None
        own = np.array([self.own_ns(trace) for trace in self.ranks])
        items = np.array([float(self.sum_counted(trace).items) for trace in self.ranks])
        if own.min() <= 0 or items.min() <= 0:
            return None
        # of 100,000 ranks only the Pareto fronts of time and time per item are paired
        slow, fast = _pareto_front(-own, -own / items), _pareto_front(own, own / items)
        factors = own[slow, None] / own[fast] / np.maximum(1.0, items[slow, None] / items[fast])
        row, column = np.unravel_index(int(factors.argmax()), factors.shape)
        return Skew(self.ranks[slow[row]], self.ranks[fast[column]], float(factors[row, column]))

    def own_ns(self, trace: RankTrace) -> float:
        """A rank's computing in the counted steps, without the exchange in which it waits for slower ranks."""
        counted = self.sum_counted(trace)
        return float(counted.compute_ns - counted.exchange_ns if self.exchange_known else counted.compute_ns)

    def sum_counted(self, trace: RankTrace) -> StepSums:
        return trace.sums.counted if trace.sums else trace.part(slice(self.warmup_steps, self.steps))

    @cached_property
    def phases_ns(self) -> dict[str, int]:
        trace = self.slowest
        warmup = trace.sums.warmup if trace.sums else trace.part(slice(self.warmup_steps))
        counted = trace.whole - warmup
        return {
            **dict.fromkeys(PHASES, 0),
            **trace.phases_ns,
            "warmup": warmup.wait_ns + warmup.compute_ns,
            "data_wait": counted.wait_ns,
            "compute": counted.compute_ns,
        }

    @property
    def settling_ns(self) -> int:
        """What the steps before the first steady one took."""
        trace, early = self.slowest, slice(self.steady_from)
        return int(sum(trace.wait_ns[early])) + int(sum(trace.compute_ns[early]))

    def seconds(self, *phases: str) -> float:
        return sum(self.phases_ns[phase] for phase in phases) / 1e9

    def steady(self, counted: Floats) -> Floats:
        """The steady part of a series of counted steps."""
        return counted[self.steady_from - self.warmup_steps :]

    def _after_warmup(self, values: Sequence[int]) -> Floats:
        return np.asarray(values[self.warmup_steps : self.steps], dtype=np.float64)


def _pareto_front(one: Floats, other: Floats) -> npt.NDArray[np.intp]:
    """Indices, in order, of the points that no other point dominates."""
    order = np.lexsort((other, one))
    least_before = np.concatenate(([np.inf], np.minimum.accumulate(other[order])[:-1]))
    return np.sort(order[other[order] < least_before])


# -- series too long for a record: a file beside it, and means over neighbours in it

MAX_INSIDE = 10_000
"""Steps of all ranks together that a record keeps itself."""
MAX_POINTS = 1000
"""Means that represent a longer series, an eighth of them for the part before it is steady."""
MAX_STEPS = 20_000_000
"""No series is longer; a damaged count must not take all memory."""
ENDING = ".series.jsonl.gz"
BLOCK = 4096
"""Steps per line of the file."""
MAX_LINE_BYTES = 1 << 20

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Steps)


class SeriesFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file with the series of a record."""

    name: str
    sha256: str
    """Of its lines, as zcat gives them."""
    steps: Count


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """The series as means of neighbouring steps."""

    wait_ns: list[Count]
    compute_ns: list[Count]
    exchange_ns: list[Count] = []
    items: list[Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]]
    loss: list[Finite | None]
    """None where any of them was not finite."""


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """The series of a long run, over the steps that all ranks finished."""

    wait_ns: Sequence[int]
    """Of the slowest rank, as are the two that follow."""
    compute_ns: Sequence[int]
    exchange_ns: Sequence[int] = ()
    items: Sequence[int]
    """Of all ranks together."""
    loss: Sequence[float | None]
    """The mean over all ranks."""

    def lines(self) -> Iterator[bytes]:
        """The lines of its file: the steps as events of a rank."""
        for first in range(0, len(self.compute_ns), BLOCK):
            parts = {name: list(values[first : first + BLOCK]) for name, values in vars(self).items()}
            yield _ENCODER.encode(Steps(first=first, **parts)) + b"\n"


def describe_file(run_id: str, steps: StepSeries) -> SeriesFile:
    digest = hashlib.sha256()
    for line in steps.lines():
        digest.update(line)
    return SeriesFile(name=run_id + ENDING, sha256=digest.hexdigest(), steps=len(steps.compute_ns))


def pack_series(steps: StepSeries) -> bytes:
    return gzip.compress(b"".join(steps.lines()), mtime=0)


def read_series(path: Path, expected: SeriesFile) -> StepSeries:
    """The series in a file; ValueError where it is not the expected one, OSError where it cannot be read."""
    digest = hashlib.sha256()
    found: dict[str, Any] = {name: array("q") for name in ("wait_ns", "compute_ns", "exchange_ns", "items")}
    found["loss"] = []
    try:
        with open_plain(path) as packed, gzip.open(packed) as file:
            while line := file.readline(MAX_LINE_BYTES):
                digest.update(line)
                block, known = _DECODER.decode(line), len(found["compute_ns"])
                if block.first != known or known + len(block.compute_ns) > expected.steps:
                    raise ValueError("it has other steps than the record says")
                for name, kept in found.items():
                    kept.extend(getattr(block, name))
    except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.MsgspecError, OverflowError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if digest.hexdigest() != expected.sha256 or len(found["exchange_ns"]) not in (0, len(found["compute_ns"])):
        raise ValueError("its SHA-256 is not the one on the record")
    return StepSeries(**{**found, "exchange_ns": found["exchange_ns"] or ()})


def thin_series(steps: StepSeries, steady_from: int) -> Points:
    """At most MAX_POINTS means, none of which mixes steady steps with others."""
    ends = _ends(len(steps.compute_ns), steady_from)

    def means(values: Sequence[float | None]) -> list[float]:
        numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return [float(numbers[start:end].mean()) for start, end in pairwise(ends)] if len(values) else []

    return Points(
        wait_ns=[round(mean) for mean in means(steps.wait_ns)],
        compute_ns=[round(mean) for mean in means(steps.compute_ns)],
        exchange_ns=[round(mean) for mean in means(steps.exchange_ns)],
        items=[float(f"{mean:.10g}") for mean in means(steps.items)],
        loss=[float(f"{mean:.7g}") if np.isfinite(mean) else None for mean in means(steps.loss)],
    )


def expand_means(points: Points, count: int, steady_from: int) -> StepSeries:
    """Every step as the mean it is part of; ValueError where there are not as many means as there would be."""
    if not 0 < count <= MAX_STEPS:
        raise ValueError(f"a series of {count} steps is not kept in a file")
    lengths = np.diff(_ends(count, steady_from))
    there: list[Sequence[Any]] = [
        points.wait_ns,
        points.compute_ns,
        points.items,
        points.loss,
        *filter(None, [points.exchange_ns]),
    ]
    if any(len(means) != len(lengths) for means in there):
        raise ValueError(f"{count} steps are not thinned to so many means")

    def each(values: Sequence[int]) -> Sequence[int]:
        return array("q", np.repeat(np.asarray(values, dtype=np.int64), lengths).tobytes()) if values else ()

    return StepSeries(
        wait_ns=each(points.wait_ns),
        compute_ns=each(points.compute_ns),
        exchange_ns=each(points.exchange_ns),
        items=each([round(mean) for mean in points.items]),
        loss=[value for value, length in zip(points.loss, lengths.tolist(), strict=True) for _ in range(length)],
    )


def _ends(count: int, steady_from: int) -> list[int]:
    """Where the parts begin that are thinned to one mean each, and where the last of them ends."""
    first = min(steady_from, count)
    early = min(first, MAX_POINTS // 8)
    late = min(count - first, MAX_POINTS - early)
    borders = [first * number // early for number in range(early)]
    borders += [first + (count - first) * number // late for number in range(late)]
    return [*borders, count]


def build_timeline(ranks: Sequence[RankTrace], steps: StepSeries, *, warmup_steps: int, steady_from: int) -> Timeline:
    """A timeline of ranks with sums, the slowest with the series."""
    slowest = Timeline(ranks=tuple(ranks)).slowest
    long = replace(slowest, wait_ns=steps.wait_ns, compute_ns=steps.compute_ns, exchange_ns=steps.exchange_ns)
    return Timeline(
        ranks=tuple(long if trace is slowest else trace for trace in ranks),
        warmup_steps=warmup_steps,
        steady_from=steady_from,
        items_of_steps=steps.items,
    )


def extract_series(kept: Timeline, loss: Sequence[float | None]) -> StepSeries:
    slowest = kept.slowest
    return StepSeries(
        wait_ns=slowest.wait_ns,
        compute_ns=slowest.compute_ns,
        exchange_ns=slowest.exchange_ns,
        items=kept.items_of_steps,
        loss=loss,
    )
