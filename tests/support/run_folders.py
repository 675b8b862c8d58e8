"""Writes the folder of a run, as its ranks would have left it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmark.record import events, gather
from trainmark.record.events import EventWriter
from trainmark.record.plan import Plan
from trainmark.record.record import Record

MS = 1_000_000


class Folder:
    """A run folder as a launcher and its workers leave it."""

    def __init__(self, path: Path, plan: Plan, **changes: Any) -> None:
        self.path = path
        head = {
            "run_id": "a-run",
            "created": "2026-01-01T00:00:00Z",
            "group": None,
            "item": "images",
            "target": {"name": "acc1", "unit": "%", "better": "higher"},
            "reference_global_batch": 256,
            **changes,
        }
        (path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
        (path / "run.json").write_text(json.dumps(head), encoding="utf-8")

    def rank(
        self,
        rank: int,
        compute_ms: list[int],
        *,
        ended: str | None = "the target is reached",
        items: int | list[int] = 8,
        exchange_ms: list[int] | None = None,
        loss: list[float | None] | None = None,
        values: dict[str, float] | None = None,
        facts: dict[str, float] | None = None,
        also: Sequence[events.Event] = (),
        **failed: Any,
    ) -> None:
        every = [items] * len(compute_ms) if isinstance(items, int) else items
        log = EventWriter(self.path / f"rank{rank}.jsonl")
        log.write(events.Begin(rank=rank, host="here", pid=1, startup_ns=2 * MS))
        log.write(events.Ready(steps_per_epoch=100, first_step=0))
        for first in range(0, len(compute_ms), 7):
            some = compute_ms[first : first + 7]
            log.write(
                events.Steps(
                    first=first,
                    wait_ns=[MS] * len(some),
                    compute_ns=[ms * MS for ms in some],
                    items=every[first : first + 7],
                    loss=(loss or [1.0] * len(compute_ms))[first : first + 7],
                    **({"exchange_ns": [ms * MS for ms in exchange_ms[first : first + 7]]} if exchange_ms else {}),
                )
            )
        values = values or {"acc1": 80.0}
        log.write(events.Evaluated(step=50, epoch=0.5, values=values, samples=100, elapsed_ns=77 * MS))
        if failed:
            log.write(events.Failed(rank=rank, at_ns=5, **failed))
        if ended:
            phases = {"startup": 2 * MS, "init": 3 * MS, "evaluate": 100 * MS, "other": 5 * MS}
            log.write(events.Phases(phases_ns=phases, memory_peak_bytes=2**30 * (rank + 1)))
            for event in also:
                log.write(event)
            log.write(events.End(ended=ended, skipped=[], facts=facts or {}))

    def record(self) -> Record:
        record = gather.gather_record(self.path)
        assert Record.from_json(json.loads(record.dumps())) == record
        return record
