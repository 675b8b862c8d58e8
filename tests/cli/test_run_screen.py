"""What `trainmark run` prints when it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.records import make_quality, make_record, make_timeline

from trainmark.analysis.published_lookup import find_subject
from trainmark.cli.main import main
from trainmark.cli.run import _print_result, resume_command
from trainmark.launch.session import Result
from trainmark.record.errors import NotReadyError
from trainmark.record.recipe import Limits
from trainmark.record.store import Store

INTERRUPTED = make_record(run_id="resnet50-smoke-1x1-fp32-20261117T120000-289591", status="incomplete",
                          ended="interrupted")  # fmt: skip


def a_checkpoint(store: Store) -> None:
    (store.runs / INTERRUPTED.run_id / "checkpoints" / "step-16").mkdir(parents=True)


def test_an_interrupted_run_that_left_a_checkpoint_says_how_to_go_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert resume_command(INTERRUPTED, store) is None
    a_checkpoint(store)
    assert resume_command(INTERRUPTED, store) == f"trainmark run --resume 289591 --store {tmp_path}"
    assert resume_command(make_record(run_id=INTERRUPTED.run_id), store) is None


def test_the_usual_store_need_not_be_named_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path))
    store = Store(tmp_path)
    a_checkpoint(store)
    assert resume_command(INTERRUPTED, store) == "trainmark run --resume 289591"


@pytest.mark.features
def test_the_sentence_comes_first_then_the_table_then_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    a_checkpoint(store)
    _print_result(Result(records=(INTERRUPTED,), left_out=("ViT-B/16 was left out.",)), store, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ResNet-50 (quick) was interrupted on this machine after 60 steps, at 5.78 images/s")
    assert lines[1:4] == ["ViT-B/16 was left out.", "", "resnet50 · quick"]
    ends = [line.partition(":")[0] for line in lines[-3:]]
    assert ends == ["record", "to resume", "page"]


def test_a_run_that_never_made_a_step_has_neither_table_nor_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    failed = make_record(status="incomplete", ended="data folder x is empty", timeline=make_timeline(steps=0))
    _print_result(Result(records=(failed,), error=NotReadyError("no device")), store, as_json=False)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "reports").exists()
    _print_result(Result(records=(failed,), error=NotReadyError("no device")), store, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out)["ended"] == "data folder x is empty" and said.err == ""
    _print_result(Result(records=(make_record(), failed), error=NotReadyError("no device")), store, as_json=False)
    assert "did not finish" not in capsys.readouterr().out


@pytest.mark.features
def test_repeats_are_one_document_with_group_and_stability_that_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = make_quality(value=80.0, reached=True)
    runs = tuple(
        make_record(run_id=f"r-{number}", group="5a8c9d0e", quality=quality, plan={"limits": Limits()})
        for number in range(5)
    )
    _print_result(Result(records=runs), Store(tmp_path / "store"), as_json=True, repeated=True)
    file = tmp_path / "five.json"
    file.write_text(capsys.readouterr().out)
    (group,) = json.loads(file.read_text())["groups"]
    assert (group["group"], group["stability"], group["valid"]) == ("5a8c9d0e", 1.0, 5)
    assert group["runs"] == [f"r-{number}" for number in range(5)]
    assert group["p_core"]["lowest"] <= group["p_core"]["median"] <= group["p_core"]["highest"]
    assert len(find_subject(str(file), Store(tmp_path / "store")).records) == 5
    assert main(["audit", str(file)]) in (0, 5)
    assert "damaged" not in "".join(capsys.readouterr())
