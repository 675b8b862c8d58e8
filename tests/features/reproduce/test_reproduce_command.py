"""`trainmark reproduce`: runs the same plan again and compares it with the first."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN, Cli
from support.records import in_environment, make_record, make_timeline

from trainmark.data import synthetic
from trainmark.features.reproduce import command as reproduce, rebuild
from trainmark.launch import session
from trainmark.launch.options import RunOptions
from trainmark.record.errors import NotReadyError, TrainmarkError, UsageError, error_from_exit_code
from trainmark.record.plan import DataChoice, Plan
from trainmark.record.record import Record
from trainmark.record.store import Store


def make_original(folder: Path, **changes: Any) -> Record:
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
            return session.Result(error=error_from_exit_code(self.code, ""))
        timeline = make_timeline(compute_ms=1000 / self.speed)
        records = [
            Record(**{**vars(make_record(run_id=f"again-{number}", timeline=timeline)), "plan": plan})
            for number in range(options.repeat)
        ]
        for record in records:
            session.open_store(options).add(record)
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
    first = make_original(tmp_path)
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
    store.add(make_original(tmp_path))
    assert call(Machine(), monkeypatch, store, "last", "--threshold", "0%", "--gate", "--repeat", "3", "--json") == 7
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "inconclusive"
    assert document["b"]["runs"] == ["again-0", "again-1", "again-2"]


def test_a_run_that_fails_ends_with_its_own_exit_code(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add(make_original(tmp_path))
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
    store.add(make_original(tmp_path, **changes))
    machine = Machine()
    with pytest.raises(kind, match=said):
        call(machine, monkeypatch, store, "last")
    assert machine.plans == []


@pytest.mark.parametrize("words", [("--metric", "p_cor"), ("--threshold", "x"), ("--repeat", "0")])
def test_a_wrong_word_ends_before_the_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    store.add(make_original(tmp_path))
    machine = Machine()
    with pytest.raises(UsageError):
        call(machine, monkeypatch, store, "last", *words)
    assert machine.plans == []


def test_a_published_row_tells_no_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is a published row, and only runs can stand here"):
        call(Machine(), monkeypatch, store, "published:flagperf-a100-resnet50-1x1")


def test_the_embedded_data_of_another_machine_is_this_machines_own(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    own = synthetic.folder("imagenet")
    store.add(make_original(Path("/home/other/.cache/trainmark") / own.name))
    machine = Machine()
    call(machine, monkeypatch, store, "last")
    assert [plan.data.folder for plan in machine.plans] == [str(own)]


def test_data_of_the_other_kind_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    store.add(make_original(Path("/gone")))
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


OWN = 'title = "Own"\ndevice_type = "cpu"\ncollectives = "gloo"\nprecisions = ["fp32"]\n'


def make_with_platform_file(tmp_path: Path, folder: Path, **platform: Any) -> Record:
    record = make_original(tmp_path, plan={"platform": str(folder / "own.toml")})
    info = {"name": "own", "sha256": hashlib.sha256(OWN.encode()).hexdigest(), "content": OWN, **platform}
    return in_environment(record, platform=info)


def test_a_platform_file_that_lies_where_it_lay_is_used_by_who_trusts_it(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(OWN, encoding="utf-8")
    again = rebuild.rebuild_plan([make_with_platform_file(tmp_path, tmp_path)], trust=True)
    assert again.platform == str(tmp_path / "own.toml")


@pytest.mark.parametrize("there", [None, OWN + "# changed\n"])
def test_a_platform_file_of_a_record_is_written_down_and_used_only_by_the_users_word(
    there: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if there:
        (elsewhere / "own.toml").write_text(there, encoding="utf-8")
    record = make_with_platform_file(tmp_path, elsewhere)
    with pytest.raises(NotReadyError, match=r"modules it names, then add --platform ./own-") as no:
        rebuild.rebuild_plan([record])
    [written] = tmp_path.glob("own-*.toml")
    assert written.name in str(no.value)
    assert written.read_text(encoding="utf-8") == OWN
    again = rebuild.rebuild_plan([record], platform=f"./{written.name}")
    assert again.platform == str(written)


def test_without_the_file_or_its_content_the_user_must_name_one(tmp_path: Path) -> None:
    record = make_with_platform_file(tmp_path, tmp_path / "gone", content=None)
    with pytest.raises(NotReadyError, match=r"name one with --platform FILE\.toml"):
        rebuild.rebuild_plan([record])
