"""Items a training needs to reach its target."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class TrainingNeed(NamedTuple):
    """Items that a training takes until its target: what is usual, and between what it varies."""

    items: float
    fewest: float
    most: float


Reference = Callable[[float], TrainingNeed | None]
"""What a reference training needs at a global batch, in samples; None above the largest that anybody tried."""
