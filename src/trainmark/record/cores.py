"""How many cores this process may really use, and how many threads a rank takes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainmark.record import cgroup

FOREIGN_LOAD = 0.10
"""Share of the machine that others may use before it is worth a word."""
MOST_RANKS_A_CORE = 4
"""More ranks than this on a core are refused: they only take turns, and a step takes minutes."""


def usable(root: Path = Path("/")) -> int:
    """Whole cores, by the scheduler's affinity and by the quota of the control group, of version 1 or 2."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return within_quota(allowed, cgroup.read(root).cores)


def within_quota(cores: int, quota: float | None) -> int:
    """A quota stops all threads once it is spent, so what is left of a core is not counted as one."""
    return cores if quota is None else max(1, min(cores, int(quota)))


def threads(local_ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """Of one of so many ranks on a machine: what the user says by OMP_NUM_THREADS, else its part of the cores."""
    asked = environ.get("OMP_NUM_THREADS", "")
    # a user's own torchrun sets it to 1 for several ranks where nobody said anything
    by_torchrun = asked == "1" and local_ranks > 1 and "TORCHELASTIC_RUN_ID" in environ
    if asked.isdigit() and int(asked) > 0 and not by_torchrun:
        return int(asked)
    return max(1, usable() // local_ranks)
