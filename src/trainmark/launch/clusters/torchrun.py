"""torchrun: each process is a rank, with the store of torchrun for the rendezvous."""

from __future__ import annotations

from collections.abc import Mapping

from trainmark.launch.cluster_env import ClusterEnv, make_rank_env, read_number, set_leader
from trainmark.record.errors import NotReadyError
from trainmark.record.plan import Topology

PRIORITY = 0


def detect(topology: Topology, environ: Mapping[str, str], port: int | None) -> ClusterEnv | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, world, local, locals_ = (
        read_number(environ, name, "torchrun") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    env = make_rank_env(topology, "torchrun", rank, world, local, locals_)
    if env.launchers == 1:
        return env
    if "MASTER_ADDR" not in environ:
        raise NotReadyError("RANK is set and MASTER_ADDR is not: torchrun sets both, so something else set one of them")
    return set_leader(
        env,
        environ["MASTER_ADDR"],
        read_number(environ, "MASTER_PORT", "torchrun"),
        has_torchrun_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
