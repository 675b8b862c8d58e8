"""What is trained: one module a workload, with no vendor's name in it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from trainmark.spec.errors import UsageError, nearest

if TYPE_CHECKING:
    from trainmark.workloads.workload import Workload

NAMES = ("resnet50", "vit", "tacotron2")


def load(name: str) -> Workload:
    """A workload by name. Its module is imported here, and torch with it."""
    if name not in NAMES:
        raise UsageError(f"workload {name!r} is not known; {nearest(name, NAMES)}")
    workload: Workload = importlib.import_module(f"trainmark.workloads.{name}").WORKLOAD
    return workload
