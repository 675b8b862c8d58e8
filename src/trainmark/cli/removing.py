"""What `rm` and `gc` share: their options, whether a run may still go on, and the removing itself."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.liveness import is_worked_on, last_change_s, seen

if TYPE_CHECKING:
    from trainmark.store.removal import Removable
    from trainmark.store.store import Store

UNHEARD_S = 24 * 3600.0
"""A run of another machine without a record is taken to go on until its files have not changed for so long."""


def add_removal_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def may_go_on(store: Store, run_id: str) -> bool:
    """True of a run without a record unless its processes are known to be gone, or nothing was heard for a day."""
    path = store.runs / run_id
    if store.path(run_id).exists() or not path.is_dir():
        return False
    worked_on = is_worked_on(seen(path))
    if worked_on is not None:
        return worked_on
    return time.time() - last_change_s([path, *path.glob("*.jsonl")]) < UNHEARD_S


def carry_out(things: Sequence[Removable], within: Path, *, dry_run: bool) -> None:
    """Removes them one after the other, or only tells; each with its bytes, and their sum."""
    from trainmark.cli.terminal import show
    from trainmark.spec.checks import amount
    from trainmark.store import removal

    freed = 0
    for thing in things:
        size = thing.size_bytes
        freed += size
        if dry_run:
            show(f"would remove {thing.name}: {amount(size)}")
        else:
            removal.remove(thing, within)
            show(f"removed {thing.name}: {amount(size)}")
    if dry_run:
        show(f"{len(things)} would go, {amount(freed)}; nothing was removed")
    else:
        show(f"{len(things)} removed, {amount(freed)}")
