"""Ranks that die are started again from the newest checkpoint; the record says so, and no throughput holds the loss."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN
from support import tiny
from support.background import Started, ranks
from support.records import make_plan

from trainmark.record import events, gather
from trainmark.record.events import EventWriter
from trainmark.record.plan import Plan
from trainmark.record.recipe import Limits
from trainmark.record.record import Record, Restart
from trainmark.train import checkpoint, setup
from trainmark.train.collectives import Collectives
from trainmark.train.schedule import Position

MS = 1_000_000
INIT_MS, EVALUATE_MS, CHECKPOINT_MS = 30, 20, 5


class Rank:
    """Writes a rank's events as its workers would, by a clock of its own that is moved by hand."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank{rank}.jsonl"
        self.rank = rank
        self.now_ms = 0
        self.restarts = 0

    def begin(self, *, after_ms: int, first_step: int = 0) -> None:
        """A worker's first line, so long after the launcher's start or its predecessor's end."""
        self.now_ms += after_ms
        self.step = first_step
        self.events = EventWriter(self.path)
        self.phases = {"startup": self.now_ms * MS, "other": 0}
        self.events.write(
            events.Begin(rank=self.rank, host="here", pid=10 + self.restarts, startup_ns=self.now_ms * MS, restart=0)
        )
        if self.restarts:
            self.events.write(events.Resumed(step=first_step, epoch=0, damaged=[]))
        self.restarts += 1

    def ready(self) -> None:
        self.spend("init", INIT_MS)
        self.events.write(events.Ready(steps_per_epoch=10, first_step=self.step))

    def spend(self, phase: str, ms: int) -> None:
        self.now_ms += ms
        self.phases[phase] = self.phases.get(phase, 0) + ms * MS

    def train(self, steps: int, *, compute_ms: int = 9) -> None:
        self.events.write(
            events.Steps(
                first=self.step,
                wait_ns=[MS] * steps,
                compute_ns=[compute_ms * MS] * steps,
                exchange_ns=[MS] * steps,
                items=[8] * steps,
                loss=[float(self.step + index) for index in range(steps)],
            )
        )
        self.step += steps
        self.now_ms += steps * (1 + compute_ms)

    def evaluate_and_save(self, value: float = 50.0) -> None:
        self.spend("evaluate", EVALUATE_MS)
        self.events.write(
            events.Evaluated(step=self.step, epoch=1, values={"acc1": value}, samples=9, elapsed_ns=self.now_ms * MS)
        )
        self.spend("checkpoint", CHECKPOINT_MS)
        self.events.write(events.Saved(step=self.step, phases_ns=self.phases))

    def fail(self, sentence: str, *, consequence: bool = False) -> None:
        self.events.write(events.Phases(phases_ns=self.phases, memory_peak_bytes=1))
        self.events.write(
            events.Failed(
                rank=self.rank, exit_code=4, sentence=sentence, at_ns=self.now_ms * MS, consequence=consequence
            )
        )

    def end(self) -> None:
        self.events.write(events.Phases(phases_ns=self.phases, memory_peak_bytes=2**30))
        self.events.write(events.End(ended="the target is reached", skipped=[], facts={}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    head = {
        "run_id": "a-run",
        "created": "2026-01-01T00:00:00Z",
        "group": None,
        "item": "images",
        "target": {"name": "acc1", "unit": "%", "better": "higher"},
        "reference_global_batch": 256,
    }
    plan = make_plan(topology="1x2", limits=Limits())
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(head), encoding="utf-8")
    return tmp_path


def gathered(folder: Path) -> Record:
    record = gather.gather_record(folder)
    assert Record.from_json(json.loads(record.dumps())) == record
    return record


def doubt(record: Record, code: str) -> str | None:
    return {doubt.code: doubt.text for doubt in record.doubts}.get(code)


def until_killed(rank: Rank) -> None:
    """Ten steps that a checkpoint keeps, and four that it does not."""
    rank.begin(after_ms=100)
    rank.ready()
    rank.train(10)
    rank.evaluate_and_save()
    rank.train(4)


def test_steps_after_the_checkpoint_are_dropped_and_their_time_with_the_gap_is_a_phase(folder: Path) -> None:
    ranks = [Rank(folder, rank) for rank in (0, 1)]
    for rank in ranks:
        until_killed(rank)
        rank.begin(after_ms=700, first_step=10)
        rank.ready()
        rank.train(20)
        rank.evaluate_and_save(80.0)
        rank.end()
    record = gathered(folder)
    assert record.status == "valid"
    assert record.loss == [float(step) for step in range(30)]
    phases = {phase: ns // MS for phase, ns in record.timeline.phases_ns.items()}
    assert phases == {
        "startup": 100,
        "init": 2 * INIT_MS,
        "warmup": 0,
        "data_wait": 30,
        "compute": 270,
        "evaluate": 2 * EVALUATE_MS,
        "checkpoint": 2 * CHECKPOINT_MS,
        "restart": 4 * 10 + 700,
        "other": 0,
    }
    assert record.metrics["e2e_time"].value == pytest.approx(ranks[0].now_ms / 1000)
    # the same as a run that lost nothing
    assert record.metrics["p_core"].value == pytest.approx(2 * 8 * 30 / 0.270)
    assert record.metrics["p_whole"].value == pytest.approx(2 * 8 * 30 / 0.350)
    assert [evaluation.step for evaluation in record.quality.history] == [10, 30]
    assert record.restarts == (Restart(step=10, lost_s=0.74),)
    text = doubt(record, "restarted")
    assert text == "restarted 1 time, at step 10, 0.7 s lost, which no throughput holds"
    assert doubt(record, "resumed") is None


def test_a_run_without_a_checkpoint_begins_again_and_keeps_nothing(folder: Path) -> None:
    for number in (0, 1):
        rank = Rank(folder, number)
        rank.begin(after_ms=100)
        rank.ready()
        rank.train(7)
        rank.fail("it broke" if number else "rank 1 went away", consequence=not number)
        rank.begin(after_ms=50)
        rank.ready()
        rank.train(10)
        rank.evaluate_and_save()
        rank.end()
    record = gathered(folder)
    assert (record.status, record.timeline.steps) == ("valid", 10)
    assert record.timeline.phases_ns["startup"] == 100 * MS
    assert record.timeline.phases_ns["restart"] == (INIT_MS + 70 + 50) * MS
    assert sum(record.timeline.phases_ns.values()) == rank.now_ms * MS
    # the rank that failed is heard, not the one that noticed
    assert [(restart.step, restart.reason) for restart in record.restarts] == [(0, "it broke")]
    assert "; it broke" in (doubt(record, "restarted") or "")


def test_a_rank_that_died_before_it_wrote_of_the_checkpoint_still_has_phases_that_sum_up(folder: Path) -> None:
    for number in (0, 1):
        rank = Rank(folder, number)
        rank.begin(after_ms=100)
        rank.ready()
        rank.train(10)
        if number == 0:
            rank.evaluate_and_save()
        else:
            rank.now_ms += EVALUATE_MS + CHECKPOINT_MS
        rank.begin(after_ms=700, first_step=10)
        rank.ready()
        rank.train(20)
        rank.end()
        log = ranks(folder)[number]
        trace = log.trace()
        assert len(trace.compute_ns) == 30
        assert sum(trace.phases_ns.values()) + trace.busy_ns == rank.now_ms * MS


def test_a_new_worker_is_the_one_to_be_signalled_and_the_failure_before_it_is_over(folder: Path) -> None:
    rank = Rank(folder, 0)
    until_killed(rank)
    rank.fail("it broke")
    [log] = ranks(folder)
    assert (log.pid, bool(log.failed)) == (10, True)
    rank.begin(after_ms=700, first_step=10)
    [log] = ranks(folder)
    assert (log.pid, log.failed, log.phase) == (11, None, "init")


def test_a_line_cut_off_by_the_kill_does_not_spoil_the_next_worker_s_first(folder: Path) -> None:
    rank = Rank(folder, 0)
    until_killed(rank)
    with rank.path.open("ab") as file:
        file.write(b'{"event": "steps", "first": 14, "wait')
    rank.begin(after_ms=700, first_step=10)
    rank.ready()
    [log] = ranks(folder)
    assert (log.pid, len(log.compute_ns), log.torn) == (11, 10, False)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[str, int, int], Path]:
    """Makes a folder with a checkpoint of a run that began at one step and stood at another."""

    def keep(name: str, began_step: int, step: int) -> Path:
        (tmp_path / name).mkdir()
        stepper = tiny.job(tmp_path / name).stepper
        position = Position(step=step, epoch=1, began_step=began_step, trained_s=3.0)
        state = {"stepper": stepper.state(), "position": asdict(position)}
        return checkpoint.save(tmp_path / name / "checkpoints", step, state).parent

    return keep


def started_at(plan: Plan, own: Path, tmp_path: Path) -> tuple[int, int, float]:
    events = EventWriter(tmp_path / "rank0.jsonl")
    position = setup.find_start(plan, own, tiny.job(tmp_path).stepper, events, Collectives())
    return position.step, position.began_step, position.trained_s


def test_a_restarted_worker_goes_on_from_its_own_run_and_counts_on(
    tmp_path: Path, kept: Callable[[str, int, int], Path]
) -> None:
    own, other = kept("own", 6, 9), kept("other", 0, 6)
    assert started_at(make_plan(resume_from=str(other)), own, tmp_path) == (9, 6, 3.0)
    assert started_at(make_plan(), own, tmp_path) == (9, 6, 3.0)


def test_a_run_without_checkpoints_of_its_own_starts_as_it_was_asked_to(
    tmp_path: Path, kept: Callable[[str, int, int], Path]
) -> None:
    nothing, other = tmp_path / "checkpoints", kept("other", 0, 6)
    assert started_at(make_plan(), nothing, tmp_path) == (0, 0, 0.0)
    # what it resumes is another run: its own begins there
    assert started_at(make_plan(resume_from=str(other)), nothing, tmp_path) == (6, 6, 0.0)


def saved_steps(path: Path) -> list[int]:
    return [step for step, _ in ranks(path)[0].saved] if list(path.glob("rank0.jsonl")) else []


def test_a_killed_rank_is_started_again_and_the_run_ends_valid(environment: dict[str, str], pictures: Path) -> None:
    """Two ranks train 4 epochs of 48 pictures; one of them is killed once a checkpoint was made."""
    words = ["--set", "epochs=4", "--set", "checkpoint_every=1 epoch", "--set", "target=101", "--topology", "1x2"]
    run = Started(environment, *TINY_RUN, "--data", pictures, *words, "--max-restarts", "1")
    store, deadline = Path(environment["TRAINMARK_STORE"]), time.monotonic() + 90
    while not any(saved_steps(folder) for folder in (store / "runs").glob("*")):
        assert run.process.poll() is None, run.process.communicate()
        assert time.monotonic() < deadline, "no checkpoint was made"
        time.sleep(0.05)
    os.kill(run.pids()[1], signal.SIGKILL)
    code, out, err = run.end()
    assert code == 0, out + err
    [path] = (store / "records").glob("*.json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    record = Record.from_json(document)
    assert record.status == "valid"
    assert record.timeline.items == 4 * 48
    assert len(record.loss) == record.timeline.steps
    [restart] = record.restarts
    assert restart.step > 0
    assert "restarted 1 time, at step" in (doubt(record, "restarted") or "")
    assert record.timeline.phases_ns["restart"] > 0
    assert [evaluation.epoch for evaluation in record.quality.history] == sorted(
        {evaluation.epoch for evaluation in record.quality.history}
    )
