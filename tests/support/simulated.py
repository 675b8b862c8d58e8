"""Makes records whose step times are drawn, so that a test knows how fast each run truly is."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.records import make_record
from trainmark.record.record import Record
from trainmark.record.timeline import RankTrace, Timeline

STEP_MS = 100.0


def run(
    draw: np.random.Generator,
    run_id: str = "drawn",
    *,
    speed: float = 1.0,
    between: float = 0.0,
    steps: int = 100,
    noise: float = 0.02,
    correlation: float = 0.0,
    **changes: Any,
) -> Record:
    """One run of steps that resemble their neighbours; `between` is how far whole runs lie apart, as a deviation."""
    shocks = draw.normal(0, noise * np.sqrt(1 - correlation**2), steps)
    unrest = np.empty(steps)
    last = draw.normal(0, noise)
    for step in range(steps):
        last = unrest[step] = correlation * last + shocks[step]
    own = np.exp(draw.normal(0, between)) / speed if between else 1 / speed
    compute_ms = STEP_MS * own * np.maximum(1 + unrest, 0.05)
    trace = RankTrace(
        rank=0,
        host="node-a",
        phases_ns={"startup": 10**9, "init": 10**9, "evaluate": 10**9},
        wait_ns=[1_000_000] * steps,
        compute_ns=[int(1e6 * value) for value in compute_ms],
        items=[32] * steps,
        memory_peak_bytes=2**31,
    )
    return make_record(run_id=run_id, timeline=Timeline(ranks=(trace,)), **changes)


def repeats(draw: np.random.Generator, count: int, name: str = "drawn", **changes: Any) -> list[Record]:
    return [run(draw, f"{name}-{number}", **changes) for number in range(count)]
