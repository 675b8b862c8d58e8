"""Data sets: one folder per set, beside the code they share."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.record.errors import UsageError, nearest

if TYPE_CHECKING:
    from trainmark.data.data_set import DataSet


@cache
def names() -> tuple[str, ...]:
    """Every data set that has a folder here."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/facts.py")))


def find(name: str) -> DataSet:
    if name not in names():
        raise UsageError(f"data set {name!r} is not known; {nearest(name, names())}")
    data_set: DataSet = import_module(f"{__name__}.{name}.facts").DATA_SET
    return data_set


def all_sets() -> tuple[DataSet, ...]:
    return tuple(find(name) for name in names())
