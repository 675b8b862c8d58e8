"""Beside every run its machine is sampled: cheaply, to the run's end and no longer, and never at the run's cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import TINY_RUN, Cli
from support.background import LONG, Started, record_of, wait_until_gone
from support.records import make_plan

from trainmark.launch import workers
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.coordinator import RANK_FILE
from trainmark.launch.sampler import ProcessTree
from trainmark.record.cores import read_busy_s
from trainmark.record.events import DeviceSamples, Event, EventTail, HostSample, SamplerBegin, SamplerEnd, Unavailable

OWN_FILE = """
title = "A CPU whose sensors are a program's"
device_type = "cpu"
collectives = "gloo"
precisions = ["fp32"]

[sensors]
kind = "program"

[[sensors.programs]]
argv = [{argv}]
timeout_s = 20
parse = "csv"

[sensors.programs.fields]
power_w = {{ from = "power" }}
"""


def platform_file(folder: Path, body: str) -> Path:
    """A platform whose sensors are read by a program of ours."""
    program = folder / "smi.py"
    program.write_text(body, encoding="utf-8")
    path = folder / "own.toml"
    words = ", ".join(json.dumps(word) for word in (sys.executable, "-S", str(program)))
    path.write_text(OWN_FILE.format(argv=words), encoding="utf-8")
    return path


class Sampler:
    """The sampler by itself, as a run starts it."""

    def __init__(self, folder: Path, platform: str | Path = "cpu", **environment: str) -> None:
        self.file = folder / "telemetry0.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainmark.launch.sampler", str(self.file), str(platform), "1"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
        )

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in EventTail(self.file).new_events() if isinstance(event, kind)]

    def wait_for(self, kind: type[Event], count: int) -> list[Any]:
        deadline = time.monotonic() + 60
        while len(found := self.events(kind)) < count:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found

    def end(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=20)
        return self.process.returncode


@pytest.mark.slow
def test_the_sampler_writes_down_the_host_and_says_what_it_cost(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path)
    before_ns = time.perf_counter_ns()
    hosts = sampler.wait_for(HostSample, 3)
    assert sampler.end() == 0
    [begin], [end] = sampler.events(SamplerBegin), sampler.events(SamplerEnd)
    assert (begin.devices, begin.cores) == ([0], os.cpu_count())
    assert before_ns < hosts[0].at_ns < hosts[1].at_ns < hosts[2].at_ns < end.at_ns < time.perf_counter_ns()
    assert 0 < hosts[0].memory_used_bytes < psutil.virtual_memory().total
    assert hosts[0].busy_s <= hosts[-1].busy_s
    assert hosts[0].own_s > 0
    assert hosts[0].shm_free_bytes >= 0
    assert end.cpu_s > 0


def test_the_sampler_ends_with_whoever_started_it_however_that_ends(tmp_path: Path) -> None:
    file = tmp_path / "telemetry0.jsonl"
    code = (
        "import os, subprocess, sys, time; "
        f"words = [sys.executable, '-m', 'trainmark.launch.sampler', {str(file)!r}, 'cpu', '1']; "
        "print(subprocess.Popen(words, env={**os.environ, 'TRAINMARK_PARENT': str(os.getpid())}).pid, flush=True); "
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    deadline = time.monotonic() + 60
    while not list(EventTail(file).new_events()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.communicate()
    wait_until_gone([pid])


@pytest.mark.slow
def test_a_program_that_hangs_holds_up_neither_host_samples_nor_the_end(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    hanging = f"import os, time\nopen({str(pids)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    sampler = Sampler(tmp_path, platform_file(tmp_path, hanging))
    sampler.wait_for(HostSample, 2)
    deadline = time.monotonic() + 60
    while not pids.exists() or not pids.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert sampler.end() == 0
    assert sampler.events(SamplerEnd)
    assert not sampler.events(DeviceSamples)
    wait_until_gone([int(pids.read_text())])


def test_devices_that_cannot_be_told_apart_are_not_guessed(tmp_path: Path) -> None:
    path = platform_file(tmp_path, "print('power\\n5\\n6')")
    text = path.read_text(encoding="utf-8").replace(
        'device_type = "cpu"', 'device_type = "odd"\nvisible_devices = "SEEN"'
    )
    path.write_text(text, encoding="utf-8")
    sampler = Sampler(tmp_path, path, SEEN="MIG-1")
    [said] = sampler.wait_for(Unavailable, 1)
    sampler.end()
    assert "does not tell which devices" in said.fields["power_w"]
    assert not sampler.events(DeviceSamples)


def test_a_full_disk_ends_the_sampler_and_nothing_else(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "telemetry0.jsonl").symlink_to("/dev/full")
    sampler = Sampler(tmp_path)
    _, said = sampler.process.communicate(timeout=60)
    assert sampler.process.returncode == 4
    assert b"No space left" in said


@pytest.mark.slow
def test_a_tree_counts_what_its_processes_used_also_those_that_ended() -> None:
    code = (
        "import os, sys, time\n"
        "def burn():\n"
        "    while time.process_time() < 0.3: pass\n"
        "child = os.fork()\n"
        "if child == 0:\n    burn(); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "if os.fork() == 0:\n    burn(); print('burnt', flush=True); time.sleep(600)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        used = ProcessTree(process.pid).read_used_s()
        assert used is not None and used >= 0.5
        assert read_busy_s() > used
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert ProcessTree(process.pid).read_used_s() is None


def test_a_record_holds_what_the_sampler_saw_of_the_host(cli: Cli, pictures: Path) -> None:
    ended = cli(
        *TINY_RUN, "--data", pictures, "--set", "target=101", "--seconds", "2", "--set", "epochs=1000", "--json"
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    [machine] = document["telemetry"]["machines"]
    assert machine["samples"] > 2
    assert not machine["ended_early"]
    begin_s, end_s = machine["training_s"]
    assert 0 < begin_s < end_s < document["metrics"]["e2e_time"]["value"] + 1
    for name in ("cpu_percent", "foreign_percent", "memory_used_bytes", "load"):
        series = machine["host_series"][name]
        assert len(series["at_s"]) == len(series["values"]) >= 2
    assert 0 <= document["environment"]["foreign_load"] <= 1
    shown = cli("show", "--all")
    assert "Telemetry" in shown.stdout
    assert "Host processors" in shown.stdout


def test_power_of_scripted_devices_is_on_the_record_and_in_the_table(cli: Cli, pictures: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(
        'power_w = 120\ntemperature_c = 66\nmemory_used_mib = 900\nthrottled = ["heat"]\n', encoding="utf-8"
    )
    words = [word if word != "cpu" else "standin" for word in TINY_RUN]
    words += ["--set", "target=101", "--seconds", "4", "--set", "epochs=1000"]
    ended = cli(*words, "--data", pictures, TRAINMARK_STANDIN=str(script))
    assert ended.returncode == 0, ended.stderr
    [path] = (tmp_path / "store" / "records").glob("*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    found = {alias: entry["value"] for alias, entry in document["metrics"].items()}
    assert found["power"] == pytest.approx(120, rel=1e-2)  # counters are read a moment after a sample's own time
    assert (found["power_peak"], found["temperature_peak"], found["throttled"]) == (120, 66, 100)
    assert found["mem_device"] == pytest.approx(900 / 1024)
    begin_s, end_s = document["telemetry"]["machines"][0]["training_s"]
    assert found["energy"] == pytest.approx(120 * (end_s - begin_s), rel=1e-2)
    items = sum(count * value for count, value in document["series"]["ranks"][0]["items"])
    assert found["energy_per_item"] == pytest.approx(found["energy"] / items)
    said = {doubt["code"]: doubt["text"] for doubt in document["doubts"]}
    assert "heat" in said["throttled"]
    assert "of 60" in said["power-sampling"]


def test_a_sampler_that_is_killed_leaves_the_run_valid_and_the_record_says_so(
    environment: dict[str, str], pictures: Path
) -> None:
    started = Started(environment, *LONG, "--data", pictures, "--seconds", "4")
    started.wait_for_steps(1)
    [begin] = [
        event
        for event in EventTail(started.folder() / "telemetry0.jsonl").new_events()
        if isinstance(event, SamplerBegin)
    ]  # fmt: skip
    os.kill(begin.pid, signal.SIGKILL)
    code, _, err = started.end()
    assert code == 0, err
    document = record_of(started.store)
    assert document["status"] == "valid"
    assert "sampler-ended" in {doubt["code"] for doubt in document["doubts"]}
    [machine] = document["telemetry"]["machines"]
    assert machine["ended_early"]
    assert document["metrics"]["mem_device"]["value"] is None


def place(**changes: Any) -> ClusterEnv:
    return ClusterEnv(kind="slurm", launchers=4, local_ranks=2, is_rank=True, **changes)


@pytest.mark.parametrize(("local_rank", "samplers"), [(0, 1), (1, 0)])
def test_a_machine_whose_ranks_were_started_one_by_one_has_one_sampler_which_knows_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_rank: int, samplers: int
) -> None:
    started: list[list[str]] = []

    def start(words: list[str], **settings: Any) -> SimpleNamespace:
        started.append(words)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    plan = make_plan(recipe={"host_settings": "default"})
    launcher = workers.WorkerProcesses(
        plan, place(launcher=2 + local_rank, first_rank=2 + local_rank, first_local_rank=local_rank), tmp_path
    )
    launcher.start()
    own = [words for words in started if "trainmark.launch.sampler" in words]
    assert len(own) == samplers
    for words in own:
        assert words[3:6] == [str(tmp_path / "telemetry2.jsonl"), "cpu", "2"]
        assert {"--first-rank=2", f"--tree={os.getppid()}"} <= set(words)


def test_a_follower_hands_its_samples_to_the_leader(tmp_path: Path) -> None:
    handed = workers.WorkerProcesses(make_plan(), place(launcher=3, first_rank=3), tmp_path).files()
    assert handed["telemetry3.jsonl"] == tmp_path / "telemetry3.jsonl"
    assert all(RANK_FILE.fullmatch(name) for name in handed)
