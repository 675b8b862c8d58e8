"""A process finds its place among others by what its launcher says, and refuses what does not fit together."""

from __future__ import annotations

import pytest

from trainmark.launch import cluster_env
from trainmark.launch.clusters import slurm
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Topology
from trainmark.train.ranks import read_host_name

NODES = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "a"}
TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "4321",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM_JOB = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2"}
SLURM_NODE = {
    **SLURM_JOB,
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "localhost,b",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SLURM_RANK = {
    **SLURM_NODE,
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "9",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "MASTER_ADDR": "a",
}


def find(topology: str, environ: dict[str, str], port: int | None = None) -> cluster_env.ClusterEnv:
    return cluster_env.detect_env(Topology.parse(topology), environ, port)


def without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


def test_a_machine_by_itself_starts_all_its_ranks() -> None:
    assert find("1x4", {}) == cluster_env.ClusterEnv(ranks=4, local_ranks=4)


def test_several_nodes_need_somebody_who_starts_them() -> None:
    with pytest.raises(NotReadyError, match=r"2x8 needs 2 nodes.*--hosts a,b"):
        find("2x8", {"MASTER_ADDR": "left-over"})


def test_a_pod_is_a_node_of_its_job() -> None:
    found = find("2x8", {**NODES, "PET_MASTER_PORT": "29500"})
    assert (found.launcher, found.launchers, found.first_rank, found.ranks) == (1, 2, 8, 8)
    assert (found.leader, found.port, found.is_rank, found.is_leader) == ("a", 29500, False, False)


@pytest.mark.parametrize("each", ["auto", "gpu"])
def test_a_pod_may_leave_the_number_of_its_processes_open(each: str) -> None:
    assert find("2x8", {**NODES, "PET_NPROC_PER_NODE": each}).ranks == 8


def test_a_process_of_torchrun_is_a_rank_and_meets_at_torchruns_store() -> None:
    found = find("2x8", TORCHRUN)
    assert (found.launcher, found.launchers, found.first_local_rank, found.local_ranks) == (9, 16, 1, 8)
    assert (found.is_rank, found.has_torchrun_store, found.port) == (True, True, 4321)


def test_torchrun_goes_before_slurm() -> None:
    assert find("2x8", {**SLURM_NODE, **TORCHRUN}).kind == "torchrun"


def test_one_task_a_node_is_a_node_and_one_a_device_is_a_rank() -> None:
    node, rank = find("2x8", SLURM_NODE), find("2x8", SLURM_RANK)
    assert (node.launcher, node.launchers, node.first_rank, node.ranks, node.is_rank) == (1, 2, 8, 8, False)
    assert (rank.launcher, rank.launchers, rank.first_local_rank, rank.local_ranks) == (9, 16, 1, 8)
    assert rank.is_rank
    assert node.leader == "localhost"


def test_two_steps_of_slurm_do_not_meet_at_one_port() -> None:
    assert find("2x8", SLURM_NODE).port != find("2x8", {**SLURM_NODE, "SLURM_STEP_ID": "4"}).port
    assert find("2x8", SLURM_NODE, port=1234).port == 1234


@pytest.mark.parametrize("environ", [SLURM_JOB, {**SLURM_NODE, "SLURM_STEP_NUM_TASKS": "1"}], ids=["batch", "shell"])
def test_a_batch_script_or_a_shell_in_an_allocation_calls_srun_itself(environ: dict[str, str]) -> None:
    assert find("2x8", environ).is_batch
    assert find("1x8", environ).kind == "alone"
    command = slurm.make_srun_command(Topology.parse("2x8"), {"SLURM_CPUS_PER_TASK": "4"}, ["trainmark", "run"])
    assert command[:4] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    assert "--cpus-per-task=4" in command
    assert command[-2:] == ["trainmark", "run"]


def test_a_process_of_open_mpi_is_a_rank_and_must_be_told_where_rank_0_is() -> None:
    assert find("2x8", OPENMPI).launcher == 9
    with pytest.raises(NotReadyError, match="-x MASTER_ADDR=HOST"):
        find("2x8", without(OPENMPI, "MASTER_ADDR"))


@pytest.mark.parametrize(
    ("topology", "environ", "sentence"),
    [
        ("2x8", {**TORCHRUN, "WORLD_SIZE": "15"}, "2x8 requested, 15 ranks joined"),
        ("2x8", {**TORCHRUN, "RANK": "16"}, "rank 16 of 16"),
        ("2x8", {**TORCHRUN, "LOCAL_WORLD_SIZE": "16"}, "16 ranks were started on this node"),
        ("2x8", without(TORCHRUN, "WORLD_SIZE"), "WORLD_SIZE is not set"),
        ("2x8", without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR is not"),
        ("2x8", {**TORCHRUN, "RANK": "one"}, "RANK is 'one', not a number"),
        ("4x8", NODES, "4x8 requested, the job has 2 nodes"),
        ("2x4", NODES, "2x4 requested, the job has 2 nodes with 8 processes each"),
        ("2x8", {**NODES, "PET_NODE_RANK": "2"}, "this is node 2"),
        ("2x8", without(NODES, "PET_MASTER_ADDR"), "PET_MASTER_ADDR is not"),
        ("2x8", {**SLURM_NODE, "SLURM_STEP_NUM_TASKS": "15"}, "2x8 requested, 15 ranks joined"),
        ("2x8", {**SLURM_RANK, "SLURM_STEP_TASKS_PER_NODE": "9,7"}, "7 ranks were started on this node"),
        ("2x8", {**OPENMPI, "OMPI_COMM_WORLD_SIZE": "15"}, "2x8 requested, 15 ranks joined"),
    ],
)
def test_a_launcher_that_contradicts_itself_or_the_plan_is_refused(
    topology: str, environ: dict[str, str], sentence: str
) -> None:
    with pytest.raises(NotReadyError, match=sentence):
        find(topology, environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7,9]", "gpu7"),
        ("rack[1-2]-ib,x", "rack1-ib"),
        ("b,a[1-2]", "b"),
    ],
)
def test_the_first_host_of_a_slurm_list_is_found(nodes: str, first: str) -> None:
    assert slurm.parse_first_host(nodes) == first


def test_a_slurm_node_is_called_by_its_slurm_name() -> None:
    assert read_host_name({"SLURMD_NODENAME": "tm2"}) == "tm2"
