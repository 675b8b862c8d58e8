"""Whatever is being written when a process is killed: what was there is whole, and nothing half is taken for whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.aimed_kills import every_kill
from support.records import make_plan, make_record, renamed
from support.run_folders import Folder

from trainmark.record import gather, timeline
from trainmark.record.record import Record
from trainmark.record.store import Store, read_record
from trainmark.train import checkpoint
from trainmark.view.frame import write_report

pytestmark = pytest.mark.slow

OLD, NEW = "resnet50-quick-old", "resnet50-quick-new"


@pytest.fixture(scope="module")
def long_record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("run")
    Folder(folder, make_plan(), run_id=NEW).rank(0, [10 + step % 7 for step in range(timeline.MAX_INSIDE + 1)])
    record = gather.gather_record(folder)
    assert record.series_file
    return record


@pytest.mark.parametrize("length", ["short", "long"])
def test_a_kill_while_a_record_is_added(tmp_path: Path, long_record: Record, length: str) -> None:
    new = long_record if length == "long" else renamed(make_record(), NEW, "2026-11-15T21:00:00Z")
    whole, store = tmp_path / "whole", Store(tmp_path / "store")
    Store(whole).add(renamed(make_record(), OLD, "2026-11-15T20:00:00Z"))

    def as_before() -> None:
        shutil.rmtree(store.folder, ignore_errors=True)
        shutil.copytree(whole, store.folder)

    kept = 0
    for moment in every_kill(as_before, lambda: store.add(new), within=str(store.folder), bytes_each=9_973):
        contents = store.contents()
        assert contents.damaged == [], moment
        found = {row.run_id for row in contents.rows}
        assert found in ({OLD}, {NEW, OLD}), moment
        assert read_record(store.path(OLD)).run_id == OLD, moment
        if NEW in found:
            kept += 1
        else:
            store.add(new)  # what was left of the first try is in nobody's way
        read = read_record(store.path(NEW))
        assert (read.to_json(), read.means_only) == (new.to_json(), None), moment
    assert kept  # after the record is there, only the index is left to be told


def test_a_kill_while_the_index_is_written(tmp_path: Path) -> None:
    whole, store = tmp_path / "whole", Store(tmp_path / "store")
    for name, minute in ((OLD, 0), (NEW, 1)):
        Store(whole).add(renamed(make_record(), name, f"2026-11-15T20:0{minute}:00Z"))

    def as_before() -> None:
        shutil.rmtree(store.folder, ignore_errors=True)
        shutil.copytree(whole, store.folder)

    for moment in every_kill(as_before, store.rows, within=str(store.folder), bytes_each=97):
        contents = store.contents()
        assert [row.run_id for row in contents.rows] == [NEW, OLD], moment
        assert contents.damaged == [], moment


def test_a_kill_while_a_page_is_written(tmp_path: Path) -> None:
    page, store = tmp_path / "reports" / "page.html", Store(tmp_path / "store")

    def as_before() -> None:
        shutil.rmtree(page.parent, ignore_errors=True)
        page.parent.mkdir()
        page.write_text("the old page")

    new = "a new page " * 1000
    for moment in every_kill(
        as_before, lambda: write_report(page, new, store), within=str(page.parent), bytes_each=997
    ):
        assert page.read_text() in ("the old page", new), moment


def test_a_kill_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    folder, whole = tmp_path / "checkpoints", tmp_path / "whole"
    for step in (1, 2):
        checkpoint.save(whole, step, {"step": step, "weights": torch.zeros(1000)})

    def as_before() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)

    def act() -> None:
        checkpoint.save(folder, 3, {"step": 3, "weights": torch.ones(1000)})

    for moment in every_kill(as_before, act, within=str(folder), bytes_each=499):
        state, damaged = checkpoint.load_newest(folder)
        assert state["step"] in (2, 3), moment
        assert damaged == [], moment
        checkpoint.save(folder, 4, {"step": 4})
        assert sorted(path.name for path in folder.iterdir())[-1] == "step-000000004", moment
        assert not [path for path in folder.iterdir() if path.name.startswith(".")], moment


def test_a_kill_while_a_checkpoint_of_the_same_step_is_written_again(tmp_path: Path) -> None:
    folder, whole = tmp_path / "checkpoints", tmp_path / "whole"
    for step in (1, 2):
        checkpoint.save(whole, step, {"step": step})

    def as_before() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)

    for moment in every_kill(as_before, lambda: checkpoint.save(folder, 2, {"step": 2}), within=str(folder)):
        state, damaged = checkpoint.load_newest(folder)
        assert state["step"] in (1, 2), moment
        assert damaged == [], moment
