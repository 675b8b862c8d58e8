"""This process's place among the ranks of a run, as its launcher says."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """From torchrun's variables; without them, a world of one.

        torchrun numbers nodes by their addresses; where our launcher says which rank a node begins with, that counts.
        """
        read = os.environ.get
        local_rank = int(read("LOCAL_RANK", "0"))
        first_rank = read("TRAINMARK_FIRST_RANK")
        return cls(
            rank=int(read("RANK", "0")) if first_rank is None else int(first_rank) + local_rank,
            world=int(read("WORLD_SIZE", "1")),
            local_rank=local_rank,
            local_ranks=int(read("LOCAL_WORLD_SIZE", "1")),
        )


def host_name(environ: Mapping[str, str]) -> str:
    """What this machine is called: in Slurm by the node's name, which several may differ in on one machine."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()
