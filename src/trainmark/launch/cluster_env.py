"""Detects the cluster environment of a process: alone, or one of several launchers of a job."""

from __future__ import annotations

import pkgutil
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from trainmark.launch import clusters
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Topology

if TYPE_CHECKING:
    from trainmark.launch.cluster_job import ClusterJob

PORT = 29400
"""The default port of the rendezvous, as in torchrun."""
SECRET = "TRAINMARK_SECRET"  # noqa: S105 - a variable's name
"""The variable with the shared secret of the launchers of a run, proved in their handshake."""
MIN_SECRET_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class ClusterEnv:
    """One `trainmark run` process among those of a job: a launcher, which starts ranks."""

    kind: str = "alone"
    """The module of `launch/clusters` that detected it."""
    launchers: int = 1
    launcher: int = 0
    """The number of this process; launcher 0 is the leader."""
    first_rank: int = 0
    ranks: int = 1
    """How many ranks this launcher starts: all of its node, or one where the cluster starts a process per rank."""
    first_local_rank: int = 0
    local_ranks: int = 1
    """How many ranks this machine has, including those of other launchers."""
    leader: str = "localhost"
    port: int = PORT
    is_rank: bool = False
    """The cluster starts one process per rank, so that this launcher has one rank."""
    is_batch: bool = False
    """An allocation without started launchers: `start_tasks` of its environment starts them."""
    has_torchrun_store: bool = False
    """The store of torchrun listens at leader:port, where the leader publishes its own address."""

    @property
    def is_leader(self) -> bool:
        return self.launcher == 0

    @property
    def unit(self) -> str:
        """What a launcher of this run is called."""
        return "rank" if self.is_rank else "node"

    @property
    def world(self) -> int:
        return self.launchers * self.ranks

    @property
    def is_one_machine(self) -> bool:
        """Whether all ranks are on this machine."""
        return self.launchers == 1 or (self.is_rank and self.launchers == self.local_ranks)


class ClusterEnvironment(Protocol):
    """A module of `launch/clusters`; all parts but those for detection, or those for rendering, are optional."""

    PRIORITY: int
    """Smaller numbers are tried first: a torchrun inside a Slurm job is a torchrun."""
    RENDERS: str
    """What `render` writes, for the help."""
    REQUEST: type
    """A dataclass whose fields are the options of `trainmark launch render NAME` (`cluster_job.option`)."""

    def detect(self, topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
        """The environment of this process, if it was started by this cluster."""

    def start_tasks(self, topology: Topology, command: Sequence[str]) -> NoReturn:
        """Replaces this process by the program that starts the launchers of an allocation."""

    def render(self, request: Any, job: ClusterJob, say: Callable[[str], None]) -> str:
        """The run as a script or manifest."""


def load_environments(ability: str) -> dict[str, ClusterEnvironment]:
    """The environments with a function, `detect` or `render`, by name."""
    names = [module.name for module in pkgutil.iter_modules(clusters.__path__)]
    found = {name: _load(name) for name in names}
    return {name: each for name, each in found.items() if hasattr(each, ability)}


def _load(name: str) -> ClusterEnvironment:
    return cast(ClusterEnvironment, import_module(f"{clusters.__name__}.{name}"))


def detect_env(topology: Topology, environ: Mapping[str, str], port: int | None = None) -> ClusterEnv:
    """The environment of this process, checked against the requested topology."""
    for environment in sorted(load_environments("detect").values(), key=lambda each: each.PRIORITY):
        if (env := environment.detect(topology, environ, port)) is not None:
            return env
    if topology.nodes > 1:
        raise NotReadyError(
            f"topology {topology} needs {topology.nodes} nodes and only this machine is known; name them with "
            f"--hosts a,b, or start it in Slurm or Kubernetes ('trainmark launch render slurm ...' writes the script)"
        )
    return make_local_env(topology)


def make_local_env(topology: Topology) -> ClusterEnv:
    """One machine with one launcher."""
    return ClusterEnv(ranks=topology.devices_per_node, local_ranks=topology.devices_per_node)


def start_tasks(env: ClusterEnv, topology: Topology, command: Sequence[str]) -> NoReturn:
    """Starts the launchers of a batch job in place of this process."""
    _load(env.kind).start_tasks(topology, command)


def make_rank_env(topology: Topology, kind: str, rank: int, world: int, local: int, locals_: int) -> ClusterEnv:
    """The environment of a process that is one rank."""
    if world != topology.devices:
        raise NotReadyError(f"{topology} requested, {world} ranks joined")
    if not 0 <= rank < world or not 0 <= local < locals_ or locals_ > world:
        raise NotReadyError(f"the launcher contradicts itself: rank {rank} of {world}, {local} of {locals_} here")
    if locals_ != topology.devices_per_node:
        raise NotReadyError(f"{topology} requested, {locals_} ranks were started on this node")
    return ClusterEnv(
        kind=kind,
        launchers=world,
        launcher=rank,
        first_rank=rank,
        first_local_rank=local,
        local_ranks=locals_,
        is_rank=True,
    )


def make_node_env(topology: Topology, kind: str, node: int) -> ClusterEnv:
    """The environment of a process that starts all ranks of a node."""
    if not 0 <= node < topology.nodes:
        raise NotReadyError(
            f"{topology} requested, and this is node {node}; nodes count from 0 to {topology.nodes - 1}"
        )
    each = topology.devices_per_node
    return ClusterEnv(
        kind=kind, launchers=topology.nodes, launcher=node, first_rank=node * each, ranks=each, local_ranks=each
    )  # fmt: skip


def set_leader(env: ClusterEnv, leader: str, port: int, *, has_torchrun_store: bool = False) -> ClusterEnv:
    return replace(env, leader=leader, port=port, has_torchrun_store=has_torchrun_store)


def read_number(environ: Mapping[str, str], name: str, who: str) -> int:
    value = environ.get(name)
    if value is None or not re.fullmatch(r"[0-9]+", value):
        problem = "is not set" if value is None else f"is {value!r}, not a number"
        raise NotReadyError(f"this looks like a process of {who}, but {name} {problem}")
    return int(value)


def make_secret() -> str:
    return secrets.token_hex(32)


def read_secret(environ: Mapping[str, str]) -> str:
    """The secret of the environment."""
    found = environ.get(SECRET, "")
    if len(found) >= MIN_SECRET_LENGTH:
        return found
    wrong = f"is shorter than {MIN_SECRET_LENGTH} characters" if found else "is not set"
    raise NotReadyError(
        f"the launchers of this run need a shared secret, and {SECRET} {wrong}; "
        f"give all of them the same random one: export {SECRET}=$(openssl rand -hex 32)"
    )
