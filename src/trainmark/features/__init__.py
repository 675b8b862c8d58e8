"""Finds features: the folders here, and other packages' by the entry-point group `trainmark.features`.

A feature offers something by holding a module of a certain name, such as `command` or `page_section`; whoever has a use
for it asks for all that is offered. CONTRIBUTING.md lists the names.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

GROUP = "trainmark.features"
FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/__init__.py")))


def needs(name: str) -> tuple[str, ...]:
    """The features that one of ours imports, as it declares them."""
    return tuple(getattr(importlib.import_module(f"{GROUP}.{name}"), "NEEDS", ()))


def load(name: str) -> ModuleType | None:
    """A module of a feature, such as `report.card`; None where the feature is not there."""
    return importlib.import_module(f"{GROUP}.{name}") if (FOLDER / name.split(".")[0]).is_dir() else None


@cache
def offers(kind: str) -> tuple[ModuleType, ...]:
    """The modules of that name: ours by their ORDER and feature, then those of other packages."""
    ours = [importlib.import_module(f"{GROUP}.{path.parent.name}.{kind}") for path in FOLDER.glob(f"*/{kind}.py")]
    ours.sort(key=lambda module: (getattr(module, "ORDER", 0), module.__name__))
    theirs = [f"{package}.{kind}" for package in outside_packages()]
    return (*ours, *(importlib.import_module(name) for name in theirs if find_spec(name)))


def outside_packages() -> tuple[str, ...]:
    from importlib.metadata import entry_points

    return tuple(entry.value for entry in entry_points(group=GROUP))
