"""Nodes of their own, each with its network and its store: one run, one record, and every fault told to all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN, Cli
from support.background import LONG, Started, record_of, sabotage, wait_until_gone
from support.hosts import Host, Hosts, missing, missing_shaper

from trainmark.data.text import make as make_text

SECRET = "what all nodes of a test know"
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def machines() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts


class Nodes:
    """The same command on several hosts, as a Kubernetes job or our ssh launcher would start it."""

    def __init__(
        self,
        hosts: list[Host],
        tmp_path: Path,
        *words: str | Path,
        nodes: int | None = None,
        environ: dict[int, dict[str, str]] | None = None,
    ) -> None:
        nodes = nodes or len(hosts)
        self.runs = [
            Started(
                {
                    **os.environ,
                    "TRAINMARK_STORE": str(tmp_path / f"store{number}"),
                    "TRAINMARK_CACHE": str(tmp_path / "cache"),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONWARNINGS": "",
                    "PET_NNODES": str(nodes),
                    "PET_NODE_RANK": str(number),
                    "PET_NPROC_PER_NODE": "1",
                    "PET_MASTER_ADDR": hosts[0].name,
                    "PET_MASTER_PORT": "29400",
                    "TRAINMARK_SECRET": SECRET,
                    **(environ or {}).get(number, {}),
                },
                *words,
                "--topology",
                f"{nodes}x1",
                host=host,
            )
            for number, host in enumerate(hosts)
        ]

    def wait_for_steps(self, count: int) -> None:
        for run in self.runs:
            run.wait_for_steps(count)

    def end(self) -> list[tuple[int, str, str]]:
        return [run.end() for run in self.runs]

    def record(self) -> dict[str, Any]:
        return record_of(self.runs[0].store)


def test_two_nodes_train_as_one_machine_would(machines: Hosts, tmp_path: Path, pictures: Path, cli: Cli) -> None:
    # at smoke's own rate rounding grows into another training within some steps
    words = (*TINY_RUN, "--data", str(pictures), "--epochs", "2", "--set", "learning_rate=0.01")
    alone = cli(*words, "--json", OMP_NUM_THREADS="1")
    nodes = Nodes([machines[0], machines[1]], tmp_path, *words, "--set", "batch_per_device=4")
    ends = nodes.end()
    assert [code for code, _, _ in ends] == [0, 0], ends
    one, two = json.loads(alone.stdout), nodes.record()
    assert [rank["host"] for rank in two["series"]["ranks"]] == [machines[0].name, machines[1].name]
    assert items(two) == items(one)
    assert two["series"]["loss"] == pytest.approx(one["series"]["loss"], rel=1e-4)
    assert two["quality"]["history"][-1]["samples"] == one["quality"]["history"][-1]["samples"]
    assert two["quality"]["value"] == pytest.approx(one["quality"]["value"])
    assert "p_core" in ends[0][1]
    assert ends[1][1] == ""
    assert not list((nodes.runs[1].store / "records").iterdir())
    assert not list((nodes.runs[1].store / "launchers").iterdir()), "what the leader has need not be kept twice"


def items(record: dict[str, Any]) -> int:
    return sum(count * value for rank in record["series"]["ranks"] for count, value in rank["items"])


def test_a_rank_killed_on_another_node_is_named_with_its_host_and_every_node_says_4(
    machines: Hosts, tmp_path: Path, pictures: Path
) -> None:
    nodes = Nodes([machines[0], machines[1]], tmp_path, *LONG, "--data", pictures)
    nodes.wait_for_steps(2)
    os.kill(nodes.runs[1].pids()[0], signal.SIGKILL)
    (code, _, err), (follower_code, _, _) = nodes.end()
    assert (code, follower_code) == (4, 4)
    assert f"rank 1 on {machines[1].name} was killed by SIGKILL in train at step" in err
    record = nodes.record()
    assert record["status"] == "incomplete"
    assert [len(rank["compute_ns"]) > 0 for rank in record["series"]["ranks"]] == [True, True]


LISTENING = """
import psutil
print({line.laddr.ip for line in psutil.net_connections("inet") if line.status == "LISTEN"})
"""
ATTACK = """
import contextlib, hmac, pickle, random, socket, struct, sys, time

