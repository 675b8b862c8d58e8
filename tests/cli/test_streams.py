"""Standard output that is closed or full, and widths that are none: sentences and exit codes, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from support.records import make_record

from trainmark.cli.main import main
from trainmark.launch import session
from trainmark.record.index import StoreIndex
from trainmark.record.store import Store


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINMARK_STORE", str(tmp_path / "store"))
    store = Store(tmp_path / "store")
    store.add(make_record())
    return store


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A disk without room, as Python opens standard output on it."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = os.fdopen(descriptor, "w", encoding="utf-8")
    yield stream
    stream.close()


@pytest.mark.parametrize("words", [["runs"], ["show"], ["show", "--json"], ["plan", "resnet50"], ["--help"]])
def test_a_result_that_cannot_be_written_is_exit_3(
    words: list[str], full: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream, reason in ((full, "No space left on device"), (None, "standard output is closed")):
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(words) == 3
        assert capsys.readouterr().err == f"trainmark: the output could not be written: {reason}\n"


@pytest.mark.features
def test_a_page_that_is_on_disk_is_exit_0_although_its_name_cannot_be_printed(
    tmp_path: Path, full: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["report", "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.features
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_run_whose_table_cannot_be_written_is_exit_0_and_leaves_its_page(
    json: list[str], store: Store, full: TextIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = session.Result(records=(make_record(),))
    monkeypatch.setattr(session, "run", lambda *words, **more: done)
    for stream, reason in ((full, "No space left on device"), (None, "standard output is closed")):
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["run", *json]) == 0
        assert f"trainmark: the output could not be written: {reason}\n" in capsys.readouterr().err
        [page] = (store.folder / "reports").iterdir()
        page.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_process_started_without_streams_ends_by_itself_and_silently(closed: str, store: Store) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m trainmark runs {closed}'], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert StoreIndex(store.index).names()  # what it opened did not become its output


@pytest.mark.parametrize("columns", ["abc", "-5", "0", "", "9" * 400])
def test_a_width_that_is_none_is_passed_over(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["runs"]) == 0
    assert "resnet50" in capsys.readouterr().out


def test_no_line_on_either_stream_is_obeyed_by_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = str(tmp_path / "\x1b[2J\x9b\u202e")
    words = ["--classes", "2", "--train-per-class", "2", "--val-per-class", "1"]
    assert main(["data", "make", "imagenet", "--out", hostile, *words]) == 0
    assert main(["plan", "resnet50", "--recipe", "smoke", "--data", hostile]) == 0
    assert main(["show", hostile]) == 2
    said = "".join(capsys.readouterr())
    assert said.count("\\x1b[2J\\x9b\\u202e") >= 3
    assert not {"\x1b", "\x9b", "\u202e"} & set(said)
