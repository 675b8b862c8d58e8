"""This process's place among the ranks of a run, as its launcher says."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

RENDEZVOUS = "TRAINMARK_RENDEZVOUS"
"""Tells a rank where it finds the others: `file:PATH`, or `connection:NUMBER:PREFIX` of an open file and its keys."""
LAUNCHED = "TRAINMARK_LAUNCHED_NS"
"""When the launcher started a rank, on the machine's monotonic clock."""
PARENT = "TRAINMARK_PARENT"
"""Which process a rank or a sampler must not outlive."""
RESTART = "TRAINMARK_RESTART"
"""How often the ranks of the run were started again."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """From the variables every launcher of torch's ranks sets; without them, a world of one."""
        read = os.environ.get
        return cls(
            rank=int(read("RANK", "0")),
            world=int(read("WORLD_SIZE", "1")),
            local_rank=int(read("LOCAL_RANK", "0")),
            local_ranks=int(read("LOCAL_WORLD_SIZE", "1")),
        )


def host_name(environ: Mapping[str, str]) -> str:
    """What this machine is called: in Slurm by the node's name, which several may differ in on one machine."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
