"""Faults that are aimed at a moment of a run: a kill inside a write, a clock set back, a limit that is reached."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY_RUN, Cli
from support.background import record_of, sabotage

pytestmark = pytest.mark.slow

KILLED_IN_THE_SECOND_CHECKPOINT = """
import os, signal
if "RANK" in os.environ or "LOCAL_RANK" in os.environ or "TRAINMARK_PARENT" in os.environ:
    import sys
    seen = []
    def hook(event, args):
        if event == "open" and str(args[0]).endswith("manifest.json") and "w" in str(args[1]):
            seen.append(args[0])
            if len(seen) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
"""
LAUNCHER_KILLED_AT_ITS_RECORD = """
import os, pathlib, signal, sys
def hook(event, args):
    if event == "{event}" and "TRAINMARK_PARENT" not in os.environ:
        folder = pathlib.Path(str(args[0])).parent
        if folder.name == "records" and any(folder.parent.glob("runs/*")):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""
CLOCK_SET_BACK = """
import itertools, time
now, looks = time.time, itertools.count()
def earlier():  # a day at every look
    return now() - 86400 * next(looks)
time.time = earlier
"""


def test_a_worker_killed_inside_a_checkpoint_is_resumed_though_the_clock_is_set_back(
    cli: Cli, environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    words = (*TINY_RUN, "--data", pictures, "--epochs", "3", "--set", "checkpoint_every=1 epochs", "--quiet")
    killed = cli(*words, **sabotage(tmp_path / "kill", KILLED_IN_THE_SECOND_CHECKPOINT))
    assert killed.returncode == 4, killed.stderr
    assert "was killed by SIGKILL" in killed.stderr
    store = Path(environment["TRAINMARK_STORE"])
    assert record_of(store)["status"] == "incomplete"
    assert [path.name for path in store.glob("runs/*/checkpoints/step-*")] == ["step-000000006"]
    for reading in (("runs",), ("show",), ("audit", "last")):
        looked = cli(*reading)
        assert looked.returncode == 0, (reading, looked.stderr)

    resumed = cli("run", "--resume", "last", "--quiet", **sabotage(tmp_path / "clock", CLOCK_SET_BACK))
    assert resumed.returncode == 0, resumed.stderr
    listed = json.loads(cli("runs", "--json").stdout)["runs"]
    [name] = [row["run_id"] for row in listed if row["status"] == "valid"]
    record = json.loads((store / "records" / f"{name}.json").read_text())
    assert 0 < record["metrics"]["e2e_time"]["value"] < 180  # of clocks that nobody sets
    assert cli("audit", name).returncode == 0
    assert not [path for path in store.glob("runs/*/checkpoints/.*") if name in str(path)]


@pytest.mark.parametrize("event", ["open", "os.link"])
def test_a_launcher_killed_at_its_record_leaves_a_run_that_can_be_resumed(
    event: str, process: Cli, cli: Cli, environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    words = (*TINY_RUN, "--data", pictures, "--epochs", "1", "--quiet")
    code = LAUNCHER_KILLED_AT_ITS_RECORD.replace("{event}", event)
    killed = process(*words, **sabotage(tmp_path / "kill", code))
    assert killed.returncode == -signal.SIGKILL
    store = Path(environment["TRAINMARK_STORE"])
    for reading in (("runs",), ("runs", "--json")):
        looked = cli(*reading)
        assert looked.returncode == 0 and "Traceback" not in looked.stderr, (reading, looked.stderr)
    assert all(json.loads(path.read_text()) for path in store.glob("records/*.json"))
    [folder] = store.glob("runs/*")
    resumed = cli("run", "--resume", folder.name, "--quiet")
    assert resumed.returncode == 0, resumed.stderr


CPU_GROUP = Path("/sys/fs/cgroup/cpu")
"""Where a test may give a run half a core: the first version of control groups, and root."""


@pytest.mark.skipif(
    not os.access(CPU_GROUP / "cpu.cfs_quota_us", os.W_OK), reason="needs root and a mounted /sys/fs/cgroup/cpu"
)
def test_a_run_with_half_a_core_takes_one_thread_and_ends(
    cli: Cli, environment: dict[str, str], pictures: Path
) -> None:
    group = CPU_GROUP / f"trainmark-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        words = [sys.executable, "-m", "trainmark", *TINY_RUN, "--data", str(pictures), "--steps", "6", "--quiet"]
        script = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        ended = subprocess.run(["sh", "-c", script, "sh", *words], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    finally:
        group.rmdir()
    record = record_of(Path(environment["TRAINMARK_STORE"]))
    assert record["status"] == "valid" and record["environment"]["threads"] == 1


def test_a_disk_that_runs_out_of_inodes_ends_in_a_sentence_and_leaves_readable_events(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = " ".join(
        f"'{word}'" for word in (*TINY_RUN, "--data", pictures, "--store", disk / "store", "--epochs", "1")
    )
    script = (
        f"mount -t tmpfs -o size=500m,nr_inodes=400 tmpfs '{disk}' && mkdir -p '{disk}/store' '{disk}/filler' && "
        f"( while ! ls {disk}/store/runs/*/rank0.jsonl >/dev/null 2>&1; do sleep 0.05; done; "
        f"i=0; while : > {disk}/filler/$i; do i=$((i+1)); done 2>/dev/null; true ) & "
        f"'{sys.executable}' -m trainmark {words}; code=$?; "
        f"cat {disk}/store/runs/*/rank0.jsonl | head -c 200 >&2; ls -A {disk}/store/records >&2; exit $code"
    )
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    if "mount" in ended.stderr and "permi" in ended.stderr:
        pytest.skip("this system lets nobody mount a disk of a test's own")
    assert ended.returncode in (3, 4), ended.stderr
    assert "No space left on device" in ended.stderr
    assert '{"event":"begin"' in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ".json.gz" not in ended.stderr and ".tmp" not in ended.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
def test_a_limit_of_processes_is_named(environment: dict[str, str], pictures: Path, tmp_path: Path) -> None:
    # root itself has no such limit; the other user may read what is root's, as the tests' folders are
    caps = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    other = ("setpriv", "--reuid=64123", "--clear-groups", *caps, "prlimit", "--nproc=4")
    alone = {**environment, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = (*TINY_RUN, "--data", str(pictures), "--steps", "2", "--quiet")
    ended = subprocess.run(
        [*other, sys.executable, "-m", "trainmark", *words], env=alone, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 3, ended.stderr
    assert "no more processes or threads may be started here; raise the limit ('ulimit -u'" in ended.stderr
    assert "Traceback" not in ended.stderr
