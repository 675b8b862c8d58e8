"""The rendered script on a real Slurm of two nodes: a record if all goes well, else the name of the rank."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import TINY_RUN, Cli
from support import slurm
from support.fleets import host_record

pytestmark = [pytest.mark.slow, pytest.mark.skipif(slurm.missing() is not None, reason=str(slurm.missing()))]

PICTURES = 48
"""How many the set has for training."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Slurm]:
    with slurm.Slurm() as started:
        yield started


class Jobs:
    """Renders, submits and reads back, in a folder of its own."""

    def __init__(self, cluster: slurm.Slurm, cli: Cli, environment: Mapping[str, str], folder: Path) -> None:
        self.cluster = cluster
        self.cli = cli
        self.folder = folder
        self.store = Path(environment["TRAINMARK_STORE"])
        here = str(Path(sys.executable).parent)  # where `trainmark` was installed, too
        self.environment = {**environment, "PATH": f"{here}:{environment['PATH']}", "OMP_NUM_THREADS": "1"}

    def submit(self, topology: str, *words: str | Path) -> str:
        _, *plan_words = TINY_RUN
        said = self.cli("launch", "render", "slurm", *plan_words, "--topology", topology, "--name", "tiny", *words)
        assert said.returncode == 0, said.stderr
        (self.folder / "job.sh").write_text(said.stdout)
        return self.cluster.submit(f"--chdir={self.folder}", self.folder / "job.sh", environment=self.environment)

    def output(self, number: str) -> str:
        path = self.folder / f"tiny-{number}.out"
        return path.read_text() if path.exists() else f"no output\n{self.cluster.logs()}"

    def record(self) -> dict[str, Any]:
        [path] = (self.store / "records").glob("*.json")
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document


@pytest.fixture
def jobs(cluster: slurm.Slurm, cli: Cli, environment: dict[str, str], tmp_path: Path) -> Jobs:
    return Jobs(cluster, cli, environment, tmp_path)


@pytest.fixture
def jobs_from_nothing(cluster: slurm.Slurm, cli: Cli, environment: dict[str, str], tmp_path: Path) -> Jobs:
    return Jobs(cluster, cli, environment, tmp_path)


