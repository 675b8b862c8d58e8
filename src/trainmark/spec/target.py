"""The quality a workload trains to, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    """The published word: `acc1`, `val_loss`."""
    unit: str
    better: Literal["higher", "lower"]

    def reached(self, value: float, goal: float) -> bool:
        return value >= goal if self.better == "higher" else value <= goal
