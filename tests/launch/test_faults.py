"""What happens when things go wrong: real processes, real signals, the right exit code, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import TINY_RUN, Cli
from support.background import LONG, Started, gone, record_of


def test_one_interrupt_finishes_the_step_saves_and_summarises(environment: dict[str, str], pictures: Path) -> None:
    run = Started(environment, *LONG, "--data", pictures)
    run.wait_for_steps(3)
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.end()
    assert code == 130
    record = record_of(run.store)
    assert (record["status"], record["ended"]) == ("incomplete", "interrupted")
    assert record["metrics"]["p_core"]["value"] > 0
    assert "p_core" in out
    assert list((run.folder() / "checkpoints").glob("step-*"))


def test_a_second_interrupt_stops_at_once_and_still_keeps_the_steps(
    environment: dict[str, str], pictures: Path
) -> None:
    run = Started(environment, *LONG, "--data", pictures)
    worker = run.wait_for_steps(3).pid
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)  # a rank that cannot finish its step
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)  # two signals in one instant would be delivered as one
    run.process.send_signal(signal.SIGINT)
    code, _, _ = run.end()
    assert code == 130
    assert record_of(run.store)["status"] == "incomplete"
    assert gone(worker)


def test_terminate_flushes_and_exits_143(environment: dict[str, str], pictures: Path) -> None:
    run = Started(environment, *LONG, "--data", pictures)
    run.wait_for_steps(3)
    run.process.terminate()
    code, _, _ = run.end()
    assert code == 143
    record = record_of(run.store)
    assert (record["status"], record["ended"]) == ("incomplete", "terminated")


def test_a_killed_rank_is_named_and_the_run_exits_4(environment: dict[str, str], pictures: Path) -> None:
    run = Started(environment, *LONG, "--data", pictures)
    worker = run.wait_for_steps(5).pid
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    code, _, err = run.end()
    assert code == 4
    assert "rank 0 was killed by SIGKILL in train at step" in err
    record = record_of(run.store)
    assert record["status"] == "incomplete"
    assert len(record["series"]["ranks"][0]["compute_ns"]) >= 5


def test_when_the_launcher_is_killed_the_ranks_go_and_the_events_stay_readable(
    environment: dict[str, str], pictures: Path, cli: Cli
) -> None:
    run = Started(environment, *LONG, "--data", pictures)
    worker = run.wait_for_steps(5).pid
    assert worker is not None
    helpers = [child.pid for child in psutil.Process(worker).children()]
    run.process.kill()
    run.process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in (worker, *helpers)):
        assert time.monotonic() < deadline, "a rank outlived its launcher"
        time.sleep(0.05)
    assert len(run.ranks()[0].compute_ns) >= 5
    listed = cli("runs")
    assert run.folder().name[-6:] in listed.stdout
    assert "no record" in listed.stdout
    shown = cli("show", run.folder().name[-6:], "--all")
    assert "the run was cut off" in shown.stdout
    assert "p_core" in shown.stdout


def test_a_rank_that_stands_still_ends_the_run_at_the_limit(environment: dict[str, str], pictures: Path) -> None:
    run = Started(environment, *LONG, "--data", pictures, "--hang-timeout", "3")
    worker = run.wait_for_steps(3).pid
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    code, _, err = run.end()
    assert code == 124
    assert "no progress for 3 s: rank 0 was last seen in train at step" in err
    assert gone(worker)
    assert record_of(run.store)["status"] == "incomplete"


def test_a_loss_that_is_not_finite_exits_5_and_publishes_no_throughput(
    cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    ended = cli(*TINY_RUN, "--data", pictures, "--set", "learning_rate=1e9", "--set", "warmup_epochs=0")
    assert ended.returncode == 5
    assert "the loss was not finite at step" in ended.stderr
    record = record_of(tmp_path / "store")
    assert record["status"] == "invalid"
    assert record["metrics"]["p_core"]["value"] is None


@pytest.fixture
def damaged(pictures: Path, tmp_path: Path) -> Path:
    """The set with one truncated picture."""
    folder = tmp_path / "damaged"
    shutil.copytree(pictures, folder)
    picture = sorted((folder / "train").glob("*/*.JPEG"))[5]
    picture.write_bytes(picture.read_bytes()[:2000])
    return folder


def test_a_corrupt_picture_is_named_and_exits_4(cli: Cli, damaged: Path) -> None:
    ended = cli(*TINY_RUN, "--data", damaged, "--epochs", "1")
    assert ended.returncode == 4
    name = sorted((damaged / "train").glob("*/*.JPEG"))[5].name
    assert f"{name} cannot be read" in ended.stderr


def test_a_corrupt_picture_can_be_left_out_and_is_on_the_record(cli: Cli, damaged: Path, tmp_path: Path) -> None:
    ended = cli(*TINY_RUN, "--data", damaged, "--epochs", "1", "--skip-bad", "1")
    assert ended.returncode == 0, ended.stderr
    record = record_of(tmp_path / "store")
    name = sorted((damaged / "train").glob("*/*.JPEG"))[5].name
    assert len(record["skipped_files"]) == 1
    assert name in record["skipped_files"][0]
    assert sum(count * items for count, items in record["series"]["ranks"][0]["items"]) == 47


@contextlib.contextmanager
def small_disk(disk: Path, size: str, script: str = "") -> Iterator[int]:
    """A real file system of that size, in a mount namespace of its own; the process that holds it and then runs the
    script there."""
    disk.mkdir()
    held = f"mount -t tmpfs -o size={size} tmpfs '{disk}' && echo held && {{ {script or ':'}; }} && exec cat"
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", held],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder.pid
        finally:
            holder.kill()


def run_inside(holder: int, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command where the disk of that process is mounted."""
    enter = ["nsenter", "--target", str(holder), "--user", "--mount", f"--wd={Path.cwd()}", "--"]
    command = [*enter, sys.executable, "-m", "trainmark", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_full_disk_ends_in_a_sentence_and_leaves_readable_events(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    # the check beforehand would refuse a small disk, so the room it asks for is taken away only afterwards
    fill = (
        f"while ! ls {disk}/store/runs/*/rank0.jsonl >/dev/null 2>&1; do sleep 0.05; done; "
        f"dd if=/dev/zero of={disk}/filler bs=64k 2>/dev/null; true"
    )
    with small_disk(disk, "200m", fill) as holder:
        words = [*LONG, "--data", str(pictures), "--store", str(disk / "store")]
        run = run_inside(holder, words, environment)
        [events] = Path(f"/proc/{holder}/root{disk}/store/runs").glob("*/rank0.jsonl")
        assert events.read_text(encoding="utf-8").startswith('{"event":"begin"')
    assert run.returncode == 4, run.stderr
    assert "No space left on device" in run.stderr


def test_too_little_room_is_refused_before_the_start(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m") as holder:
        run = run_inside(holder, [*LONG, "--data", str(pictures), "--store", str(disk)], environment)
    assert run.returncode == 3, run.stderr
    assert "MiB free and this run may need" in run.stderr


def test_a_store_that_cannot_be_written_exits_3_before_training(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    ended = cli(*TINY_RUN, "--data", pictures, "--store", tmp_path / "file")
    assert ended.returncode == 3
    assert "is a file, not a folder" in ended.stderr


def test_missing_data_exits_3_and_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    ended = cli(*TINY_RUN, "--data", tmp_path / "nowhere")
    assert ended.returncode == 3
    assert "nowhere does not exist; give one with --data DIR" in ended.stderr


def test_a_reader_that_goes_away_does_not_harm_the_run(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    ours, theirs = os.pipe()
    command = [sys.executable, "-m", "trainmark", *TINY_RUN, "--data", str(pictures), "--epochs", "1"]
    nothing = subprocess.DEVNULL
    run = subprocess.Popen(command, env=environment, stdin=nothing, stdout=theirs, stderr=nothing)
    os.close(theirs)
    os.close(ours)
    assert run.wait(90) == 0
    assert record_of(tmp_path / "store")["status"] == "valid"
