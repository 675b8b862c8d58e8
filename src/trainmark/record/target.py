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
        return reached(value, goal, self.better)


def reached(value: float, goal: float, better: str) -> bool:
    return value >= goal if better == "higher" else value <= goal


def telling_digits(value: float, goal: float, better: str, least: int = 4) -> int:
    """As many digits as keep a value just short of the target from being rounded onto it."""
    for digits in range(least, 9):
        if reached(float(f"{value:.{digits}g}"), goal, better) == reached(value, goal, better):
            break
    return digits
