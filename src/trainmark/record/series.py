"""Step series too long for a record: a file beside it, and means over neighbours in it."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from trainmark.record.events import Steps
from trainmark.record.numbers import Count, Finite
from trainmark.record.timeline import Floats, RankTrace, Timeline

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
            part = slice(first, first + BLOCK)
            block = Steps(
                first=first,
                wait_ns=list(self.wait_ns[part]),
                compute_ns=list(self.compute_ns[part]),
                exchange_ns=list(self.exchange_ns[part]),
                items=list(self.items[part]),
                loss=list(self.loss[part]),
            )
            yield _ENCODER.encode(block) + b"\n"


def describe_file(run_id: str, steps: StepSeries) -> SeriesFile:
    digest = hashlib.sha256()
    for line in steps.lines():
        digest.update(line)
    return SeriesFile(name=run_id + ENDING, sha256=digest.hexdigest(), steps=len(steps.compute_ns))


def pack_series(steps: StepSeries) -> bytes:
    """The content of the file."""
    return gzip.compress(b"".join(steps.lines()), mtime=0)


def read(path: Path, expected: SeriesFile) -> StepSeries:
    """The series in a file; ValueError where it is not the expected one, OSError where it cannot be read."""
    digest = hashlib.sha256()
    wait_ns, compute_ns, exchange_ns, items = (array("q") for _ in range(4))
    loss: list[float | None] = []
    try:
        with gzip.open(path) as file:
            while line := file.readline(MAX_LINE_BYTES):
                digest.update(line)
                block = _DECODER.decode(line)
                if block.first != len(compute_ns) or block.first + len(block.compute_ns) > expected.steps:
                    raise ValueError("it has other steps than the record says")
                for kept, new in (
                    (wait_ns, block.wait_ns),
                    (compute_ns, block.compute_ns),
                    (exchange_ns, block.exchange_ns),
                    (items, block.items),
                ):
                    kept.extend(new)
                loss += block.loss
    except (EOFError, zlib.error, gzip.BadGzipFile, msgspec.MsgspecError, OverflowError) as error:
        raise ValueError(f"it is damaged: {error}") from error
    if digest.hexdigest() != expected.sha256 or len(exchange_ns) not in (0, len(compute_ns)):
        raise ValueError("its SHA-256 is not the one on the record")
    return StepSeries(wait_ns=wait_ns, compute_ns=compute_ns, exchange_ns=exchange_ns or (), items=items, loss=loss)


def thin_series(steps: StepSeries, steady_from: int) -> Points:
    """At most MAX_POINTS means, none of which mixes steady steps with others."""
    ends = _ends(len(steps.compute_ns), steady_from)

    def whole(values: Sequence[int]) -> list[int]:
        return [round(mean) for mean in _means(np.asarray(values, dtype=np.float64), ends)] if len(values) else []

    loss = _means(np.array([np.nan if value is None else value for value in steps.loss], dtype=np.float64), ends)
    return Points(
        wait_ns=whole(steps.wait_ns),
        compute_ns=whole(steps.compute_ns),
        exchange_ns=whole(steps.exchange_ns),
        items=[float(f"{mean:.10g}") for mean in _means(np.asarray(steps.items, dtype=np.float64), ends)],
        loss=[float(f"{mean:.7g}") if np.isfinite(mean) else None for mean in loss],
    )


def expand_means(points: Points, count: int, steady_from: int) -> StepSeries:
    """Every step as the mean it is part of; ValueError where there are not as many means as there would be."""
    if not 0 < count <= MAX_STEPS:
        raise ValueError(f"a series of {count} steps is not kept in a file")
    lengths = np.diff(_ends(count, steady_from))
    wanted = {len(lengths)}
    if {len(points.wait_ns), len(points.compute_ns), len(points.items), len(points.loss)} != wanted or (
        points.exchange_ns and {len(points.exchange_ns)} != wanted
    ):
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
    """The series of a timeline of sums."""
    slowest = kept.slowest
    return StepSeries(
        wait_ns=slowest.wait_ns,
        compute_ns=slowest.compute_ns,
        exchange_ns=slowest.exchange_ns,
        items=kept.items_of_steps,
        loss=loss,
    )


def _ends(count: int, steady_from: int) -> list[int]:
    """Where the parts begin that are thinned to one mean each, and where the last of them ends."""
    first = min(steady_from, count)
    early = min(first, MAX_POINTS // 8)
    late = min(count - first, MAX_POINTS - early)
    borders = [first * number // early for number in range(early)] if early else []
    borders += [first + (count - first) * number // late for number in range(late)] if late else []
    return [*borders, count]


def _means(values: Floats, ends: Sequence[int]) -> list[float]:
    return [float(values[start:end].mean()) for start, end in pairwise(ends)]
