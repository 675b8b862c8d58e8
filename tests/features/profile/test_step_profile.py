"""Steps after those that count are looked at under torch's profiler, without a trace of it in the counted ones."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import TINY_RUN, Cli
from support.records import make_record
from torch import profiler

from trainmark.features.profile import after_training
from trainmark.record.language import translator
from trainmark.record.machine import OperatorUse, StepProfile
from trainmark.record.record import Record
from trainmark.view import facts

ENGLISH = translator("en")


def test_operators_are_summed_up_longest_first() -> None:
    left, right = torch.rand(300, 300), torch.rand(300, 300)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as watch:
        for _ in range(4):
            (left @ right).t().tanh()
    found = after_training.summarize(watch, steps=2, seconds=1.0, trace="")
    uses = {use.name: use for use in found.operators}
    assert uses["mm"].calls == uses["tanh"].calls == 4
    assert uses["tanh"].size_bytes >= 4 * left.nbytes
    assert found.launches == 8, "a view and memory are no work"
    assert [use.seconds for use in found.operators] == sorted((use.seconds for use in found.operators), reverse=True)
    assert not found.on_device and 0 < found.busy_s < 1 and 0 < found.idle < 1


def test_time_that_several_spans_cover_counts_once() -> None:
    assert after_training.measure_union([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert after_training.measure_union([]) == 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_step_that_fails_under_the_profiler_costs_no_result_of_one_rank(
    world: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(batch: object) -> None:
        raise RuntimeError("no memory is left to look with")

    job: Any = SimpleNamespace(
        clock=SimpleNamespace(steps=3),
        monitor=SimpleNamespace(report_alive=lambda phase, done: None),
        stepper=SimpleNamespace(model=torch.nn.Linear(1, 1), step=step),
        data=SimpleNamespace(train=lambda epoch, first: iter([1, 2])),
        device=SimpleNamespace(is_cpu=True),
        collectives=SimpleNamespace(rank=0, world=world),
    )
    position: Any = SimpleNamespace(epoch=0, step_in_epoch=0)
    with nullcontext() if world == 1 else pytest.raises(RuntimeError):
        after_training.work(job, position, "3 steps were done", tmp_path, replace(make_record().plan, profile=2))
    assert ("no memory is left" in capsys.readouterr().err) == (world == 1)


def profiled(record: Record, idle: float = 0.0, **seconds: float) -> Record:
    uses = [OperatorUse(name=name, calls=2, seconds=took) for name, took in seconds.items()]
    found = StepProfile(steps=2, seconds=1.0, busy_s=1 - idle, launches=4, operators=uses)
    environment = {name: getattr(record.environment, name) for name in record.environment.__struct_fields__}
    return replace(record, environment=type(record.environment)(**{**environment, "profile": found}))


@pytest.mark.parametrize(
    ("shares", "idle", "word"),
    [
        ({"addmm": 0.8, "copy_": 0.05}, 0.0, "matmuls"),
        ({"addmm": 0.4, "copy_": 0.3}, 0.0, "copies data"),
        ({"addmm": 0.4}, 0.5, "nothing ran in 50 %"),
        ({"addmm": 0.4, "_fused_adamw_": 0.4}, 0.0, "updates weights"),
        ({"addmm": 0.4, "c10d::allreduce_": 0.3}, 0.0, "exchanges gradients"),
    ],
)
def test_what_takes_the_most_is_advised_about_first(shares: dict[str, float], idle: float, word: str) -> None:
    record = profiled(make_record(), idle, **shares)
    found = record.environment.profile
    assert found is not None
    assert word in next(facts.suggest_speedups(found, record, ENGLISH))


def test_a_run_looks_where_time_goes_and_counts_the_same_steps(
    cli: Cli, environment: dict[str, str], pictures: Path
) -> None:
    done = cli(*TINY_RUN, "--data", pictures, "--steps", "4", "--profile", "2", "--json")
    assert done.returncode == 0, done.stderr
    record = Record.from_json(json.loads(done.stdout))
    found = record.environment.profile
    assert found is not None and found.steps == 2
    assert record.timeline.steps == 4 and len(record.loss) == 4, "looked-at steps do not count"
    assert any("convolution" in use.name for use in found.operators)
    folder = Path(environment["TRAINMARK_STORE"]) / "runs" / record.run_id
    trace = json.loads(gzip.decompress((folder / found.trace).read_bytes()))
    assert any("convolution" in event.get("name", "") for event in trace["traceEvents"])
    shown = cli("show", "last", "--all").stdout
    assert "Where a step's time goes" in shown and "launches a step" in shown
