from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.privileges import ordinary_permissions
from support.records import make_plan, make_record, renamed

from trainmark.record import store as store_module
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.index import RunFilter, StoreIndex
from trainmark.record.record import Record
from trainmark.record.store import Store, default_folder, read_record
from trainmark.record.timeline import RankTrace, Timeline


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a store")


def indexed(store: Store) -> set[str]:
    """Runs that really stand in the index on disk."""
    return {name.removesuffix(".json") for name in StoreIndex(store.index).names()}


def filled(store: Store, count: int = 3) -> list[str]:
    """Adds records a minute apart; their ids, oldest first."""
    run_ids = [f"resnet50-quick-{minute:02}-{minute:06x}" for minute in range(count)]
    for minute, run_id in enumerate(run_ids):
        store.add(renamed(make_record(), run_id, f"2026-11-15T20:{minute:02}:00Z"))
    return run_ids


def test_a_record_comes_back_as_it_was_saved(store: Store) -> None:
    record = make_record()
    path = store.add(record)
    assert path == store.path(record.run_id)
    assert store.record(record.run_id).to_json() == record.to_json()


def test_a_record_is_never_replaced(store: Store) -> None:
    path = store.add(make_record())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="never replaced"):
        store.add(make_record(ended="something else"))
    assert path.read_bytes() == before


def test_a_disk_without_hard_links_still_never_replaces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = store.add(make_record())
    before = path.read_bytes()
    assert store.record().run_id == make_record().run_id
    with pytest.raises(UsageError, match="never replaced"):
        store.add(make_record(ended="something else"))
    assert path.read_bytes() == before


def test_a_run_id_cannot_lead_out_of_the_store(store: Store) -> None:
    with pytest.raises(UsageError, match="cannot name a file"):
        store.add(make_record(run_id="../elsewhere"))


def test_rows_come_newest_first_whatever_the_order_of_saving(store: Store) -> None:
    for run_id, created in [
        ("middle", "2026-11-15T20:00:00Z"),
        ("newest", "2026-11-15T20:00:01+00:00"),
        ("oldest", "2026-11-15T21:30:00+02:00"),
    ]:
        store.add(renamed(make_record(), run_id, created))
    assert [row.run_id for row in store.rows()] == ["newest", "middle", "oldest"]
    assert [row.run_id for row in store.rows(limit=1)] == ["newest"]


def test_a_row_says_what_lists_show(store: Store) -> None:
    store.add(make_record(group="g1"))
    (row,) = store.rows()
    assert (row.workload, row.recipe, row.topology, row.precision) == ("resnet50", "quick", "1x1", "fp32")
    assert (row.device, row.platform, row.status, row.unit) == ("AMD EPYC", "cpu", "valid", "images/s")
    assert (row.quality_name, row.quality, row.reached, row.doubts, row.group) == ("acc1", 0.3125, False, 2, "g1")
    assert row.p_core == make_record().metrics["p_core"].value
    assert row.fingerprint == make_record().plan.fingerprint


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b'{"kind": "trainmark rec', "not JSON"),
        (b'{"kind": "\xff\xfe"}', "not UTF-8"),
        (b"[1, 2]", "not an object"),
        (b'{"kind": "trainmark record", "schema": 1}', "run_id|quality"),
        (b'{"kind": "trainmark record", "schema": NaN}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_are_listed(store: Store, content: bytes, reason: str) -> None:
    filled(store, 2)
    store.path("torn").write_bytes(content)
    contents = store.contents()
    assert len(contents.rows) == 2
    (damaged,) = contents.damaged
    assert damaged.path == store.path("torn")
    with pytest.raises(UsageError, match=reason):
        store.record("torn")
    assert str(damaged).startswith(f"record file {store.path('torn')} is left out: it ")


def test_a_changed_plan_is_called_damaged(store: Store) -> None:
    path = store.add(make_record())
    document = json.loads(path.read_text())
    document["plan"]["precision"] = "fp16"
    path.write_text(json.dumps(document))
    (damaged,) = store.contents().damaged
    assert "fingerprint" in damaged.reason


def test_a_record_under_another_name_is_called_damaged(store: Store) -> None:
    path = store.add(make_record())
    (store.records / "copy.json").write_bytes(path.read_bytes())
    contents = store.contents()
    assert [row.run_id for row in contents.rows] == [make_record().run_id]
    assert make_record().run_id in contents.damaged[0].reason


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: b"this is no index",
        lambda whole: b"\x93" * 100_000,
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole.replace(b"resnet50", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        lambda whole: b"\x92\x07" + whole[6:],  # of another version
    ],
)
def test_a_corrupt_index_is_rebuilt(store: Store, damage: Callable[[bytes], bytes]) -> None:
    run_ids = filled(store)
    assert len(store.rows()) == 3
    store.index.write_bytes(damage(store.index.read_bytes()))
    store.add(renamed(make_record(), "one-more", "2026-11-15T19:00:00Z"))
    assert [row.run_id for row in store.rows()] == [*reversed(run_ids), "one-more"]
    assert indexed(store) == {*run_ids, "one-more"}


