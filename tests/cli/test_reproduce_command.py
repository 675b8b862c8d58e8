"""`trainmark reproduce`: the same plan again, held against the first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN, Cli
from records import make_record, make_timeline

from trainmark.cli import reproduce
from trainmark.datasets import synthetic
from trainmark.launch import session
from trainmark.launch.options import RunOptions
from trainmark.spec.errors import NotReadyError, TrainmarkError, UsageError
from trainmark.spec.plan import DataChoice, Plan
from trainmark.spec.record import Record
from trainmark.store.store import Store


def original(folder: Path, **changes: Any) -> Record:
    """A run on data that lies in a folder of this machine."""
    plan = {"data": DataChoice(name="imagenet", folder=str(folder), synthetic=True), **changes.pop("plan", {})}
    return make_record(run_id="resnet50-first", plan=plan, timeline=make_timeline(compute_ms=1000), **changes)


class Machine:
    """Stands where runs are made: remembers the plans, and is so many times as fast as the first one was."""

    def __init__(self, speed: float = 1.0, code: int = 0) -> None:
        self.plans: list[Plan] = []
        self.speed, self.code = speed, code

    def run_plan(self, plan: Plan, options: RunOptions, **_: Any) -> session.Result:
        self.plans.append(plan)
        if self.code:
            return session.Result(exit_code=self.code)
        timeline = make_timeline(compute_ms=1000 / self.speed)
        records = [
            Record(**{**vars(make_record(run_id=f"again-{number}", timeline=timeline)), "plan": plan})
            for number in range(options.repeat)
        ]
        for record in records:
            session.store_of(options).add(record)
        return session.Result(records=tuple(records))


def call(machine: Machine, monkeypatch: pytest.MonkeyPatch, store: Store, *words: str) -> int:
    monkeypatch.setattr(session, "run_plan", machine.run_plan)
    parser = argparse.ArgumentParser()
    reproduce.add_arguments(parser)
    return reproduce.run(parser.parse_args(["--store", str(store.folder), *words]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize(
    ("speed", "verdict", "code"), [(1.0, "Inconclusive", 0), (2.0, "Faster", 0), (0.5, "Slower", 6)]
)
def test_the_plan_is_run_again_and_the_verdict_decides_the_exit_code(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    speed: float,
    verdict: str,
    code: int,
) -> None:
    first = original(tmp_path)
    store.add(first)
    machine = Machine(speed)
    assert call(machine, monkeypatch, store, "first", "--threshold", "2%") == code
    assert machine.plans == [first.plan]
    out, err = capsys.readouterr()
    assert f"{verdict}: B's p_core is" in out
    assert "run resnet50-first" in out
    assert f"record: {store.path('again-0')}" in err


def test_what_cannot_be_told_ends_a_gated_job(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add(original(tmp_path))
    assert call(Machine(), monkeypatch, store, "last", "--threshold", "0%", "--gate", "--repeat", "3", "--json") == 7
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "inconclusive"
    assert document["b"]["runs"] == ["again-0", "again-1", "again-2"]


def test_a_run_that_fails_ends_with_its_own_exit_code(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add(original(tmp_path))
    assert call(Machine(code=4), monkeypatch, store, "last") == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"status": "incomplete", "ended": "rank 0 died"}, UsageError, "there is no result to reproduce"),
        ({"plan": {"topology": "2x8"}}, UsageError, "took 2x8, and reproduce works on one machine"),
        ({"plan": {"resume_from": "/runs/x"}}, UsageError, "went on from a checkpoint"),
        ({"plan": {"init_from": "/gone.pt", "init_sha256": "ab"}}, NotReadyError, r"weights from /gone\.pt"),
        (
            {"plan": {"data": DataChoice(name="imagenet", folder="/gone", synthetic=False)}},
            NotReadyError,
            "data folder /gone is not on this machine; name it with --data",
        ),
    ],
)
def test_a_run_that_cannot_be_reproduced_is_a_sentence_before_anything_is_started(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    kind: type[TrainmarkError],
    said: str,
) -> None:
    store.add(original(tmp_path, **changes))
    machine = Machine()
    with pytest.raises(kind, match=said):
        call(machine, monkeypatch, store, "last")
    assert machine.plans == []


@pytest.mark.parametrize("words", [("--metric", "p_cor"), ("--threshold", "x"), ("--repeat", "0")])
def test_a_wrong_word_ends_before_the_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    store.add(original(tmp_path))
    machine = Machine()
    with pytest.raises(UsageError):
        call(machine, monkeypatch, store, "last", *words)
    assert machine.plans == []


def test_a_published_row_tells_no_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is a published row, which tells no plan"):
        call(Machine(), monkeypatch, store, "published:flagperf-a100-resnet50-1x1")


def test_the_embedded_data_of_another_machine_is_this_machines_own(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    own = synthetic.folder("imagenet")
    store.add(original(Path("/home/other/.cache/trainmark") / own.name))
    machine = Machine()
    call(machine, monkeypatch, store, "last")
    assert [plan.data.folder for plan in machine.plans] == [str(own)]


def test_data_of_the_other_kind_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    store.add(original(Path("/gone")))
    with pytest.raises(UsageError, match="trained on synthetic data"):
        call(Machine(), monkeypatch, store, "last", "--data", str(real))


def test_a_real_run_is_reproduced_by_the_same_training(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    began = cli(*TINY_RUN, "--data", pictures, "--steps", "16", "--quiet")
    assert began.returncode == 0, began.stderr
    store = Store(tmp_path / "store")
    first = store.record("last")
    ended = cli("reproduce", first.run_id, "--quiet", "--gate", "--json")
    document = json.loads(ended.stdout)
    slower, unknown = document["verdict"] == "slower", document["verdict"] == "inconclusive"
    assert ended.returncode == (6 if slower else 7 if unknown else 0), ended.stderr
    (again,) = document["b"]["runs"]
    record = store.record(again)
    assert record.plan == first.plan
    assert record.loss == first.loss  # the same weights, order and arithmetic, not only the same words
    assert document["a"]["runs"] == [first.run_id]
    assert not [difference for difference in document["differences"] if difference["unlike"]]
