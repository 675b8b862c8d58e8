"""This process's place among the ranks of a run, as its launcher says."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ranks:
    rank: int
    world: int
    local_rank: int
    local_ranks: int

    @classmethod
    def from_environment(cls) -> Ranks:
        """From torchrun's variables; without them, a world of one."""
        read = os.environ.get
        return cls(
            rank=int(read("RANK", "0")),
            world=int(read("WORLD_SIZE", "1")),
            local_rank=int(read("LOCAL_RANK", "0")),
            local_ranks=int(read("LOCAL_WORLD_SIZE", "1")),
        )
