from __future__ import annotations

import argparse
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.records import a_vocoder_record, make_record, make_timeline

from trainmark.cli import show
from trainmark.record.errors import UsageError
from trainmark.record.machine import Artifact
from trainmark.record.plan import DataChoice
from trainmark.record.record import Doubt
from trainmark.record.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path)
    filled.add(make_record())
    filled.add(a_vocoder_record())
    return filled


def call(store: Store, *words: str) -> int:
    parser = argparse.ArgumentParser()
    show.add_arguments(parser)
    return show.run(parser.parse_args([*words, "--store", str(store.folder)]))


def test_the_newest_run_is_shown_shortly_with_what_was_said_of_it_and_its_files(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"tags": {"driver": "550.54"}, "note": "after the update", "group": "5a8c9d0e"}
    store.add(make_record(run_id="r-1", created="2026-11-17T00:00:00Z", **said))
    for step in (2, 10):
        (store.runs / "r-1" / "checkpoints" / f"step-{step:08}").mkdir(parents=True)
    assert call(store) == 0
    short = capsys.readouterr().out
    for word in ("resnet50", "images/s", "driver=550.54", "after the update", "5a8c9d0e", make_record().doubts[0].text):
        assert word in short
    for path in (store.path("r-1"), store.runs / "r-1", store.runs / "r-1" / "checkpoints" / "step-00000010"):
        assert str(path) in short
    assert call(store, "--all") == 0
    full = capsys.readouterr().out
    assert "driver=550.54" in full
    assert len(full.splitlines()) > 2 * len(short.splitlines())


def test_the_newest_run_is_shown_in_full(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(store, "--all") == 0
    out, err = capsys.readouterr()
    assert a_vocoder_record().run_id in out
    assert "34 985" in out
    assert str(store.path(a_vocoder_record().run_id)) in out
    assert err == ""


def test_a_run_is_shown_by_a_part_of_its_id_or_from_a_file(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(store, "a1b2") == 0
    assert make_record().run_id in capsys.readouterr().out
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(make_record(run_id="from-afar").dumps())
    assert call(store, str(elsewhere)) == 0
    assert "from-afar" in capsys.readouterr().out


def test_json_is_the_record_as_it_was_written(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(store, "a1b2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(store.path(make_record().run_id).read_text())


def test_markdown_is_the_published_table(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(store, "a1b2", "--markdown") == 0
    out = capsys.readouterr().out
    assert out.startswith("**resnet50 · quick**\n\n| configuration | precision | fix_hp |")
    assert make_record().doubts[0].text in out


def test_an_unknown_run_is_an_error_in_a_sentence(store: Store) -> None:
    with pytest.raises(UsageError, match="did you mean"):
        call(store, "20261115-205100-resnet50-a1bX")


@pytest.mark.parametrize("form", [(), ("--all",), ("--markdown",), ("--json",)])
def test_a_stream_that_carries_only_ascii_works(
    store: Store, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert call(store, "a1b2", *form) == 0
    stream.flush()


def test_color_follows_the_environment(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert call(store) == 0
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert call(store) == 0
    assert "\x1b[" not in capsys.readouterr().out


HOSTILE = "\x1b[2J\u202e<img src=x onerror=alert(1)>|=cmd\x07"


def hostile_store(folder: Path) -> Store:
    """Hostile words wherever a record holds words from outside."""
    store = Store(folder)
    quality = make_record().quality
    store.add(
        make_record(
            run_id="hostile",
            device=HOSTILE,
            ended=HOSTILE,
            group=HOSTILE,
            item=HOSTILE,
            plan={"platform": f"{HOSTILE}.toml", "data": DataChoice(name=HOSTILE, folder=HOSTILE, synthetic=True)},
            quality=dataclasses.replace(quality, name=HOSTILE, unit=HOSTILE),
            environment={"device": {"name": HOSTILE}, HOSTILE: {HOSTILE: [HOSTILE]}},
            doubts=(Doubt(code=HOSTILE, text=HOSTILE),),
            skipped_files=(HOSTILE,),
            artifacts=(Artifact(file=HOSTILE, caption=HOSTILE),),
            data_facts={HOSTILE: 1.0},
            trainmark=HOSTILE,
        )
    )
    return store


@pytest.mark.parametrize("form", [(), ("--all",), ("--markdown",), ("--json",)])
def test_hostile_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    assert call(hostile_store(tmp_path), *form) == 0
    out, err = capsys.readouterr()
    assert "onerror" in out
    for sign in ("\x1b", "\u202e", "\x07"):
        assert sign not in out + err
    if form == ("--markdown",):
        assert "<img" not in out
        columns = {line.replace("\\|", "").count("|") for line in out.splitlines() if line.startswith("|")}
        assert len(columns) == 1  # no name has made a column of its own


def test_a_word_that_no_run_has_is_spelled_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        call(hostile_store(tmp_path), f"{HOSTILE} too")
    assert "\x1b" not in str(refused.value)


def test_a_group_with_a_hostile_name_is_spelled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(hostile_store(tmp_path), HOSTILE) == 0
    out, err = capsys.readouterr()
    assert "group " in err and "\x1b" not in out + err


def test_a_run_of_very_many_steps_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path)
    store.add(make_record(timeline=make_timeline(ranks=2, steps=20_000)))
    assert call(store, "--all") == 0
    assert "20000 done" in capsys.readouterr().out


def test_showing_a_record_needs_nothing_of_what_runs_need(store: Store) -> None:
    code = (
        "import sys; from trainmark.cli.main import main; "
        f"main(['show', '--store', {str(store.folder)!r}]); "
        "print(sorted({'torch', 'scipy', 'psutil', 'trainmark.record.gather'} & set(sys.modules)), file=sys.stderr)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stderr.strip() == "[]"


def test_a_group_of_repeats_is_shown_as_one_table(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        store.add(make_record(run_id=f"resnet50-quick-{number}-c22ce{number}", group="b1653973"))
    for word in ("b1653973", "b165"):
        assert call(store, word) == 0
        out, err = capsys.readouterr()
        assert out.count("AMD EPYC") == 3
        assert "group b1653973 of 3 runs: resnet50-quick-0-c22ce0, " in err
    assert call(store, "b1653973", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_a_run_is_found_by_the_beginning_of_what_lists_call_it(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.add(make_record(run_id="resnet50-quick-1x1-fp32-20261115T205100-c22ce3"))
    store.add(make_record(run_id="resnet50-quick-1x1-fp32-20261115T205101-ddc22c"))
    assert call(store, "c22") == 0
    assert "205100-c22ce3" in capsys.readouterr().out
