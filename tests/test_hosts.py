"""Several hosts, as namespaces with a real sshd in each, and runs on them from a third."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_RUN
from support import hosts as making
from support.hosts import Host, Hosts, Sshd
from support.records import make_record

pytestmark = [pytest.mark.slow, pytest.mark.skipif(making.missing() is not None, reason=str(making.missing()))]


def until(so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Two hosts with an sshd each, and a third with the keys to both: its user starts the runs."""

    hosts: Hosts
    servers: list[Sshd]
    config: Path
    pictures: Path

    @property
    def user(self) -> Host:
        return self.hosts[2]

    def site(self, home: Path, *, python: str = sys.executable, **changes: str | int) -> dict[str, str]:
        """The environment of a user whose site file says how to go there."""
        facts = {"python": python, "ssh_config": str(self.config), **changes}
        site = home / "trainmark.toml"
        site.write_text("[remote]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in facts.items()))
        return {**os.environ, "TRAINMARK_CONFIG": str(site), "TRAINMARK_STORE": str(home / "store")}

    def site_with_python(self, home: Path, first: str) -> dict[str, str]:
        """The same, with a Python over there that starts after these lines of a shell."""
        python = self.program("python", f'#!/bin/sh\n{first}exec {sys.executable} "$@"\n')
        return self.site(home, python=python)

    def program(self, name: str, text: str) -> str:
        """A script that every host can run."""
        path = self.hosts.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def nothing_runs(self) -> bool:
        return not any(server.host.processes() for server in self.servers)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Iterator[Cluster]:
    if why := making.missing_sshd():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("keys")
    key = making.make_key(folder / "id")
    with Hosts(3) as three:
        servers = [host.start_sshd(key, reachable=[pictures]) for host in list(three)[:2]]
        config = making.ssh_config(folder / "config", key, servers)
        yield Cluster(hosts=three, servers=servers, config=config, pictures=pictures)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """However a run on the hosts ends, no process of it stays there."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        until(cluster.nothing_runs, f"left behind: {[server.host.processes() for server in cluster.servers]}")


START = """
import json, pathlib, sys
from trainmark.features.hosts import remote_run
from trainmark.record import site
from trainmark.record.errors import TrainmarkError
from trainmark.record.plan import Topology
hosts, store = sys.argv[1:]
topology = Topology(nodes=hosts.count(",") + 1, devices_per_node=1)
try:
    record, code = remote_run.run_on_hosts(hosts, ["resnet50"], topology, site.load(), pathlib.Path(store), quiet=False)
except TrainmarkError as error:
    sys.exit(f"{error.exit_code} {error}")
print(json.dumps([record and record.run_id, code]))
"""
BOTH = "trainmark-h0,trainmark-h1"

STUB = """\
#!/bin/sh
# stands in for python -m trainmark run
[ "$PET_NODE_RANK" = 0 ] || exit 0
folder=$HOME/store/runs/run-1
mkdir -p "$folder/checkpoints"
touch "$folder/checkpoints/large"
echo "$(id -un) on $(hostname) of $PET_NNODES meets at $PET_MASTER_ADDR" > "$folder/rank0.log"
echo step 1 of 1 >&2
echo "trainmark: run folder $folder" >&2
cat {record}
"""
HOLD = f"""\
#!/bin/sh
# a run that goes on until its input ends
exec {sys.executable} -c '
import signal
from trainmark.launch.signals import end_with_stdin
end_with_stdin()
print("held", flush=True)
signal.pause()
'
"""


def start(cluster: Cluster, environment: dict[str, str], hosts: str = BOTH) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", START, hosts, environment["TRAINMARK_STORE"]]
    return cluster.user.popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_run_comes_back_from_a_user_who_is_not_root_with_its_record_and_its_folder(
    cluster: Cluster, tmp_path: Path
) -> None:
    record = cluster.hosts.folder / "record.json"
    record.write_text(make_record(run_id="run-1").dumps() + "\n", encoding="utf-8")
    stub = cluster.program("stub", STUB.format(record=record))
    code, out, err = ended(start(cluster, cluster.site(tmp_path, python=stub)))
    assert (code, json.loads(out)) == (0, ["run-1", 0])
    assert err == "step 1 of 1\n"
    fetched = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert fetched == [tmp_path / "store" / "runs" / "run-1" / "rank0.log"]
    assert fetched[0].read_text(encoding="utf-8") == "trainer on trainmark-h0 of 2 meets at trainmark-h0\n"


def test_a_host_whose_key_is_not_known_is_not_entered(cluster: Cluster, tmp_path: Path) -> None:
    changed = tmp_path / "config"
    lines = cluster.config.read_text(encoding="utf-8").replace(str(cluster.config.parent / "known_hosts"), "/dev/null")
    changed.write_text(lines, encoding="utf-8")
    code, _, err = ended(start(cluster, cluster.site(tmp_path, ssh_config=str(changed))))
    assert code == 1
    assert "3 host trainmark-h" in err
    assert "cannot be entered through ssh: Host key verification failed." in err


def test_a_host_where_nobody_listens_is_named(cluster: Cluster, tmp_path: Path) -> None:
    hold = cluster.program("hold", HOLD)
    _, _, err = ended(start(cluster, cluster.site(tmp_path, python=hold), "trainmark-h0,trainer@trainmark-h2"))
    assert "3 host trainmark-h2 cannot be entered through ssh: ssh: connect to host trainmark-h2" in err
    assert "Connection refused" in err


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"python": "/nowhere/python"}, "cannot start trainmark with /nowhere/python: "),
        ({"python": "/bin/false"}, "ended with exit code 1"),
        ({"folder": "nowhere"}, "has no folder 'nowhere' to start in: "),
    ],
)
def test_a_site_file_that_is_wrong_about_a_host_is_told_so(
    cluster: Cluster, tmp_path: Path, facts: dict[str, str], sentence: str
) -> None:
    _, _, err = ended(start(cluster, cluster.site(tmp_path, **facts)))
    assert f"host trainmark-h0 {sentence}" in err or f"host trainmark-h1 {sentence}" in err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_hosts_end_their_part_however_the_launcher_ends(
    cluster: Cluster, tmp_path: Path, how: signal.Signals
) -> None:
    hold = cluster.program("hold", HOLD)
    launcher = start(cluster, cluster.site(tmp_path, python=hold))
    with launcher:
        assert launcher.stderr is not None
        assert launcher.stderr.readline() == "held\n"
        assert not cluster.nothing_runs()
        launcher.send_signal(how)
        code, out, _ = ended(launcher)
    if how is signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert json.loads(out) == [None, 128 + how]


def test_a_whole_run_on_two_hosts_is_one_record_with_both(cluster: Cluster, tmp_path: Path) -> None:
    environment = cluster.site(tmp_path)
    words = [*TINY_RUN, "--data", cluster.pictures, "--topology", "2x1", "--hosts", BOTH, "--steps", "4", "--json"]
    ran = cluster.user.run([sys.executable, "-m", "trainmark", *words], env=environment, timeout=240)
    assert ran.returncode == 0, ran.stderr
    record: dict[str, Any] = json.loads(ran.stdout)
    assert record["plan"]["topology"] == "2x1"
    assert [rank["host"] for rank in record["series"]["ranks"]] == ["trainmark-h0", "trainmark-h1"]
    assert record["plan"]["data"]["folder"] == str(cluster.pictures)
    folder = tmp_path / "store" / "runs" / record["run_id"]
    assert {"plan.json", "rank0.jsonl", "rank1.jsonl"} <= {path.name for path in folder.iterdir()}
    assert [path.stem for path in (tmp_path / "store" / "records").glob("*.json")] == [record["run_id"]]


def test_an_interrupt_reaches_the_ranks_on_every_host_and_the_record_still_comes(
    cluster: Cluster, tmp_path: Path
) -> None:
    environment = cluster.site(tmp_path)
    endless = ["--set", "epochs=100000", "--set", "evaluate_every=end", "--json"]
    words = [*TINY_RUN, "--data", cluster.pictures, "--topology", "2x1", "--hosts", BOTH, *endless]
    earlier = set(events_on(cluster.servers[0]))
    run = cluster.user.popen(
        [sys.executable, "-m", "trainmark", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def steps() -> bool:
        assert run.poll() is None, run.communicate()
        return any('"steps"' in path.read_text("utf-8") for path in set(events_on(cluster.servers[0])) - earlier)

    until(steps, "the run makes no steps")
    run.send_signal(signal.SIGINT)
    code, out, _ = ended(run)
    record = json.loads(out)
    assert (code, record["status"]) == (130, "incomplete")
    assert all(rank["compute_ns"] for rank in record["series"]["ranks"])
    assert (tmp_path / "store" / "runs" / record["run_id"] / "rank1.jsonl").exists()


def events_on(server: Sshd) -> Iterator[Path]:
    return server.home.glob(".local/share/trainmark/runs/*/rank0.jsonl")


def test_a_verify_over_two_hosts_names_the_one_that_computes_wrongly(cluster: Cluster, tmp_path: Path) -> None:
    script = cluster.hosts.folder / "standin.toml"
    flips = "".join(
        f"[[device]]\nindex = {device}\n[[device.flips]]\noperator = '_fused_sgd_'\nat = [4]\ntensor = 3\n"
        for device in (0, 1)
    )
    script.write_text(f"latency_us = 0\ndevices = 2\n{flips}", encoding="utf-8")
    # only the second host has such a script
    one_alone = f'[ "$(hostname)" = trainmark-h0 ] || export TRAINMARK_STANDIN={script}\n'
    tiny = ["--set", "width=4", "--set", "batch_per_device=4", "--set", "batch_norm=per-device"]
    words = ["verify", "resnet50", "--recipe", "smoke", "--platform", "standin", *tiny, "--data", cluster.pictures]
    words += ["--topology", "2x1", "--hosts", BOTH, "--steps", "1"]
    environment = {**cluster.site_with_python(tmp_path, one_alone), "COLUMNS": "200"}
    ran = cluster.user.run([sys.executable, "-m", "trainmark", *words], env=environment, timeout=120)
    assert ran.returncode == 5, ran.stderr
    assert "the arithmetic is wrong: 1 difference in 3 rounds of 1 step on 2 ranks" in ran.stdout
    assert "step 1, rank 1 on trainmark-h1: weight " in ran.stdout
    [kept] = (tmp_path / "store" / "verify").glob("*.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["hosts"] == ["trainmark-h0", "trainmark-h1"]
    refused = cluster.user.run(
        [sys.executable, "-m", "trainmark", "verify", "--against", "last", "--hosts", BOTH], env=environment, timeout=60
    )
    assert refused.returncode == 2 and "run it on the first host, not with --hosts" in refused.stderr