def test_reading_a_store_that_is_not_there_makes_no_folder(store: Store) -> None:
    assert store.rows() == []
    assert not store.folder.exists()


WRITER = """
import sys
from pathlib import Path
from support.records import make_record, renamed
from trainmark.record.store import Store
from trainmark.record.errors import UsageError

name, folder = sys.argv[1:]
store, record = Store(Path(folder)), make_record()
print("ready", flush=True)
sys.stdin.readline()
for number in range(25):
    store.add(renamed(record, f"{name}-{number:02}"))
lost = 0
for number in range(10):
    try:
        store.add(renamed(record, f"both-{number}", ended=name))
    except UsageError:
        lost += 1
print(lost)
"""


@pytest.mark.slow
def test_two_processes_that_save_at_once_both_succeed(store: Store) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, str(store.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    answers = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        answers.append(writer.communicate(timeout=60)[0])
        assert writer.returncode == 0
    assert sum(int(lost) for lost in answers) == 10  # each of the ids both wanted went to exactly one
    assert len(store.rows()) == 60
    assert len(indexed(store)) == 60
    assert store.contents().damaged == []


def test_a_run_is_found_by_id_beginning_end_path_or_as_the_newest(store: Store, tmp_path: Path) -> None:
    first, second, third = filled(store)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(make_record().dumps())
    assert store.find(second) == store.path(second)
    assert store.find("resnet50-quick-01") == store.path(second)
    assert store.find("000002") == store.path(third)
    assert store.find() == store.find("last") == store.find("") == store.path(third)
    assert store.find(str(elsewhere)) == elsewhere
    assert store.find(str(store.path(first))) == store.path(first)


def test_the_newest_run_of_a_workload_has_a_word_of_its_own(store: Store) -> None:
    for run_id, workload, day in (("a-1", "vit", 1), ("a-2", "vit", 2), ("b-1", "resnet50", 3)):
        plan = make_plan(workload=workload)
        store.add(make_record(run_id=run_id, created=f"2026-11-{day:02d}T21:00:00Z", plan={"workload": workload}))
        (store.runs / run_id).mkdir(parents=True)
        (store.runs / run_id / "plan.json").write_text(json.dumps(plan.to_json()))
        os.utime(store.runs / run_id, (day, day))
    assert store.find("last-vit") == store.path("a-2") and store.find("last-resnet50") == store.path("b-1")
    assert store.run_folder("last-vit").name == "a-2" and store.run_folder("last").name == "b-1"
    for find in (store.find, store.run_folder):
        with pytest.raises(UsageError, match="of wavenet yet; 'trainmark run' makes one"):
            find("last-wavenet")


def test_an_unknown_run_is_answered_with_the_nearest(store: Store) -> None:
    filled(store)
    with pytest.raises(UsageError, match="did you mean 'resnet50-quick-02-000002'"):
        store.find("resnet50-quick-02-00002x")
    with pytest.raises(UsageError, match="the newest is 'resnet50-quick-02-000002'"):
        store.find("%%%")
    with pytest.raises(UsageError, match=r"no record file nowhere\.json"):
        store.find("nowhere.json")
    with pytest.raises(UsageError):
        store.find("x" * 5000)
    with pytest.raises(UsageError):
        store.find("nul\0byte")


def test_an_ambiguous_word_is_answered_with_some_of_the_runs(store: Store) -> None:
    filled(store, 8)
    with pytest.raises(UsageError, match=r"any of 8 runs: resnet50-quick-00-000000, .* and 3 more"):
        store.find("resnet50")


def test_an_empty_store_says_how_to_fill_it(store: Store) -> None:
    with pytest.raises(UsageError, match="trainmark run"):
        store.find()
    with pytest.raises(UsageError, match="no records yet"):
        store.find("abc")


def test_a_run_folder_without_a_record_is_told_from_an_unknown_run(store: Store) -> None:
    run_ids = filled(store, 1)
    (store.runs / run_ids[0]).mkdir(parents=True)
    killed = store.runs / "resnet50-smoke-killed"
    killed.mkdir()
    (killed / "plan.json").write_text(json.dumps(make_record().plan.to_json()))
    (store.runs / "not-even-a-plan").mkdir()
    left = {row.run_id: row for row in store.contents().unrecorded}
    assert set(left) == {"resnet50-smoke-killed", "not-even-a-plan"}
    assert left["resnet50-smoke-killed"].workload == "resnet50"
    assert {row.status for row in left.values()} == {"no record"}
    with pytest.raises(UsageError, match="has no record"):
        store.find("killed")


def test_a_store_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    for folder in (taken, taken / "below"):
        for attempt in (Store(folder).check_writable, Store(folder).rows, lambda: Store(folder).add(make_record())):  # noqa: B023
            with pytest.raises(NotReadyError, match="is a file, not a folder"):
                attempt()


def test_a_store_that_cannot_be_made_is_refused_in_a_sentence() -> None:
    store = Store(Path("/proc/self/no-such-place"))
    with pytest.raises(NotReadyError, match=r"cannot be made: .*TRAINMARK_STORE"):
        store.check_writable()
    with pytest.raises(NotReadyError):
        store.add(make_record())


def test_a_store_of_someone_else_can_be_read_and_not_written(store: Store) -> None:
    filled(store, 2)
    folders = (store.folder, store.records)
    for folder in folders:
        folder.chmod(0o555)
    try:
        with ordinary_permissions():
            assert len(store.rows()) == 2
            with pytest.raises(NotReadyError, match="cannot be written"):
                store.check_writable()
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_the_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRAINMARK_STORE", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_folder() == tmp_path / ".local/share/trainmark"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_folder() == tmp_path / ".local/share/trainmark"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/trainmark")
    monkeypatch.setenv("TRAINMARK_STORE", "~/mine")
    assert default_folder() == tmp_path / "mine"