def dial():
    return socket.create_connection((sys.argv[1], 29400), timeout=10)

garbage = [random.Random(0).randbytes(64) for _ in range(20)]
for words in (pickle.dumps(print), struct.pack(">I", 2**32 - 1) + bytes(100_000), bytes(64), b"", *garbage):
    with dial() as line, contextlib.suppress(OSError):
        line.sendall(words)  # which the leader may cut short
with dial() as line, contextlib.suppress(OSError):  # a wrong key, then what a node would say
    heard, own = line.recv(4096), bytes(32)
    line.sendall(own + hmac.digest(b"no secret of theirs", b"client" + heard[-32:] + own, "sha256"))
    line.sendall(struct.pack(">I", 9) + b"set here/1")
    assert not line.recv(4096)
with dial() as line:  # the answer of one connection, replayed on another
    proof = hmac.digest(b"what all nodes of a test know", b"client" + line.recv(4096)[-32:] + bytes(32), "sha256")
with dial() as line, contextlib.suppress(OSError):
    line.recv(4096)
    line.sendall(bytes(32) + proof)
    assert not line.recv(4096)
silent = []
with contextlib.suppress(OSError):
    silent += [dial() for _ in range(300)]  # more than may try at once
slow = dial()
with contextlib.suppress(OSError):
    for _ in range(20):
        slow.sendall(b"x")
        time.sleep(0.05)
