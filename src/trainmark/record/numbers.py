"""Number types of documents, bounded so that arithmetic stays finite, and their formatting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    """The published name: `acc1`, `val_loss`."""
    unit: str
    better: Literal["higher", "lower"]

    def is_reached(self, value: float, goal: float) -> bool:
        return meets_goal(value, goal, self.better)


def meets_goal(value: float, goal: float, better: str) -> bool:
    return value >= goal if better == "higher" else value <= goal


def digits_to_tell_apart(value: float, goal: float, better: str, least: int = 4) -> int:
    """Digits needed not to round a miss onto the target."""
    for digits in range(least, 9):
        if meets_goal(float(f"{value:.{digits}g}"), goal, better) == meets_goal(value, goal, better):
            break
    return digits


Finite = Annotated[float, Meta(ge=-1e100, le=1e100)]
"""Excludes NaN and infinity, too."""
Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]


def number(value: float, digits: int = 3) -> str:
    """Rounded to significant digits: 5.83, 797, 11 874."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) < 1e-4:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    if decimals <= 0 or abs(rounded) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{decimals}f}"