def test_a_listing_needs_neither_numpy_nor_torch(store: Store) -> None:
    filled(store)
    store.rows()
    program = (
        "import sys; from pathlib import Path; from trainmark.record.store import Store\n"
        f"assert len(Store(Path({str(store.folder)!r})).rows()) == 3\n"
        "assert not {'numpy', 'rich', 'torch', 'scipy'} & set(sys.modules), 'a heavy import'"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_whatever_byte_of_a_record_is_damaged_it_is_one_line_of_a_listing(store: Store) -> None:
    store.add(renamed(make_record(), "good"))
    content = renamed(make_record(), "odd").dumps().encode()
    draw = random.Random(7)
    called_damaged = 0
    for _ in range(150):
        place = draw.randrange(len(content))
        change = draw.choice((b"", b"0", b",", b".", b"]", b" ", b"-", b'"', b"\xff", b"e"))
        store.path("odd").write_bytes(content[:place] + change + content[place + 1 :])
        store.index.unlink(missing_ok=True)
        contents = store.contents()
        assert len(contents.rows) + len(contents.damaged) == 2, (place, change)
        called_damaged += len(contents.damaged)
    assert 20 < called_damaged < 150


def test_a_name_that_is_no_text_is_left_alone(store: Store) -> None:
    store.add(renamed(make_record(), "good"))
    (store.records / os.fsdecode(b"\xff\xfe.json")).write_text("{")
    assert [row.run_id for row in store.rows()] == ["good"]
    assert store.contents().damaged == []


def test_files_the_index_knows_are_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        store.add(renamed(make_record(), name))
    read: list[str] = []

    def noting(path: Path) -> Record:
        read.append(path.stem)
        return read_record(path)

    monkeypatch.setattr(store_module, "read_record", noting)
    assert len(store.rows()) == len(store.rows()) == 3
    assert sorted(read) == ["one", "three", "two"]


def test_a_limited_listing_still_counts_all_that_fit(store: Store) -> None:
    for minute in range(5):
        store.add(renamed(make_record(), f"run-{minute}", f"2026-11-15T20:{minute:02}:00Z"))
    store.add(renamed(make_record(plan={"workload": "vit"}), "other", "2026-11-15T21:00:00Z"))
    (store.runs / "killed").mkdir(parents=True)
    (store.runs / "run-3").mkdir()
    contents = store.contents(RunFilter(workload="resnet50"), limit=2)
    assert [row.run_id for row in contents.rows] == ["run-4", "run-3"]
    assert contents.count == 5
    assert contents.unrecorded == []
    everything = store.contents(limit=2)
    assert (everything.count, [row.run_id for row in everything.unrecorded]) == (6, ["killed"])
    assert sorted(store.run_ids()) == ["other", *(f"run-{minute}" for minute in range(5))]


def test_a_store_that_cannot_keep_an_index_still_orders_and_chooses(store: Store) -> None:
    store.index.mkdir(parents=True)
    store.add(renamed(make_record(), "old", "2026-11-15T20:00:00Z"))
    store.add(renamed(make_record(), "new", "2026-11-15T21:00:00Z", group="g"))
    store.path("torn").write_text("{")
    assert [row.run_id for row in store.rows()] == ["new", "old"]
    assert [row.run_id for row in store.rows(RunFilter(group="g"))] == ["new"]
    assert store.find("last") == store.path("new")
    assert len(store.contents().damaged) == 1


def test_the_newest_run_folder_is_the_one_touched_last(store: Store) -> None:
    for age, name in enumerate(("young", "middle", "old")):
        (store.runs / name).mkdir(parents=True)
        os.utime(store.runs / name, (5000 - age, 5000 - age))
    assert [folder.name for folder in store.newest_folders()] == ["young", "middle", "old"]
    assert store.run_folder().name == store.run_folder("last").name == "young"
    assert store.run_folder("mid").name == "middle"
    for age, name in enumerate(("middle", "old")):
        (store.runs / name / "run.json").write_text('{"group": "5a8c9d0e"}')
        os.utime(store.runs / name, (4000 - age, 4000 - age))
    assert store.run_folder("5a8c").name == "middle"
    with pytest.raises(UsageError, match="did you mean 'middle'"):
        store.run_folder("middel")


def test_a_run_that_failed_before_its_first_step_is_not_the_last_result(store: Store) -> None:
    nothing = Timeline(ranks=(RankTrace(rank=0),))
    failed = make_record(
        run_id="failed", created="2027-01-01T00:00:00Z", status="incomplete", timeline=nothing, loss=()
    )
    store.add(failed)
    assert store.find("last") == store.path("failed")  # there is nothing else
    store.add(make_record(run_id="result"))
    for word in (None, "last"):
        assert store.find(word) == store.path("result")
    assert store.find("failed") == store.path("failed")


@pytest.mark.parametrize(
    ("change", "count", "damaged"),
    [
        (lambda store: store.add(renamed(make_record(), "another", "2026-11-14T20:00:00Z")), 6, 0),
        (lambda store: store.path("resnet50-quick-00-000000").unlink(), 4, 0),
        (lambda store: store.path("damaged").write_text("{"), 5, 1),
    ],
    ids=["added", "taken away", "put there damaged"],
)
def test_whatever_somebody_changes_the_next_listing_shows(
    store: Store, change: Callable[[Store], Any], count: int, damaged: int
) -> None:
    filled(store, 5)
    store.contents(limit=1)
    change(store)
    contents = store.contents()
    assert (contents.count, len(contents.damaged)) == (count, damaged)


def test_a_store_that_is_read_only_is_listed_by_its_index(store: Store) -> None:
    run_ids = filled(store)
    store.rows()
    with ordinary_permissions():
        store.folder.chmod(0o555)
        try:
            store.path("later").write_text(renamed(make_record(), "later", "2026-11-16T20:00:00Z").dumps())
            assert [row.run_id for row in store.rows()] == ["later", *reversed(run_ids)]
        finally:
            store.folder.chmod(0o755)
    assert indexed(store) == {*run_ids}


def test_two_runs_that_share_the_end_of_their_ids_are_named_in_full(store: Store) -> None:
    filled(store, 5)
    store.add(renamed(make_record(), "vit-quick-000004", "2026-11-15T21:00:00Z"))
    names = store.contents(limit=3).names
    assert names["vit-quick-000004"] == "vit-quick-000004"
    assert names["resnet50-quick-04-000004"] == "resnet50-quick-04-000004"
    assert names["resnet50-quick-03-000003"] == "000003"
