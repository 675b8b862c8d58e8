"""A run on a stream without epochs is trained by a worker, gathered, shown and held against itself like any other."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.records import make_plan
from support.tiny import RECIPE, LineFit, PointStream, job

from trainmark.record import gather
from trainmark.record.recipe import Limits, to_values
from trainmark.train import loop, setup, worker
from trainmark.train.ranks import Ranks
from trainmark.train.schedule import Position
from trainmark.view.describe import describe

STREAM = replace(RECIPE, epochs=0, steps=20, target=-1.0, evaluate_every="6 steps", checkpoint_every="never")


@pytest.fixture(autouse=True)
def _as_worker() -> Iterator[None]:
    """What a worker changes in its process is put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    gc.unfreeze()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "ended", "evaluated_at"),
    [
        (Limits(), "the recipe's cap of steps is reached", [6, 12, 18, 20]),
        (Limits(items=30), "the items asked for are done", [6]),
    ],
)
def test_a_stream_is_trained_gathered_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, ended: str, evaluated_at: list[int]
) -> None:
    def build_job(*_: object, **__: object) -> tuple[loop.Job, Position]:
        return job(tmp_path, recipe=STREAM, limits=limits, data=PointStream()), Position()

    monkeypatch.setattr(setup, "build_job", build_job)
    plan = make_plan(workload="linefit", recipe=to_values(STREAM), deviations=(), limits=limits)
    head = {"run_id": "a-run", "created": "2026-01-01T00:00:00Z", "group": None, "item": "points"}
    head |= {"target": asdict(LineFit.target), "reference_global_batch": 4}
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(head), encoding="utf-8")
    code = worker._run_task(worker.run_training, tmp_path, tmp_path / "plan.json", Ranks.from_environment())
    record = gather.gather_record(tmp_path)
    assert (code, record.status, record.ended) == (0, "valid", ended)
    assert [(evaluation.step, evaluation.epoch) for evaluation in record.quality.history] == [
        (step, None) for step in evaluated_at
    ]
    assert record.metrics["completed"].value == 100
    assert f"{evaluated_at[0]}      —" in describe(record, width=120)
