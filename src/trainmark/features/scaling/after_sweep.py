"""How well a training scales over the topologies of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.analysis.scaling import compute_scaling
from trainmark.features.scaling import table
from trainmark.record.record import Record

NAME, ORDER = "scaling", 1


def render(records: Sequence[Record], *, width: int, color: bool, encoding: str) -> str:
    return table.render([compute_scaling(records)], width=width, color=color, encoding=encoding)
