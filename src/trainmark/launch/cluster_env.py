"""Finds out where a process is: alone, or one of several that Kubernetes, Slurm, torchrun or Open MPI has started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from trainmark.launch import secret
from trainmark.record.errors import NotReadyError
from trainmark.record.run_folder import PLAN_FILE
from trainmark.record.topology import Topology

PORT = 29400
"""Where launchers meet unless told otherwise; torchrun's own choice."""

Kind = Literal["alone", "nodes", "slurm", "slurm-batch", "torchrun", "openmpi"]


@dataclass(frozen=True, kw_only=True)
class ClusterEnv:
    """One `trainmark run` process among those of a job. A process that has ranks under it is a launcher to the run."""

    kind: Kind = "alone"
    launchers: int = 1
    launcher: int = 0
    """This process's number; launcher 0 leads."""
    first_rank: int = 0
    ranks: int = 1
    """How many ranks this launcher starts: all of its node, or only itself where every rank was started for us."""
    first_local_rank: int = 0
    local_ranks: int = 1
    """How many ranks this machine has in all, other launchers' included."""
    leader: str = "localhost"
    port: int = PORT
    is_rank: bool = False
    """Every rank was started by somebody else, so that this launcher has one."""
    joins_store: bool = False
    """A store of torchrun's listens at leader:port, where the leader can tell the others how to find it."""

    @property
    def leads(self) -> bool:
        return self.launcher == 0

    @property
    def unit(self) -> str:
        """What a launcher of this run stands for."""
        return "rank" if self.is_rank else "node"

    @property
    def plan_file(self) -> str:
        """The name of this launcher's plan in the run folder."""
        return PLAN_FILE if self.leads else f"plan.launcher{self.launcher}.json"

    @property
    def world(self) -> int:
        return self.launchers * self.ranks

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are here, whoever started them."""
        return self.launchers == 1 or (self.is_rank and self.launchers == self.local_ranks)


def find(topology: Topology, environ: Mapping[str, str], port: int | None = None) -> ClusterEnv:
    """What the environment speaks of, checked against the topology asked for."""
    for look in (_torchrun, _nodes, _slurm, _openmpi):
        if (env := look(topology, environ, port)) is not None:
            return env
    if topology.nodes > 1:
        raise NotReadyError(
            f"topology {topology} needs {topology.nodes} nodes and only this machine is known; name them with "
            f"--hosts a,b, or start it in Slurm or Kubernetes ('trainmark launch render slurm ...' writes the script)"
        )
    return alone(topology)


def alone(topology: Topology) -> ClusterEnv:
    """One machine, whose ranks are all ours to start."""
    return ClusterEnv(ranks=topology.devices_per_node, local_ranks=topology.devices_per_node)


def _torchrun(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    """Each process is a rank, and torchrun's store is there to meet at."""
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, world, local, locals_ = (
        _number(environ, name, "torchrun") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    env = _rank(topology, "torchrun", rank, world, local, locals_)
    if env.launchers == 1:
        return env
    if "MASTER_ADDR" not in environ:
        raise NotReadyError("RANK is set and MASTER_ADDR is not: torchrun sets both, so something else set one of them")
    return _at(
        env,
        environ["MASTER_ADDR"],
        _number(environ, "MASTER_PORT", "torchrun"),
        joins_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _nodes(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    """Each process is a node, told so by torchrun's PET_ variables, as Kubernetes jobs and our ssh launcher do."""
    if "PET_NNODES" not in environ:
        return None
    nodes, node = (_number(environ, name, "PET_") for name in ("PET_NNODES", "PET_NODE_RANK"))
    each = environ.get("PET_NPROC_PER_NODE", str(topology.devices_per_node))
    if each.isdigit() and (nodes, int(each)) != (topology.nodes, topology.devices_per_node):
        raise NotReadyError(f"{topology} asked, the job has {nodes} nodes with {each} processes each")
    if nodes != topology.nodes:
        raise NotReadyError(f"{topology} asked, the job has {nodes} nodes")
    env = _node(topology, "nodes", node)
    if env.launchers == 1:
        return env
    if "PET_MASTER_ADDR" not in environ:
        raise NotReadyError("PET_NNODES is set and PET_MASTER_ADDR is not: the address of node 0 is needed")
    given = _number(environ, "PET_MASTER_PORT", "PET_") if "PET_MASTER_PORT" in environ else port
    return _at(env, environ["PET_MASTER_ADDR"], given or PORT)


def _slurm(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    """A task of srun is a rank where there is a task for each device, and a node where there is one a node."""
    if "SLURM_JOB_ID" not in environ:
        return None
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", "Slurm") if "SLURM_STEP_ID" in environ else 1
    if tasks == 1:  # a batch script, or a shell of somebody's: nothing was started for us yet
        return ClusterEnv(kind="slurm-batch", launchers=topology.nodes) if topology.nodes > 1 else None
    task, job, step = (_number(environ, f"SLURM_{name}", "Slurm") for name in ("PROCID", "JOB_ID", "STEP_ID"))
    leader = slurm_address(first_host(environ.get("SLURM_STEP_NODELIST", "")))
    # jobs may share a node, and steps a job: each gets a port of its own, below those the kernel hands out
    meeting_port = port or 10000 + (7 * job + step) % 20000
    if tasks == topology.nodes:
        return _at(_node(topology, "slurm", task), leader, meeting_port)
    if tasks == topology.devices:
        local = _number(environ, "SLURM_LOCALID", "Slurm")
        return _at(_rank(topology, "slurm", task, tasks, local, _tasks_here(environ)), leader, meeting_port)
    raise NotReadyError(
        f"{topology} asked, {tasks} ranks joined; give srun --ntasks-per-node=1, or one task for each device"
    )


def _openmpi(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    rank, world, local, locals_ = (
        _number(environ, f"OMPI_COMM_WORLD_{name}", "Open MPI") for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    a_node_each = world == topology.nodes and topology.devices_per_node > 1
    env = _node(topology, "openmpi", rank) if a_node_each else _rank(topology, "openmpi", rank, world, local, locals_)
    if env.launchers == 1:
        return env
    leader = environ.get("MASTER_ADDR") or ("localhost" if locals_ == world else "")
    if not leader:
        raise NotReadyError("mpirun does not say where rank 0 is; tell every rank with -x MASTER_ADDR=HOST")
    return _at(env, leader, port or PORT)


def _rank(topology: Topology, kind: Kind, rank: int, world: int, local: int, locals_: int) -> ClusterEnv:
    if world != topology.devices:
        raise NotReadyError(f"{topology} asked, {world} ranks joined")
    if not 0 <= rank < world or not 0 <= local < locals_ or locals_ > world:
        raise NotReadyError(f"the launcher contradicts itself: rank {rank} of {world}, {local} of {locals_} here")
    if locals_ != topology.devices_per_node:
        raise NotReadyError(f"{topology} asked, {locals_} ranks were started on this node")
    return ClusterEnv(
        kind=kind,
        launchers=world,
        launcher=rank,
        first_rank=rank,
        first_local_rank=local,
        local_ranks=locals_,
        is_rank=True,
    )


def _node(topology: Topology, kind: Kind, node: int) -> ClusterEnv:
    if not 0 <= node < topology.nodes:
        raise NotReadyError(f"{topology} asked, and this is node {node}; nodes count from 0 to {topology.nodes - 1}")
    each = topology.devices_per_node
    return ClusterEnv(
        kind=kind, launchers=topology.nodes, launcher=node, first_rank=node * each, ranks=each, local_ranks=each
    )  # fmt: skip


def _at(env: ClusterEnv, leader: str, port: int, *, joins_store: bool = False) -> ClusterEnv:
    return replace(env, leader=leader, port=port, joins_store=joins_store)


def _number(environ: Mapping[str, str], name: str, who: str) -> int:
    value = environ.get(name)
    if value is None or not re.fullmatch(r"[0-9]+", value):
        said = "is not set" if value is None else f"is {value!r}, not a number"
        raise NotReadyError(f"this looks like a process of {who}, but {name} {said}")
    return int(value)


def _tasks_here(environ: Mapping[str, str]) -> int:
    """From a list such as `2(x3),1`: two tasks on the first three nodes, one on the fourth."""
    node = _number(environ, "SLURM_NODEID", "Slurm")
    counts: list[int] = []
    for count, _, times in re.findall(r"(\d+)(\(x(\d+)\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    if node >= len(counts):
        raise NotReadyError(
            "this looks like a process of Slurm, but SLURM_STEP_TASKS_PER_NODE does not count this node"
        )
    return counts[node]


def first_host(node_list: str) -> str:
    """The first name of a Slurm node list: gpu03 of `gpu[03-05,9],login`, rack1-ib of `rack[1-2]-ib`."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", node_list)
    if not match:
        raise NotReadyError("this looks like a process of Slurm, but its list of nodes is empty")
    return "".join(part or "" for part in match.groups())


def slurm_address(node: str) -> str:
    """Where a Slurm node is reached: by its name, or where that does not resolve by the address Slurm itself uses."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        pass
    else:
        return node
    try:
        shown = subprocess.run(
            ["scontrol", "show", "node", "-o", node], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        shown = ""
    match = re.search(r"\bNodeAddr=(\S+)", shown)
    if not match:
        raise NotReadyError(
            f"the address of Slurm's node {node} is not known here: neither its name resolves nor scontrol"
        )
    return match[1]


def start_by_srun(topology: Topology, command: Sequence[str]) -> NoReturn:
    """Becomes the srun that starts the launchers of a batch job, which get a secret of their own from it."""
    os.environ.setdefault(secret.VARIABLE, secret.make())
    os.execvp("srun", own_srun(topology, os.environ, command))  # noqa: S606


def own_srun(topology: Topology, environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """The srun that starts one launcher a node inside an allocation. A task that ends badly must not end the leader,
    which then still has a record to write."""
    each = environ.get("SLURM_CPUS_PER_TASK")  # a step does not inherit it
    return [
        *("srun", f"--nodes={topology.nodes}", f"--ntasks={topology.nodes}", "--ntasks-per-node=1", "--overlap"),
        *([f"--cpus-per-task={each}"] if each else []),
        *("--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=300", *command),
    ]
