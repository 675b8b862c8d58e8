from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.fleets import host_record
from support.records import a_vocoder_record, make_record, renamed

from trainmark.cli import runs
from trainmark.record.errors import UsageError
from trainmark.record.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def call(store: Store, *words: str) -> int:
    parser = argparse.ArgumentParser()
    runs.add_arguments(parser)
    return runs.run(parser.parse_args([*words, "--store", str(store.folder)]))


def filled(store: Store) -> Store:
    store.add(renamed(make_record(), "resnet50-quick-1x1-fp32-20261115T205100-aaa111"))
    store.add(renamed(a_vocoder_record(), "tacotron2-reference-1x1-tf32-20261115T220000-bbb222"))
    return store


def test_runs_are_listed_newest_first(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(filled(store)) == 0
    out, err = capsys.readouterr()
    assert out.index("bbb222") < out.index("aaa111")
    for word in ("tacotron2", "34 985", "frames/s", "0.4774", "AMD EPYC 1x1", "5.78", "images/s", "valid"):
        assert word in out
    assert err == ""


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_the_list_fits_its_width(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert call(filled(store)) == 0
    out = capsys.readouterr().out
    assert "aaa111" in out
    assert max(len(line) for line in out.splitlines()) <= int(columns)


def test_runs_that_share_an_end_are_shown_by_their_whole_id(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.add(renamed(make_record(), "a-1"))
    store.add(renamed(make_record(), "b-1"))
    assert call(store) == 0
    out = capsys.readouterr().out
    assert "a-1" in out
    assert "b-1" in out


def test_json_is_one_document(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    (store.records / "torn.json").write_text("{")
    assert call(store, "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [row["workload"] for row in document["runs"]] == ["tacotron2", "resnet50"]
    assert document["runs"][1]["reached"] is False
    assert document["damaged"][0]["file"].endswith("torn.json")
    assert "torn.json is left out" in err


def test_a_workload_can_be_chosen_and_an_unknown_one_is_answered(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(store)
    assert call(store, "--workload", "resnet50") == 0
    out, _ = capsys.readouterr()
    assert "aaa111" in out
    assert "bbb222" not in out
    assert call(store, "--workload", "vit") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "it holds resnet50, tacotron2" in err


def test_what_the_limit_hides_is_said(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    assert call(store, "--limit", "1") == 0
    out, err = capsys.readouterr()
    assert "aaa111" not in out
    assert "1 older runs are not shown" in err
    assert call(store, "--limit", "0") == 0
    assert "aaa111" in capsys.readouterr().out


def test_a_run_folder_without_a_record_is_listed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    filled(store)
    folder = store.runs / "vit-quick-1x1-fp32-20261115T230000-ccc333"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(make_record(plan={"workload": "vit"}).plan.to_json()))
    os.utime(folder, (5000, 5000))
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert "ccc333" in out
    assert "no record" in out
    assert "ended before a record could be written" in err
    assert call(store, "--json", "--workload", "vit") == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["status"] == "no record"
    assert row["p_core"] is None


def test_an_empty_store_says_how_to_fill_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "trainmark run" in err
    assert call(store, "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []


def test_hostile_names_do_not_reach_the_terminal(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.add(make_record(device="\x1b[2J[red]x"))
    (store.runs / "\x1b[2Jfolder").mkdir(parents=True)
    (store.records / "\x1b[2J.json").write_text("{")
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "[red]x" in out


def test_words_of_every_column_are_harmless(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\u202e<img src=x onerror=alert(1)>|=cmd\x07"
    quality = dataclasses.replace(make_record().quality, name=hostile, unit=hostile)
    plan = {"workload": hostile, "recipe_name": hostile, "platform": hostile, "topology": hostile}
    store.add(make_record(device=hostile, plan=plan, quality=quality, status=hostile, item=hostile))
    for words in ((), ("--json",), ("--workload", hostile), ("--workload", "\x1b[2J")):
        assert call(store, *words) == 0
        out, err = capsys.readouterr()
        for sign in ("\x1b", "\u202e", "\x07"):
            assert sign not in out + err


def test_the_newest_runs_are_listed_whether_or_not_they_left_records(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(store)
    for name in ("vit-killed-ddd444", "vit-killed-eee555"):
        (store.runs / name).mkdir(parents=True)
    assert call(store, "--limit", "3") == 0
    out, err = capsys.readouterr()
    assert "bbb222" in out
    assert "aaa111" not in out
    assert "ddd444" in out
    assert "1 older runs are not shown" in err


def test_a_run_that_goes_on_is_running_and_one_somebody_ended_is_interrupted(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store.runs / "vit-quick-1x1-fp32-20261115T230000-ccc333"
    folder.mkdir(parents=True)
    head = {"run_id": folder.name, "created": "", "item": "images", "reference_global_batch": 8}
    head |= {"target": {"name": "acc1", "unit": "%", "better": "higher"}}
    head |= {"launcher_host": socket.gethostname(), "launcher_pid": os.getpid()}
    (folder / "run.json").write_text(json.dumps(head))
    for number, ended in enumerate(("interrupted", "the run was ended by SIGTERM", "rank 0 exited with 1")):
        store.add(make_record(run_id=f"r-{number}", status="incomplete", ended=ended))
    assert call(store, "--json") == 0
    runs = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert runs[folder.name]["status"] == "running"
    assert [runs[f"r-{number}"]["interrupted"] for number in range(3)] == [True, True, False]
    assert call(store) == 0
    out, err = capsys.readouterr()
    assert (out.count("running"), out.count("interrupted"), out.count("incomplete")) == (1, 2, 1)
    assert err == ""


def test_groups_have_a_column_where_there_are_any(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.add(make_record(run_id="r-1", group="b1653973"))
    assert call(store) == 0
    assert "b1653973" in capsys.readouterr().out
    for path in store.records.iterdir():
        path.unlink()
    store.add(make_record(run_id="r-2"))
    assert call(store) == 0
    assert "group" not in capsys.readouterr().out


def test_runs_are_chosen_by_tag_group_and_time(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.now(timezone.utc)
    for hours, tags, group in (
        (1, {"driver": "1"}, "ab12"),
        (30, {"driver": "1", "room": "3"}, None),
        (99, {}, "ab34"),
    ):
        created = (now - timedelta(hours=hours)).isoformat(timespec="seconds")
        store.add(make_record(run_id=f"r-{hours}", created=created, tags=tags, group=group))

    def found(*words: str) -> list[str]:
        assert call(store, "--json", *words) == 0
        return [row["run_id"] for row in json.loads(capsys.readouterr().out)["runs"]]

    assert found("--since", "2d") == ["r-1", "r-30"]
    assert found("--since", (now - timedelta(hours=2)).isoformat()) == ["r-1"]
    assert found("--since", "2020-01-01", "--group", "ab") == ["r-1", "r-99"]
    assert found("--tag", "driver=1") == ["r-1", "r-30"]
    assert found("--tag", "driver=1", "--tag", "room=3") == ["r-30"]
    assert call(store) == 0
    assert "room=3" in capsys.readouterr().out
    assert call(store, "--tag", "room=4") == 0
    out, err = capsys.readouterr()
    assert (out, "none of the 3 runs" in err) == ("", True)
    with pytest.raises(UsageError, match=r"--since 'soon' is neither a date nor a duration"):
        call(store, "--since", "soon")


def test_a_run_that_goes_on_is_found_by_its_tag(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store.runs / "vit-quick-1x1-fp32-20261115T230000-ccc333"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"group": "ab12", "tags": {"driver": "1"}}))
    assert call(store, "--tag", "driver=1", "--group", "ab1") == 0
    assert "ccc333" in capsys.readouterr().out


def test_the_host_is_a_column_where_runs_are_of_several(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.add(host_record("node01"))
    assert call(store) == 0
    assert "host" not in capsys.readouterr().out.splitlines()[0]
    store.add(host_record("node02"))
    assert call(store) == 0
    assert "host" in capsys.readouterr().out.splitlines()[0]
    assert call(store, "--json") == 0
    assert {row["host"] for row in json.loads(capsys.readouterr().out)["runs"]} == {"node01", "node02"}
