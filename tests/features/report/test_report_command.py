"""`trainmark report` as it is typed: which runs, which form, where it goes, and what it refuses."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path

import pytest
from support.records import a_vocoder_record, make_record, renamed

from trainmark.cli import run as run_command
from trainmark.features.report import command as report
from trainmark.features.report.run_page import leave_page
from trainmark.launch.session import Result
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.machine import Artifact
from trainmark.record.record import Record
from trainmark.record.store import Store

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    filled = Store(tmp_path / "store")
    filled.add(make_record())
    filled.add(a_vocoder_record())
    return filled


def call(store: Store, *words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return report.run(parser.parse_args([*map(str, words), "--store", str(store.folder)]))


def test_without_words_a_page_of_the_newest_runs_is_made_and_named(store: Store, capsys: Capture) -> None:
    assert call(store) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.parent == store.folder / "reports"
    text = page.read_text(encoding="utf-8")
    assert make_record().run_id in text
    assert a_vocoder_record().run_id in text


def test_the_page_goes_where_it_is_asked_to(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    first, second = tmp_path / "a b" / "out.html", tmp_path / "second.html"
    assert call(store, "a1b2", "--html", first) == 0
    assert call(store, "a1b2", "--format", "html", "--out", second, "--lang", "en") == 0
    assert make_record().run_id in first.read_text(encoding="utf-8")
    assert a_vocoder_record().run_id not in first.read_text(encoding="utf-8")
    assert "Can this be trusted?" in second.read_text(encoding="utf-8")


def test_no_more_than_the_newest_ten_are_shown_unless_asked(store: Store, capsys: Capture) -> None:
    for index in range(12):
        store.add(renamed(make_record(), f"more-{index:02}", f"2026-11-16T00:{index:02}:00+00:00"))
    for words, count in (((), 10), (("--limit", "3"), 3), (("--limit", "0"), 14)):
        assert call(store, "--format", "json", *words) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found) == count
        assert found[0]["run_id"] == "more-11"


@pytest.mark.parametrize("form", ["markdown", "csv", "json", "junit", "flagperf", "deepspark"])
def test_every_text_form_goes_to_stdout_or_a_file(store: Store, form: str, capsys: Capture, tmp_path: Path) -> None:
    assert call(store, "a1b2", "--format", form, "--lang", "en") == 0
    out, err = capsys.readouterr()
    assert out.strip()
    assert err == ""
    assert call(store, "a1b2", "--format", form, "--lang", "en", "--out", tmp_path / "file") == 0
    assert (tmp_path / "file").read_text(encoding="utf-8") == out
    assert capsys.readouterr().out == ""


def test_published_rows_stand_beside_runs(store: Store, capsys: Capture) -> None:
    name = "published:flagperf-a100-resnet50-1x1-fp32-bs256"
    assert call(store, "a1b2", name, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["run_id"] for row in rows] == [make_record().run_id, name]
    assert call(store, "a1b2", "--published", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["workload"] for row in rows} == {"resnet50"}
    assert len(rows) > 5
    assert call(store, "a1b2", name, "--format", "junit") == 0
    assert "1 published rows are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--html", "x.html", "--format", "csv"),
        ("--html", "x.html", "--out", "y.html"),
        ("a1b2", "--limit", "3"),
        ("nothing-like-it",),
    ],
)
def test_words_that_contradict_each_other_are_refused_in_a_sentence(store: Store, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        call(store, *words)
    assert not Path("x.html").exists()


def test_an_empty_store_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no records yet"):
        call(Store(tmp_path / "empty"))


def test_a_record_is_never_replaced_by_a_report(store: Store) -> None:
    path = store.path(make_record().run_id)
    before = path.read_text()
    with pytest.raises(UsageError, match="never replaced"):
        call(store, "a1b2", "--format", "json", "--out", path)
    assert path.read_text() == before


def test_a_place_that_cannot_be_written_is_an_error_in_a_sentence(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotReadyError, match="does not exist"):
        call(store, "a1b2", "--html", tmp_path / "file" / "out.html")


def test_the_language_is_that_of_the_locale_unless_asked(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    for words, lang in (((), "zh-CN"), (("--lang", "en"), "en")):
        assert call(store, "a1b2", "--html", tmp_path / "x.html", *words) == 0
        assert f'<html lang="{lang}">' in (tmp_path / "x.html").read_text(encoding="utf-8")


def add_run_with_image(store: Store) -> Record:
    record = renamed(make_record(), "pictured-0001", artifacts=(Artifact(file="a.png", caption="seen"),))
    store.add(record)
    folder = store.runs / record.run_id
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return record


def test_a_run_leaves_a_page_with_what_it_made(store: Store) -> None:
    record = add_run_with_image(store)
    page = leave_page([make_record(), record], store)
    assert page == store.folder / "reports" / "pictured-0001.html"
    text = page.read_text(encoding="utf-8")
    assert "data:image/png;base64," in text
    assert text.count("the run&#x27;s events were not read") == 2 * 2  # two checks of two runs
    assert leave_page([record], store) == page


def test_a_page_that_cannot_be_made_fails_no_run(store: Store, capsys: Capture) -> None:
    (store.folder / "reports").write_text("in the way")
    run_command._print_result(Result(records=(make_record(),)), store, as_json=False)
    assert "could not be made" in capsys.readouterr().err


def test_csv_begins_with_a_byte_order_mark_where_that_is_asked_for(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "runs.csv"
    assert call(store, "--format", "csv", "--bom", "--out", out) == 0
    assert out.read_bytes().startswith(b"\xef\xbb\xbfkind,run_id,")
    text = out.read_text(encoding="utf-8-sig")
    (row,) = [row for row in csv.DictReader(io.StringIO(text)) if "a1b2" in row["run_id"]]
    assert (row["vendor"], row["batch_per_device"], row["global_batch"]) == ("cpu", "32", "32")
    with pytest.raises(UsageError, match="--bom is for --format csv, not for junit"):
        call(store, "--format", "junit", "--bom")
