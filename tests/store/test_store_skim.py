"""Lists skim record files; what they say of one is what a reading in full would say."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from records import make_record, make_timeline, renamed

from trainmark.spec.errors import UsageError
from trainmark.store import files
from trainmark.store import store as store_module
from trainmark.store.files import read_row
from trainmark.store.rows import row_of
from trainmark.store.store import Store, read_record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def text_of(**changes: Any) -> str:
    """A record whose series are long enough to be skimmed over."""
    return make_record(timeline=make_timeline(ranks=2, steps=60), **changes).dumps()


def verdict(path: Path, read: Any) -> str:
    try:
        return str(read(path))
    except UsageError as error:
        return str(error)


def test_a_row_is_the_one_of_the_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text_of())
    assert read_row(path) == row_of(read_record(path))


def test_the_series_are_really_skimmed_over() -> None:
    content = text_of().encode()
    rest = json.loads(files._without_series(content))
    assert [trace["compute_ns"] for trace in rest["series"]["ranks"]] == [[], []]
    assert rest["series"]["ranks"][0]["items"] == [[60, 32]]
    assert rest["series"]["loss"] == []


@pytest.mark.parametrize(
    "spoilt",
    ["1 2", "1,, 2", "1, , 2", "01, 2", "1., 2", ".5, 2", "1.2.3", "1 , 2", "--1", "+1", "1e5", "null", "-3", "nul"],
)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_list_that_is_not_only_plain_numbers_is_read_in_full(tmp_path: Path, spoilt: str, where: str) -> None:
    numbers = ["123456"] * 60
    numbers[{"first": 0, "middle": 30, "last": -1}[where]] = spoilt
    text = text_of()
    start = text.index('"compute_ns": [') + len('"compute_ns": [')
    path = tmp_path / "a.json"
    path.write_text(text[:start] + ", ".join(numbers) + text[text.index("]", start) :])

    def whole(path: Path) -> Any:
        return row_of(read_record(path))

    assert verdict(path, read_row) == verdict(path, whole)


def test_whatever_byte_of_a_record_is_damaged_lists_and_readers_agree(tmp_path: Path) -> None:
    content = text_of().encode()
    draw = random.Random(7)
    path = tmp_path / "a.json"
    called_damaged = 0
    for _ in range(1500):
        place = draw.randrange(len(content))
        change = draw.choice((b"", b"0", b",", b".", b"]", b" ", b"-", b'"', b"\xff", b"e"))
        path.write_bytes(content[:place] + change + content[place + 1 :])
        skimmed = verdict(path, read_row)
        try:
            whole = str(row_of(read_record(path)))
        except UsageError as error:
            whole = str(error)
        except ValueError as error:  # whole, but with a value that no list can show
            whole = f"record file {path} is damaged: {error}"
        assert skimmed == whole, (place, change)
        called_damaged += "is damaged" in skimmed
    assert 200 < called_damaged < 1500


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["metrics"]["p_core"].update(value=[1]),
        lambda document: document["metrics"]["p_core"].update(value="fast"),
        lambda document: document["metrics"]["p_core"].update(value=10**400),
        lambda document: document.update(created=5),
        lambda document: document.update(status=None),
        lambda document: document.update(group={"a": 1}),
        lambda document: document["quality"].update(reached="yes"),
        lambda document: document["quality"].update(name="\ud800"),
        lambda document: document["environment"].update(device={"name": "\udfff"}),
    ],
)
def test_a_value_of_a_wrong_kind_makes_a_damaged_file_and_no_crash(store: Store, change: Any) -> None:
    store.add(renamed(make_record(), "good"))
    document = json.loads(renamed(make_record(), "odd").dumps())
    change(document)
    store.path("odd").write_text(json.dumps(document))
    contents = store.contents()
    assert [row.run_id for row in contents.rows] == ["good"]
    assert [damaged.path.name for damaged in contents.damaged] == ["odd.json"]
    assert store.rebuild() == 1


def test_a_name_that_is_no_text_is_left_alone(store: Store) -> None:
    store.add(renamed(make_record(), "good"))
    (store.records / os.fsdecode(b"\xff\xfe.json")).write_text("{")
    assert [row.run_id for row in store.rows()] == ["good"]
    assert store.contents().damaged == []


def test_files_the_index_knows_are_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        store.add(renamed(make_record(), name))
    read: list[str] = []

    def noting(path: Path) -> Any:
        read.append(path.stem)
        return read_row(path)

    monkeypatch.setattr(store_module, "read_row", noting)
    assert len(store.rows()) == 3
    assert read == []
    store.path("two").touch()
    assert len(store.rows(limit=1)) == 1
    assert read == ["two"]


def test_a_limited_listing_still_counts_all_that_fit(store: Store) -> None:
    for minute in range(5):
        store.add(renamed(make_record(), f"run-{minute}", f"2026-11-15T20:{minute:02}:00Z"))
    store.add(renamed(make_record(plan={"workload": "vit"}), "other", "2026-11-15T21:00:00Z"))
    (store.runs / "killed").mkdir(parents=True)
    (store.runs / "run-3").mkdir()
    contents = store.contents(limit=2, workload="resnet50")
    assert [row.run_id for row in contents.rows] == ["run-4", "run-3"]
    assert contents.count == 5
    assert contents.unrecorded == []
    everything = store.contents(limit=2)
    assert (everything.count, [row.run_id for row in everything.unrecorded]) == (6, ["killed"])
    assert sorted(store.run_ids()) == ["other", *(f"run-{minute}" for minute in range(5))]


def test_a_store_that_cannot_keep_an_index_still_orders_and_chooses(store: Store) -> None:
    (store.folder / "index.sqlite").mkdir(parents=True)
    store.add(renamed(make_record(), "old", "2026-11-15T20:00:00Z"))
    store.add(renamed(make_record(), "new", "2026-11-15T21:00:00Z", group="g"))
    store.path("torn").write_text("{")
    assert [row.run_id for row in store.rows()] == ["new", "old"]
    assert [row.run_id for row in store.rows(group="g")] == ["new"]
    assert store.find("last") == store.path("new")
    assert len(store.contents().damaged) == 1
    assert store.rebuild() == 2


def test_the_newest_run_folder_is_the_one_touched_last(store: Store) -> None:
    for age, name in enumerate(("young", "middle", "old")):
        (store.runs / name).mkdir(parents=True)
        os.utime(store.runs / name, (5000 - age, 5000 - age))
    assert [folder.name for folder in store.newest_folders()] == ["young", "middle", "old"]
    assert store.run_folder().name == store.run_folder("last").name == "young"
    assert store.run_folder("mid").name == "middle"
    with pytest.raises(UsageError, match="did you mean 'middle'"):
        store.run_folder("middel")
