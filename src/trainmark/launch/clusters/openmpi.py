"""Open MPI: each process of mpirun is a rank, or a node where there is one for each."""

from __future__ import annotations

from collections.abc import Mapping

from trainmark.launch.cluster_env import PORT, ClusterEnv, make_node_env, make_rank_env, read_number, set_leader
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Topology

PRIORITY = 3


def detect(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    rank, world, local, locals_ = (
        read_number(environ, f"OMPI_COMM_WORLD_{name}", "Open MPI")
        for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    )
    a_node_each = world == topology.nodes and topology.devices_per_node > 1
    env = (
        make_node_env(topology, "openmpi", rank)
        if a_node_each
        else make_rank_env(topology, "openmpi", rank, world, local, locals_)
    )
    if env.launchers == 1:
        return env
    leader = environ.get("MASTER_ADDR") or ("localhost" if locals_ == world else "")
    if not leader:
        raise NotReadyError("mpirun does not say where rank 0 is; tell every rank with -x MASTER_ADDR=HOST")
    return set_leader(env, leader, port or PORT)
