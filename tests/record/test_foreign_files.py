from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Cli
from support.records import make_record, renamed

from trainmark.record.run_folder import RunFolder
from trainmark.record.store import Store


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 20)


STRANGE: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "sparse": make_sparse,
    "folder": Path.mkdir,
}


@pytest.fixture(autouse=True)
def end_what_hangs() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A record, and beside it and in a run folder what nobody should read."""
    store = Store(tmp_path / "store")
    record = renamed(make_record(), "good", "2026-01-01T00:00:00Z")
    store.add(record)
    run = store.runs / "odd-run"
    run.mkdir(parents=True)
    for name, make in STRANGE.items():
        make(store.path(name))
    for name, make in zip(("plan.json", "run.json", "rank0.jsonl", "rank1.jsonl"), STRANGE.values(), strict=True):
        make(run / name)
    make_sparse(run / "rank2.jsonl")
    os.mkfifo(run / "launcher.jsonl")
    return store


@pytest.mark.parametrize("command", [("runs",), ("report", "--format", "csv"), ("rm", "--older-than", "1d")], ids=str)
def test_what_is_no_file_in_a_store_is_one_line_each(store: Store, cli: Cli, command: tuple[str, ...]) -> None:
    finished = cli(*command, "--store", store.folder)
    assert finished.returncode == 0, finished.stderr
    for name in STRANGE:
        (line,) = [line for line in finished.stderr.splitlines() if f"/{name}.json " in line]
        assert "is left out: it cannot be read: " in line
    assert "good" in finished.stdout or command[0] == "rm"


def test_a_record_beside_them_is_shown_and_they_are_refused_in_a_sentence(store: Store, cli: Cli) -> None:
    for words in ((), ("good",)):
        assert cli("show", *words, "--store", store.folder).returncode == 0
    for name, reason in (("pipe", "a named pipe, not a file"), ("sparse", "200 MiB, and at most 128 are read")):
        refused = cli("show", store.path(name), "--store", store.folder)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert cli("audit", store.path(name), "--store", store.folder).returncode == 2
        assert reason in cli("report", store.path(name), "--store", store.folder).stderr


def test_a_run_folder_of_pipes_and_devices_is_read_without_them(store: Store, cli: Cli) -> None:
    folder = RunFolder(store.runs / "odd-run")
    folder.update()
    assert (folder.head, folder.plan, [log.rank for log in folder.logs]) == (None, None, [0, 2])
    assert not folder.ranks[0].compute_ns
    assert cli("audit", folder.path, "--store", store.folder).returncode == 2
    for path in (*folder.path.iterdir(), folder.path):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert cli("rm", "odd-run", "--store", store.folder).returncode == 0
    assert not folder.path.exists()


def test_no_name_of_a_file_reaches_the_terminal_raw(store: Store, cli: Cli) -> None:
    store.path("a\x1b[2J\n\x9b\u202erun: valid").write_text("{")
    for words in (
        ("runs",),
        ("rm", "--older-than", "1d"),
        ("show", "\x1b]0;title\x07"),
        ("audit", "no\x1b[2Jsuch.json"),
    ):
        finished = cli(*words, "--store", store.folder)
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*finished.stdout, *finished.stderr}
        assert not [line for line in finished.stderr.splitlines() if line.startswith(("run:", "\\x9b"))]


def test_a_manifest_that_is_a_pipe_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    from trainmark.train.checkpoint import find_damage

    os.mkfifo(tmp_path / "manifest.json")
    assert "a named pipe, not a file" in str(find_damage(tmp_path))
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").write_text(json.dumps({"size": 1, "sha256": ""}))
    os.mkfifo(tmp_path / "state.pt")
    assert find_damage(tmp_path)