def until(done: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return found


def test_the_cluster_runs_a_task_on_each_of_two_nodes(cluster: slurm.Slurm) -> None:
    found = cluster.call("srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", "echo $SLURM_NODEID $SLURMD_NODENAME")
    assert sorted(found.stdout.splitlines()) == ["0 tm1", "1 tm2"], found.stderr


def test_the_rendered_script_leaves_one_valid_record_of_four_ranks(jobs: Jobs, pictures: Path) -> None:
    number = jobs.submit("2x2", "--data", pictures, "--epochs", "1", "--set", "target=101")
    ended = jobs.cluster.wait(number)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), jobs.output(number)
    record = jobs.record()
    assert record["status"] == "valid", jobs.output(number)
    ranks = record["series"]["ranks"]
    assert [sum(count * items for count, items in rank["items"]) for rank in ranks] == 4 * [PICTURES // 4]
    fingerprint = re.search(r"plan ([0-9a-f]{64})", (jobs.folder / "job.sh").read_text())
    assert fingerprint
    assert record["plan"]["fingerprint"] == fingerprint[1]
    assert f"{jobs.store}/records/{record['run_id']}.json" in jobs.output(number).replace("\n", "")


def test_inside_an_allocation_a_run_calls_srun_itself(jobs: Jobs, pictures: Path) -> None:
    words = [*TINY_RUN, "--topology", "2x1", "--data", str(pictures), "--steps", "2", "--set", "target=101", "--json"]
    ended = jobs.cluster.call(
        "salloc", "--nodes=2", sys.executable, "-m", "trainmark", *words, environment=jobs.environment, seconds=120
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["status"] == "valid"
    assert len(jobs.record()["series"]["ranks"]) == 2


def test_inside_an_allocation_a_verify_calls_srun_itself(jobs: Jobs, pictures: Path) -> None:
    _, *plan_words = TINY_RUN
    words = ["verify", *plan_words, "--topology", "2x1", "--data", str(pictures), "--steps", "1", "--json"]
    ended = jobs.cluster.call(
        "salloc", "--nodes=2", sys.executable, "-m", "trainmark", *words, environment=jobs.environment, seconds=120
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)["verify"]
    assert told["verdict"] == "equal" and len(told["hosts"]) == 2
    assert [path.stem for path in (jobs.store / "verify").glob("*.json")] == [told["verify_id"]]


def test_a_rank_killed_in_the_job_is_named_and_the_job_fails(jobs: Jobs, pictures: Path) -> None:
    number = jobs.submit("2x1", "--data", pictures, "--set", "epochs=100000", "--set", "evaluate_every=end")
    pid = until(lambda: rank_that_has_made_steps(jobs.store, 1), "rank 1 to make steps")
    os.kill(pid, signal.SIGKILL)
    ended = jobs.cluster.wait(number)
    output = jobs.output(number)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "4:0"), output
    assert re.search(r"rank 1\b.*\btm2\b.*SIGKILL", jobs.record()["ended"]), output
    assert re.search(r"rank 1\b", " ".join(output.split())), output
    assert not psutil.pid_exists(pid)


def test_a_cancelled_job_keeps_what_was_measured(jobs_from_nothing: Jobs, pictures: Path) -> None:
    jobs = jobs_from_nothing
    number = jobs.submit("2x1", "--data", pictures, "--set", "epochs=100000", "--set", "evaluate_every=end")
    until(lambda: rank_that_has_made_steps(jobs.store, 0), "rank 0 to make steps")
    jobs.cluster.call("scancel", "--signal=TERM", number)
    ended = jobs.cluster.wait(number)
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "143:0"), jobs.output(number)
    assert len(jobs.record()["series"]["ranks"]) == 2, jobs.output(number)


def rank_that_has_made_steps(store: Path, rank: int) -> int | None:
    """The process of a rank once it has written down a step; on two nodes of one machine the store is one folder."""
    for path in store.glob(f"**/rank{rank}.jsonl"):
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        if any(event["event"] == "steps" for event in events):
            return int(next(event["pid"] for event in events if event["event"] == "begin"))
    return None


ARRAY_STUB = """\
#!/bin/sh
# stands in for trainmark: a node's run leaves the record that was made for it
while [ "$1" != --store ]; do shift; done
mkdir -p "$2/records"
cp "$RECORDS/$SLURMD_NODENAME.json" "$2/records/resnet50-quick-$SLURMD_NODENAME.json"
"""


def test_the_array_of_a_fleet_runs_once_on_each_node_and_its_folder_is_judged(jobs: Jobs, tmp_path: Path) -> None:
    programs, shared = tmp_path / "bin", tmp_path / "shared"
    programs.mkdir()
    for node in slurm.NODES:
        (tmp_path / f"{node}.json").write_text(host_record(node).dumps(), encoding="utf-8")
    (programs / "trainmark").write_text(ARRAY_STUB, encoding="utf-8")
    (programs / "trainmark").chmod(0o755)
    said = jobs.cli("fleet", "resnet50", "--platform", "cpu", "--slurm", "2", "--store", shared, "--name", "tiny")
    assert said.returncode == 0, said.stderr
    (tmp_path / "job.sh").write_text(said.stdout)
    environment = {**jobs.environment, "PATH": f"{programs}:{jobs.environment['PATH']}", "RECORDS": str(tmp_path)}
    jobs.cluster.submit(f"--chdir={tmp_path}", tmp_path / "job.sh", environment=environment)
    until(lambda: len(list((shared / "records").glob("*.json"))) == 2, "both tasks of the array", 60)
    judged = jobs.cli("fleet", shared, "--expect", "2", "--json")
    assert sorted(one["host"] for one in json.loads(judged.stdout)["hosts"]) == list(slurm.NODES)
    assert judged.returncode in (0, 7), judged.stderr
    assert jobs.cli("fleet", shared, "--expect", "3").returncode == 6
