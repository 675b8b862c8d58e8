"""The variables a rank's process starts with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from trainmark.launch import secret
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.record import cores
from trainmark.train.ranks import LAUNCHED, PARENT, RESTART

OTHERS_VARIABLES = re.compile(
    rf"PET_.*|TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|ROLE_NAME|{secret.VARIABLE}"
)
"""What another launcher told this process is not meant for the workers we start, nor is the launchers' secret."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""torch warns of every host without a reverse name."""


def of_rank(
    env: ClusterEnv, local: int, launched_ns: int, settings: Mapping[str, str], *, restarts: int = 0
) -> dict[str, str]:
    """Of the so-manieth rank of a launcher. `settings` are for its libraries, unless the user has said otherwise."""
    variables = {
        **QUIET,
        **settings,
        **meant_for_children(),
        "RANK": str(env.first_rank + local),
        "WORLD_SIZE": str(env.world),
        "LOCAL_RANK": str(env.first_local_rank + local),
        "LOCAL_WORLD_SIZE": str(env.local_ranks),
        RESTART: str(restarts),
        LAUNCHED: str(launched_ns),
        PARENT: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    if env.local_ranks > 1:
        variables["OMP_NUM_THREADS"] = str(cores.threads(env.local_ranks))
    return variables


def meant_for_children() -> dict[str, str]:
    """What this process was told itself, without what was meant for it alone."""
    return {name: value for name, value in os.environ.items() if not OTHERS_VARIABLES.fullmatch(name)}
