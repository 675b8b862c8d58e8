"""Two ranks on one machine: they train as one would, and what befalls one of them is found out and named."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from conftest import TINY_RUN, Cli
from support.background import AT_STEP_3_OF_RANK_1, LONG, Started, record_of, sabotage, wait_until_gone

from trainmark.features.links import probe as link_probe

TWO = ("--topology", "1x2")


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "OMP_NUM_THREADS": "1"}


def started(environment: dict[str, str], pictures: Path, *words: str) -> Started:
    run = Started(environment, *LONG, *TWO, "--data", pictures, *words)
    run.wait_for_steps(2)
    return run


def test_a_killed_rank_is_named_with_its_signal_step_and_last_lines(
    environment: dict[str, str], pictures: Path
) -> None:
    run = started(environment, pictures)
    pids = run.pids()
    os.kill(pids[1], signal.SIGKILL)
    code, _, err = run.end()
    assert code == 4
    assert "rank 1 was killed by SIGKILL in train at step" in err
    record = record_of(run.store)
    assert record["status"] == "incomplete"
    assert "rank 1 was killed by SIGKILL" in record["ended"]
    assert record["metrics"]["p_core"]["value"] > 0
    wait_until_gone(pids)


def test_a_run_on_one_machine_listens_on_loopback_only_and_leaves_no_file_elsewhere(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = started({**environment, "TMPDIR": str(scratch)}, pictures)
    everybody = [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]
    listening = [line.laddr for one in everybody for line in one.net_connections("inet") if line.status == "LISTEN"]
    assert {address.ip for address in listening} == {"127.0.0.1"}, listening
    assert not psutil.Process(run.process.pid).net_connections("inet"), "ranks reach their launcher through no network"
    outer = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == 2]
    for address in set(outer) - {"127.0.0.1"}:
        for port in {port for _, port in listening}:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=10)
    [folder] = (run.store / "runs").iterdir()
    assert [path.stat().st_mode & 0o777 for path in folder.glob("rendezvous*")] == [0o600]
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert not list(folder.glob("rendezvous*"))
    assert not [path for path in scratch.iterdir() if not path.name.startswith("torchinductor_")], "torch's own cache"


def test_a_rank_that_exits_without_a_word_is_named_with_its_code_and_last_lines(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    act = "print('the last thing it said', flush=True); os._exit(7)"
    damage = sabotage(tmp_path / "site", AT_STEP_3_OF_RANK_1.format(act=act))
    code, _, err = Started({**environment, **damage}, *LONG, *TWO, "--data", pictures).end()
    assert code == 4
    assert "rank 1 exited with 7 in train at step" in err
    assert "the last thing it said" in err


def test_a_rank_that_raises_is_named_and_not_the_one_that_lost_it(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    damage = sabotage(tmp_path / "site", AT_STEP_3_OF_RANK_1.format(act="raise ValueError('no more')"))
    code, _, err = Started({**environment, **damage}, *LONG, *TWO, "--data", pictures).end()
    assert code == 1
    assert re.search(r"rank 1 failed in train at step 3: unexpected ValueError at .*: no more", err)
    assert "Traceback" in err


def test_a_stopped_rank_is_a_hang_with_the_stacks_of_all(environment: dict[str, str], pictures: Path) -> None:
    run = started(environment, pictures, "--hang-timeout", "3")
    pids = run.pids()
    os.kill(pids[1], signal.SIGSTOP)
    code, _, err = run.end()
    assert code == 124
    assert "no progress for 3 s: rank 0 was last seen in train at step" in err
    for rank in (0, 1):
        assert "most recent call first" in (run.folder() / f"rank{rank}.stacks").read_text(encoding="utf-8")
    assert record_of(run.store)["status"] == "incomplete"
    wait_until_gone(pids)


def test_ranks_that_wait_for_different_things_are_a_hang(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    act = "import torch; torch.distributed.barrier()"
    damage = sabotage(tmp_path / "site", AT_STEP_3_OF_RANK_1.format(act=act))
    run = Started({**environment, **damage}, *LONG, *TWO, "--data", pictures, "--hang-timeout", "4")
    code, _, err = run.end()
    assert code == 124, err
    assert "rank 1 was last seen in train at step 3" in err
    assert "barrier" in (run.folder() / "rank1.stacks").read_text(encoding="utf-8")


def test_ranks_end_with_their_launcher(environment: dict[str, str], pictures: Path) -> None:
    run = started(environment, pictures)
    pids = run.pids()
    run.process.kill()
    run.process.communicate()
    wait_until_gone(pids)


def test_a_slow_rank_is_named_on_the_record(environment: dict[str, str], pictures: Path) -> None:
    run = started(environment, pictures)
    slow = run.pids()[1]
    over = threading.Event()

    def hold_back() -> None:
        """Lets the rank have the processor for two thirds of the time."""
        while not over.wait(0.04):
            os.kill(slow, signal.SIGSTOP)
            over.wait(0.08)
            os.kill(slow, signal.SIGCONT)

    holding = threading.Thread(target=hold_back)
    holding.start()
    try:
        run.wait_for_steps(14)
    finally:
        over.set()
        holding.join()
    run.process.send_signal(signal.SIGINT)
    code, _, _ = run.end()
    assert code == 130
    record = record_of(run.store)
    [text] = [doubt["text"] for doubt in record["doubts"] if doubt["code"] == "rank-skew"]
    assert "rank 1" in text
    assert record["metrics"]["rank_skew"]["value"] > 5


ALL_SIZES = "from trainmark.features.links import probe, rank_check; rank_check.BUDGET_S, probe.MAX_REPEATS = 60, 3"
"""With so much time for so little no size is left out, however busy the machine."""


def test_the_record_of_two_ranks_says_what_the_exchange_and_the_link_were(
    cli: Cli, pictures: Path, tmp_path: Path
) -> None:
    with socket.create_server(("", 0)) as taken:  # a port in use is no obstacle on one machine
        port = str(taken.getsockname()[1])
        words = ("--data", pictures, "--steps", "3", "--json", "--port", port)
        done = cli(*TINY_RUN, *TWO, *words, OMP_NUM_THREADS="1", **sabotage(tmp_path / "site", ALL_SIZES))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [len(rank["exchange_ns"]) for rank in record["series"]["ranks"]] == [3, 3]
    assert 0 < record["metrics"]["exchange"]["value"] < 100
    sizes = [result["bytes"] for result in record["environment"]["link"]]
    assert sizes == list(link_probe.SIZES_BYTES)
    levels = [(level["level"], level["collective"]) for level in record["environment"]["link_levels"]]
    assert levels == [("node", "all-reduce"), ("node", "all-gather"), ("node", "reduce-scatter")]
    exchange = record["environment"]["exchange"]
    assert exchange["parallel"] == "ddp"
    assert exchange["dtypes"] == {"float32": 4 * exchange["parameters"]}
    assert 0 < exchange["backward_s"] < max(record["series"]["ranks"][0]["compute_ns"]) / 1e9


def test_ranks_that_somebody_elses_torchrun_started_make_one_run(environment: dict[str, str], pictures: Path) -> None:
    """It has started every rank before trainmark is asked."""
    starter = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "trainmark"]
    words = [*TINY_RUN, *TWO, "--data", str(pictures), "--steps", "3"]
    done = subprocess.run([*starter, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = record_of(Path(environment["TRAINMARK_STORE"]))
    assert record["status"] == "valid"
    assert [rank["rank"] for rank in record["series"]["ranks"]] == [0, 1]
    assert done.stdout.count("p_core") == 1


def test_a_world_that_is_not_the_plans_is_refused(cli: Cli, pictures: Path) -> None:
    torchruns = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    done = cli(*TINY_RUN, "--topology", "1x3", "--data", pictures, **torchruns, MASTER_PORT="29500")
    assert done.returncode == 3
    assert "trainmark: 1x3 requested, 2 ranks joined" in done.stderr


def test_ranks_whose_weights_part_during_the_run_are_doubted(
    environment: dict[str, str], pictures: Path, tmp_path: Path
) -> None:
    """As by collectives that go wrong after the check at the start."""
    act = "[weight.data.add_(0.01) for weight in self.model.parameters()]"
    damage = sabotage(tmp_path / "site", AT_STEP_3_OF_RANK_1.format(act=act))
    words = (*TINY_RUN, "--data", pictures, "--topology", "1x2", "--epochs", "2", "--quiet")
    honest, wrong = {**environment, "TRAINMARK_STORE": str(tmp_path / "honest")}, {**environment, **damage}
    for variables, expected in ((honest, False), (wrong, True)):
        run = Started(variables, *words)
        code, _, err = run.end()
        assert code == 0, err
        assert ("ranks-apart" in {doubt["code"] for doubt in record_of(run.store)["doubts"]}) is expected
