"""Compares numbers of the same computation on two devices: how far they differ, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

ROUNDINGS = 4
"""Times as much as rounding every result once changes a quantity, it may differ."""
FLOOR = 1e-4
"""What nobody has to explain, of a quantity's size: sums in another order."""

Sums = Sequence[float]
"""A tensor's length, then sums of its numbers with random signs; nothing where one of its numbers is not finite."""


class ComparedQuantity(NamedTuple):
    """One quantity of two computations."""

    name: str
    difference: float
    """As a share of its size; not a number or infinite where one of both is."""
    allowed: float

    @property
    def is_explained(self) -> bool:
        return self.difference <= self.allowed


def judge(name: str, difference: float, by_rounding: float, floor: float) -> ComparedQuantity:
    """A difference beside what rounding alone makes of the quantity; up to `floor` needs no explanation."""
    return ComparedQuantity(name, difference, max(floor, ROUNDINGS * by_rounding))


def relative(difference: float, size: float) -> float:
    """A difference as a share of a size; any difference from zero is infinite."""
    return difference / size if size else (0.0 if difference == 0 else math.inf)


def relative_loss(one: float | None, other: float | None) -> float:
    """How far two losses differ; None is a loss that is not finite."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return relative(abs(one - other), abs(other))


def relative_sums(one: Sums, other: Sums) -> float:
    """The length of the difference of two tensors as a share of the other's length, as their sums tell it."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    return relative(_length(_subtract(one[1:], other[1:])), other[0])


def relative_moves(one: Sums, one_began: Sums, other: Sums, other_began: Sums) -> float:
    """The same of how far weights have moved since they began."""
    if not (one and other):
        return 0.0 if not (one or other) else math.inf
    own, theirs = _subtract(one[1:], one_began[1:]), _subtract(other[1:], other_began[1:])
    return relative(_length(_subtract(own, theirs)), _length(theirs))


def _subtract(one: Sums, other: Sums) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _length(sums: Sums) -> float:
    """The mean square of a tensor's signed sums is about its length squared."""
    return math.sqrt(sum(value * value for value in sums) / len(sums))
