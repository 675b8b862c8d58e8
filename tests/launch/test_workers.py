"""A launcher's own ranks: what they are told, in which order they ended, and that none is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.records import make_plan

from trainmark.launch import workers
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.launcher import find_fault
from trainmark.launch.workers import Death, WorkerProcesses
from trainmark.record import events
from trainmark.record.events import EventWriter

Start = Callable[..., WorkerProcesses]
TWO = ClusterEnv(ranks=2, local_ranks=2)
FOREVER = "import time; time.sleep(600)"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts ranks that run these lines instead of training, and are told what ranks are told."""
    started: list[WorkerProcesses] = []
    popen = subprocess.Popen

    def begin(*codes: str, coordinator: Any = None) -> WorkerProcesses:
        def instead(words: list[str], **settings: Any) -> Any:
            return popen([sys.executable, "-c", codes[int(settings["env"]["RANK"])]], **settings)

        monkeypatch.setattr(workers.subprocess, "Popen", instead)
        plan = make_plan(recipe={"host_settings": "default"}, topology="1x2", max_restarts=1)
        started.append(WorkerProcesses(plan, TWO, tmp_path, task="trial", coordinator=coordinator))
        started[-1].start()
        return started[-1]

    yield begin
    for ranks in started:
        ranks.end()


def wait_for_all(ranks: WorkerProcesses) -> None:
    deadline_s = time.monotonic() + 30
    while not ranks.wait(0.1):
        assert time.monotonic() < deadline_s
    ranks.read()


def test_the_rank_that_died_first_is_blamed_with_its_signal(start: Start) -> None:
    ranks = start(FOREVER, FOREVER)
    ranks._processes[1].kill()
    while not ranks.deaths:
        ranks.wait(1)
        ranks.read()
    ranks._processes[0].terminate()
    wait_for_all(ranks)
    assert ranks.deaths == [Death(rank=1, code=-9), Death(rank=0, code=-15)]
    fault = find_fault(ranks)
    assert fault
    assert "rank 1 was killed by SIGKILL in startup at step 0" in str(fault.error)


@pytest.mark.parametrize(("said_after", "blamed"), [(True, "rank 1 was killed by SIGKILL"), (False, "rank 0 failed")])
def test_a_rank_killed_before_another_fails_is_the_cause_however_the_other_words_it(
    start: Start, said_after: bool, blamed: str
) -> None:
    ranks = start(FOREVER, FOREVER)
    before_ns = time.perf_counter_ns()
    ranks._processes[1].kill()
    while not ranks.deaths:
        ranks.wait(1)
        ranks.read()
    log = EventWriter(ranks.folder / "rank0.jsonl")
    log.write(events.Begin(rank=0, host="here", pid=1, startup_ns=0))
    at_ns = time.perf_counter_ns() if said_after else before_ns
    log.write(events.Failed(rank=0, exit_code=1, sentence="unhandled system error", at_ns=at_ns))
    log.close()
    ranks.read()
    fault = find_fault(ranks)
    assert fault
    assert str(fault.error).startswith(blamed)


def test_a_rank_that_crashes_after_it_was_done_is_noticed(start: Start) -> None:
    ranks = start("import os; os.abort()", "pass")
    for rank in (0, 1):
        with_events = EventWriter(ranks.folder / f"rank{rank}.jsonl")
        with_events.write(events.Begin(rank=rank, host="here", pid=1, startup_ns=0))
        with_events.write(events.End(ended="the steps asked for are done"))
        with_events.close()
    wait_for_all(ranks)
    assert ranks.deaths == [Death(rank=0, code=-6)]


def test_ranks_we_end_ourselves_are_not_blamed(start: Start) -> None:
    ranks = start(FOREVER, FOREVER)
    pids = [process.pid for process in ranks._processes.values()]
    ranks.end()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert ranks.deaths == []
    fault = find_fault(ranks)
    assert fault
    assert fault.consequence


def test_a_failure_of_ranks_before_a_restart_is_over(start: Start) -> None:
    ranks = start(FOREVER, "import os; os._exit(0 if os.environ['TRAINMARK_RESTART'] == '1' else 9)")
    while not ranks.failed:
        ranks.wait(0.1)
        ranks.read()
    assert ranks.deaths == [Death(rank=1, code=9)]
    assert ranks.may_restart
    before = ranks._processes[0].pid
    ranks.restart()
    assert not psutil.pid_exists(before), "all start again, not only the one that failed"
    assert not ranks.failed
    assert not ranks.may_restart, "once was allowed"


def test_a_rank_gets_its_place_its_connection_and_not_the_secret(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TRAINMARK_SECRET", "MASTER_ADDR", "PET_NNODES", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "of somebody else")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    kept = []

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        kept.append(ours)
        return theirs

    tell = (
        "import json, os, socket\n_, fd, prefix = os.environ['TRAINMARK_RENDEZVOUS'].split(':')\n"
        "socket.socket(fileno=int(fd)).sendall(json.dumps([prefix, dict(os.environ)]).encode())"
    )
    wait_for_all(start(tell, tell, coordinator=SimpleNamespace(connect=connect, rank_prefix="run1/ranks")))
    for rank, line in enumerate(kept):
        with line:
            prefix, environment = json.loads(line.makefile().read())
        assert prefix == "run1/ranks0/"
        assert [environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == [str(rank), "2", str(rank)]
        assert environment["GLOO_SOCKET_IFNAME"] == "mine"
        assert environment["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
        assert "of somebody else" not in environment.values()
