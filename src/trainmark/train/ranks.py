"""Rank and world size of this process, as set by its launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

RENDEZVOUS = "TRAINMARK_RENDEZVOUS"
"""The rendezvous of the ranks: `file:PATH`, or `connection:FD:PREFIX` of an open socket and its keys."""
LAUNCHED = "TRAINMARK_LAUNCHED_NS"
"""When the launcher started a rank, on the machine's monotonic clock."""
PARENT = "TRAINMARK_PARENT"
"""The process that a rank or a sampler must not outlive."""
RESTART = "TRAINMARK_RESTART"
"""How often the ranks of the run were restarted."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """From the variables that torchrun defines; without them, a world of one."""
        read = os.environ.get
        return cls(
            rank=int(read("RANK", "0")),
            world=int(read("WORLD_SIZE", "1")),
            local_rank=int(read("LOCAL_RANK", "0")),
            local_ranks=int(read("LOCAL_WORLD_SIZE", "1")),
        )


def read_host_name(environ: Mapping[str, str]) -> str:
    """The name of this machine: in Slurm that of the node, of which one machine may have several."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
