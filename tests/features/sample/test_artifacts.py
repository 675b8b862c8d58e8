"""A trained model leaves its samples after the clock has stopped, and a failure there costs no result."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from support.records import make_plan
from support.tiny import RECIPE, LineFit, PointData, job

from trainmark.data.text import make, token_files
from trainmark.features.sample import after_training
from trainmark.launch import cluster_env, workers
from trainmark.record.errors import WorkloadError
from trainmark.record.events import Alive, ArtifactsLeft, End, EventTail, FlopsCounted, NoSample, Phases
from trainmark.record.machine import Artifact
from trainmark.record.recipe import Limits
from trainmark.record.sample import Sample, TextPart
from trainmark.train import loop, monitor, setup, worker
from trainmark.train.collectives import Collectives
from trainmark.train.ranks import Ranks
from trainmark.train.schedule import Position
from trainmark.workloads.sampling import SampleRequest, Trained

LEFT = Artifact(file="sample.txt", caption="the line it found")
SHOWING = replace(RECIPE, leave_sample=True)


class Painter(LineFit):
    """Writes its line down; `before` happens first."""

    def __init__(self, before: Callable[[SampleRequest], None] = lambda asked: None) -> None:
        self._before = before
        self.seen: tuple[bool, bool] | None = None

    def sample(self, trained: Trained, asked: SampleRequest) -> Sample:
        self._before(asked)
        self.seen = (trained.model.training, torch.is_grad_enabled())
        line = TextPart(text=str(trained.model(torch.ones(1))), caption=LEFT.caption)
        return Sample(parts=(line, replace(line, caption="again")), shown="1")


class SecondRank(Collectives):
    rank = 1
    world = 2

    def __init__(self) -> None:
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1


def trained(folder: Path, workload: LineFit, **changes: Any) -> loop.Job:
    ready = replace(job(folder, limits=Limits(steps=4), recipe=SHOWING), workload=workload, **changes)
    loop.train(ready, Position())
    return ready


def events(folder: Path) -> list[Any]:
    return list(EventTail(folder / "rank0.jsonl").new_events())


def last(folder: Path) -> Any:
    return events(folder)[-1]


def test_the_model_works_in_evaluation_mode_without_gradients(tmp_path: Path) -> None:
    workload = Painter()
    after_training.leave_sample(trained(tmp_path, workload), "done", tmp_path, tmp_path)
    assert workload.seen == (False, False)
    assert last(tmp_path) == ArtifactsLeft(artifacts=[LEFT, Artifact(file="sample-2.txt", caption="again")])
    assert (tmp_path / LEFT.file).read_bytes() == (tmp_path / "sample-2.txt").read_bytes()


def fail(asked: SampleRequest) -> None:
    raise RuntimeError("the vocoder is hoarse\nand more")


def refuse(asked: SampleRequest) -> None:
    raise WorkloadError("the disk is full")


def take_an_example(asked: SampleRequest) -> None:
    assert replace(asked, data=None).data_folder


def interrupt(asked: SampleRequest) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Painter(fail), "RuntimeError: the vocoder is hoarse"),
        (Painter(refuse), "the disk is full"),
        (Painter(interrupt), "interrupted"),
        (Painter(take_an_example), "the data of this run no longer exists, so there is no example; give an INPUT"),
    ],
)
def test_whatever_goes_wrong_is_written_down_and_nothing_more(
    tmp_path: Path, workload: LineFit, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    after_training.leave_sample(trained(tmp_path, workload), "done", tmp_path, tmp_path)
    assert last(tmp_path) == NoSample(reason=reason)
    assert "Traceback" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("reason", [monitor.INTERRUPTED, monitor.TERMINATED, monitor.NOT_FINITE])
def test_a_run_that_was_broken_off_leaves_none(tmp_path: Path, reason: int) -> None:
    workload = Painter()
    after_training.leave_sample(trained(tmp_path, workload), monitor.REASONS[reason], tmp_path, None)
    assert workload.seen is None


def test_a_recipe_that_asks_for_none_leaves_none(tmp_path: Path) -> None:
    workload = Painter()
    silent = replace(trained(tmp_path, workload), recipe=RECIPE)
    after_training.leave_sample(silent, "done", tmp_path, tmp_path)
    assert workload.seen is None


def test_other_ranks_say_they_live_and_wait(tmp_path: Path) -> None:
    workload, collectives = Painter(), SecondRank()
    ready = replace(trained(tmp_path, workload), collectives=collectives)
    after_training.leave_sample(ready, "done", tmp_path, None)
    assert workload.seen is None
    assert collectives.barriers == 1
    assert last(tmp_path).phase == "sample"


def test_a_sharded_network_makes_none_where_another_rank_cannot(tmp_path: Path) -> None:
    class FailingRank(Collectives):
        world = 2

        def reduce_max(self, *values: float) -> list[float]:
            return [1.0]

    ready = replace(trained(tmp_path, Painter()), collectives=FailingRank())
    ready.stepper.parallel.together = True
    after_training.leave_sample(ready, "done", tmp_path, tmp_path)
    assert last(tmp_path) == NoSample(reason="another rank could not make one; its log says why")


@pytest.mark.parametrize("vocabulary", [None, "tokenizer.json"])
def test_a_sharded_run_on_tokens_that_no_vocabulary_reads_is_complete(
    vocabulary: str | None, cli: Cli, tmp_path: Path
) -> None:
    make.make(tmp_path / "text", lines=400)
    (tmp_path / "text" / token_files.WORDS).unlink()
    if vocabulary:
        (tmp_path / "text" / vocabulary).write_text("{}", encoding="utf-8")
    words = (
        "--recipe",
        "smoke",
        "--set",
        "layers=2",
        "--set",
        "context=32",
        "--steps",
        "2",
        "--set",
        "leave_sample=yes",
    )
    where = ("--platform", "cpu", "--topology", "1x2", "--data", tmp_path / "text")
    done = cli("run", "llama8b", *words, *where, "--json", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["status"] == "valid" and "no-sample" in [doubt["code"] for doubt in record["doubts"]]


def test_samples_have_as_long_as_the_start_before_they_are_a_hang(tmp_path: Path) -> None:
    found = workers.WorkerProcesses(make_plan(), cluster_env.ClusterEnv(), tmp_path)
    found.ranks[0].pid, found.ranks[0].compute_ns, found.ranks[0].phase = 1, [10**9] * 9, "evaluate"
    assert found.limit_s == workers.TRAIN_LIMIT_S
    found.ranks[0].phase = "sample"
    assert found.limit_s == workers.INIT_LIMIT_S


@pytest.fixture
def as_worker() -> Iterator[None]:
    """What a worker changes in its process is put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    gc.unfreeze()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("as_worker")
def test_a_worker_samples_after_the_phases_and_before_the_end_with_its_data_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_at_sampling: list[bool] = []
    data = PointData(facts={"padding": 0.25})
    workload = Painter(lambda asked: open_at_sampling.append(not data.closed))
    ready = replace(job(tmp_path, limits=Limits(steps=4), data=data, recipe=SHOWING), workload=workload)
    monkeypatch.setattr(setup, "build_job", lambda *_, **__: (ready, Position()))
    worker.run_training(make_plan(), tmp_path, Ranks.from_environment(), ready.events)
    kinds = [type(event) for event in events(tmp_path) if not isinstance(event, Alive)]
    assert kinds[-4:] == [Phases, FlopsCounted, ArtifactsLeft, End]
    assert last(tmp_path).facts == {"padding": 0.25}
    assert open_at_sampling == [True]
    assert data.closed