print("tried")
"""


def test_nodes_listen_only_where_they_meet_and_hear_no_stranger(
    machines: Hosts, tmp_path: Path, pictures: Path
) -> None:
    nodes = Nodes([machines[0], machines[1]], tmp_path, *LONG, "--data", pictures)
    nodes.wait_for_steps(2)
    for number in (0, 1):
        seen = machines[number].run([sys.executable, "-c", LISTENING]).stdout
        assert seen == f"{{'{machines[number].address}'}}\n", "not on all interfaces"
    assert machines[2].run([sys.executable, "-c", ATTACK, machines[0].address]).stdout == "tried\n"
    before = len(nodes.runs[0].ranks()[0].compute_ns)
    nodes.wait_for_steps(before + 2)
    nodes.runs[0].process.send_signal(signal.SIGINT)
    assert [code for code, _, _ in nodes.end()] == [130, 130]
    assert nodes.record()["ended"] == "interrupted"


def test_a_node_without_the_secret_of_the_others_is_not_let_in(machines: Hosts, tmp_path: Path, pictures: Path) -> None:
    words = (*TINY_RUN, "--data", pictures, "--join-timeout", "4")
    other = {"TRAINMARK_SECRET": "what no other node knows"}
    (code, _, err), (follower_code, _, follower_err) = Nodes(
        [machines[0], machines[1]], tmp_path, *words, environ={1: other}
    ).end()
    assert (code, follower_code) == (3, 3)
    assert f"rejected {machines[1].address}: TRAINMARK_SECRET does not match" in " ".join(err.split())
    said = " ".join(follower_err.split())
    assert f"rejected by the leader at {machines[0].name}:29400: TRAINMARK_SECRET does not match" in said


@pytest.mark.parametrize(("secret", "sentence"), [("", "is not set"), ("short", "is shorter than 16 characters")])
def test_nodes_that_have_no_secret_say_how_to_give_them_one(
    machines: Hosts, tmp_path: Path, pictures: Path, secret: str, sentence: str
) -> None:
    own = {"TRAINMARK_SECRET": secret}
    [(code, _, err)] = Nodes([machines[1]], tmp_path, *TINY_RUN, "--data", pictures, nodes=2, environ={0: own}).end()
    assert code == 3
    said = " ".join(err.split())
    assert sentence in said
    assert "export TRAINMARK_SECRET=$(openssl rand -hex 32)" in said


def test_the_ranks_of_all_nodes_start_again_from_the_leaders_checkpoint(
    machines: Hosts, tmp_path: Path, pictures: Path
) -> None:
    words = (
        *TINY_RUN,
        "--data",
        pictures,
        "--epochs",
        "4",
        "--set",
        "checkpoint_every=1 epoch",
        "--max-restarts",
        "1",
    )
    nodes = Nodes([machines[0], machines[1]], tmp_path, *words)
    nodes.wait_for_steps(4)  # an epoch has three
    os.kill(nodes.runs[1].pids()[0], signal.SIGKILL)
    ends = nodes.end()
    assert [code for code, _, _ in ends] == [0, 0], ends
    record = nodes.record()
    assert (record["status"], len(record["restarts"])) == ("valid", 1)
    assert items(record) == 4 * 48
    assert [len(rank["compute_ns"]) for rank in record["series"]["ranks"]] == [12, 12]


def test_a_node_that_never_joins_ends_the_wait_and_says_who_came(
    machines: Hosts, tmp_path: Path, pictures: Path
) -> None:
    words = (*TINY_RUN, "--data", pictures, "--join-timeout", "6")
    nodes = Nodes([machines[0], machines[1]], tmp_path, *words, nodes=3)
    (code, _, err), (follower_code, _, _) = nodes.end()
    assert (code, follower_code) == (124, 124)
    assert f"6 s passed and 2 of 3 nodes joined ({machines[0].name}, {machines[1].name}); node 2 did not" in err


def test_a_cut_link_is_noticed_on_both_sides_and_nothing_is_lost(
    machines: Hosts, tmp_path: Path, pictures: Path
) -> None:
    nodes = Nodes([machines[0], machines[2]], tmp_path, *LONG, "--data", pictures, "--hang-timeout", "6")
    nodes.wait_for_steps(2)
    pids = [pid for run in nodes.runs for pid in run.pids()]
    machines.cut(2)
    try:
        (code, _, err), (follower_code, _, follower_err) = nodes.end()
    finally:
        machines.mend(2)
    assert (code, follower_code) == (4, 4)
    assert "node 1 was not heard from for 3 s while training stood still" in err
    assert "the leader was not heard from for 3 s" in follower_err
    kept = nodes.runs[1].folder()
    assert str(kept) in follower_err
    assert (kept / "rank1.jsonl").stat().st_size > 0
    assert "most recent call first" in (kept / "rank1.stacks").read_text(encoding="utf-8")
    assert nodes.record()["status"] == "incomplete"
    wait_until_gone(pids)


def test_nodes_with_unlike_versions_are_refused_with_the_table(machines: Hosts, tmp_path: Path, pictures: Path) -> None:
    other = sabotage(tmp_path / "site", "import trainmark; trainmark.__version__ = '0.0.1-other'")
    nodes = Nodes([machines[0], machines[1]], tmp_path, *TINY_RUN, "--data", pictures, environ={1: other})
    for code, _, err in nodes.end():
        assert code == 3
        assert "machines of this run differ" in err
        [row] = [line.split() for line in err.splitlines() if line.startswith("  trainmark ")]
        assert row[-1] == "0.0.1-other"


def test_a_node_that_is_not_ready_tells_the_others_why(machines: Hosts, tmp_path: Path, pictures: Path) -> None:
    nodes = Nodes([machines[0], machines[1]], tmp_path, *TINY_RUN, "--data", tmp_path / "set")
    (code, _, err), (follower_code, _, _) = nodes.end()
    assert (code, follower_code) == (3, 3)
    assert f"data folder {tmp_path / 'set'} does not exist" in err


@pytest.mark.skipif(missing_shaper() is not None, reason=str(missing_shaper()))
@pytest.mark.slow
def test_the_probe_tells_a_slow_link(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        hosts.slow(1, mbit=80)
        doctors = Nodes([hosts[0], hosts[1]], tmp_path, "doctor", "--platform", "cpu", "--json")
        ends = doctors.end()
    assert [code for code, _, _ in ends] == [0, 0], ends
    [links] = [section for section in json.loads(ends[0][1])["sections"] if section["name"] == "links"]
    fastest = max(result["bus_gigabytes_per_s"] for result in links["results"] if result["bytes"] >= 2**18)
    assert fastest < 2 * 80e6 / 8 / 1e9


def test_a_taken_port_is_said_and_not_worked_around(machines: Hosts, tmp_path: Path, pictures: Path) -> None:
    script = "import socket; s = socket.create_server(('', 29400)); print('listening', flush=True); input()"
    server = machines[0].popen(["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "listening\n"
    nodes = Nodes([machines[0]], tmp_path, *TINY_RUN, "--data", pictures, nodes=2)
    [(code, _, err)] = nodes.end()
    server.communicate("\n")
    assert code == 3
    assert "port 29400 of this machine is taken; choose another" in err


@pytest.mark.parametrize("killed", [0, 1], ids=["the leader", "a follower"])
def test_no_process_outlives_a_launcher_that_is_killed(
    machines: Hosts, tmp_path: Path, pictures: Path, killed: int
) -> None:
    nodes = Nodes([machines[0], machines[1]], tmp_path, *LONG, "--data", pictures, "--hang-timeout", "4")
    nodes.wait_for_steps(2)
    pids = [pid for run in nodes.runs for pid in run.pids()]
    nodes.runs[killed].process.kill()
    code, _, err = nodes.end()[1 - killed]
    assert code == 4, err
    wait_until_gone([*pids, *machines[0].processes(), *machines[1].processes()])
    if killed:
        assert f"node 1 ({machines[1].name}) was lost" in " ".join(err.split()) or "rank 1" in err
        assert nodes.record()["status"] == "incomplete"


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_nodes_share_a_network_that_one_machine_would_hold(
    machines: Hosts, tmp_path: Path, cli: Cli, tmp_path_factory: pytest.TempPathFactory, parallel: str
) -> None:
    text = tmp_path_factory.mktemp("text") / "set"
    make_text.make(text, lines=400)
    shape = ("layers=2", "width=32", "heads=4", "kv_heads=2", "ffn=48", "context=32", "learning_rate=0.002")
    run = ("run", "llama8b", "--recipe", "smoke", "--platform", "cpu", "--data", text, "--steps", "4")
    words = (*run, *(word for setting in shape for word in ("--set", setting)))
    alone = cli(*words, "--set", "batch_per_device=8", "--json", OMP_NUM_THREADS="1")
    (tmp_path / "store0").mkdir()
    machines[1].run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "store0")])  # which it does not share
    shared = ("--set", "batch_per_device=4", "--set", f"parallel={parallel}")
    nodes = Nodes([machines[0], machines[1]], tmp_path, *words, *shared)
    ends = nodes.end()
    assert [code for code, _, _ in ends] == [0, 0], ends
    one, two = json.loads(alone.stdout), nodes.record()
    kinds = {"ddp": "all-reduce", "fsdp": "reduce-scatter and all-gather"}
    assert two["environment"]["exchange"]["kind"] == kinds[parallel]
    assert two["series"]["loss"] == pytest.approx(one["series"]["loss"], rel=2e-4)
    [newest] = (nodes.runs[0].store / "runs" / two["run_id"] / "checkpoints").iterdir()
    assert len(list(newest.glob("rank*"))) == {"ddp": 0, "fsdp": 2}[parallel]
    if parallel == "fsdp":
        machines[1].run(["umount", str(tmp_path / "store0")])
        one_store = {1: {"TRAINMARK_STORE": str(nodes.runs[0].store)}}
        going_on = ("run", "--resume", two["run_id"], "--steps", "1")
        ends = Nodes([machines[0], machines[1]], tmp_path, *going_on, environ=one_store).end()
        assert [code for code, _, _ in ends] == [0, 0], ends
