"""Decides which files may run code: those the user typed, and those of a document that the user trusts.

What comes out of a record, a plan or a checkpoint is data. A path in it is followed to code only where the user typed
the same path, or said `--trust` after the path and its hash were shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from trainmark.record.errors import UsageError
from trainmark.record.foreign_files import read_plain
from trainmark.record.plan import Plan

SAFE_TORCH = (2, 10)
"""The unpickler behind `weights_only` of earlier versions could be made to write outside of its memory
(CVE-2026-24747)."""
ANYWHERE = Path("/")

_trusted: set[Path] = set()
"""Files, and folders with all in them."""


def trust_file(path: Path) -> None:
    """Called with a path that the user typed or trusts."""
    _trusted.add(path.expanduser().absolute())


def trust_launcher() -> None:
    """For a process that a launcher started: all that its plan names was checked there."""
    _trusted.add(ANYWHERE)


def is_trusted(path: Path) -> bool:
    path = path.absolute()
    return not _trusted.isdisjoint({path, *path.parents})


def check_plan(plan: Plan, origin: str, *, trust: bool, instead: str = "") -> None:
    """Refuses a plan out of a document that names files of code, unless the user typed or trusts them."""
    found = [path for path in _list_code_files(plan) if not is_trusted(path)]
    if found and not trust:
        named = " and ".join(f"{path} ({_describe_hash(path)})" for path in found)
        raise UsageError(f"{origin} names {named}, which would run code here; read it, then add --trust{instead}")
    for path in found:
        trust_file(path)


def check_pickle(path: Path, torch_version: str) -> None:
    """Refuses a file that torch.save wrote where this torch cannot read one safely."""
    if tuple(map(int, torch_version.split(".")[:2])) < SAFE_TORCH and not is_trusted(path):
        raise UsageError(
            f"torch {torch_version} cannot read {path} safely (CVE-2026-24747); install torch 2.10 or later, give a "
            "file of safetensors, or add --trust if you know who made it"
        )


def _list_code_files(plan: Plan) -> Iterator[Path]:
    """A workload's Python file, and a platform file, which names programs and modules."""
    if plan.workload_source and plan.workload_source.file:
        yield Path(plan.workload_source.file)
    if plan.platform.endswith(".toml"):
        yield Path(plan.platform)


def _describe_hash(path: Path) -> str:
    try:
        return f"sha256 {hashlib.sha256(read_plain(path)).hexdigest()[:16]}"
    except OSError as error:  # nothing that a stranger named is waited for, or read without end
        return error.strerror or type(error).__name__
