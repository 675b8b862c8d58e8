"""`trainmark gc`: makes room by taking away what is old: checkpoints, whole runs, or what can be made again."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.cli.removing import add_removal_options, carry_out, may_go_on
from trainmark.spec.duration import parse_seconds

if TYPE_CHECKING:
    from trainmark.store.removal import Removable
    from trainmark.store.row import StoreRow
    from trainmark.store.store import Store

NAME = "gc"
HELP = "Make room: remove old checkpoints, old runs, or caches that are made again when needed."
EXAMPLES = """\
  trainmark gc --dry-run                  checkpoints of runs older than 30 days, and their bytes
  trainmark gc checkpoints --older 7d     records and events stay
  trainmark gc runs --older 90d --keep 50 whole runs with their records, but never the newest 50
  trainmark gc caches --older 1d          synthetic data, mels and indexes of shards"""
KINDS = ("checkpoints", "runs", "caches")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kinds",
        nargs="*",
        metavar="WHAT",
        help=f"{', '.join(KINDS)} (default: checkpoints)",
    )
    parser.add_argument(
        "--older",
        type=lambda text: parse_seconds(text, option="--older"),
        default=30 * 86400.0,
        dest="older_s",
        metavar="TIME",
        help="what is older than this: 12h, 7d (default: 30d)",
    )
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="never touch the newest N runs (default: 0)")
    add_removal_options(parser)


def run(args: argparse.Namespace) -> int:
    import time

    from trainmark.cli.terminal import say
    from trainmark.datasets.synthetic import cache_folder
    from trainmark.spec import escape
    from trainmark.spec.errors import UsageError, nearest
    from trainmark.store import removal
    from trainmark.store.row import instant, newest_first
    from trainmark.store.store import Store, default_folder

    if unknown := [kind for kind in args.kinds if kind not in KINDS]:
        raise UsageError(f"WHAT {unknown[0]!r} is not known; {nearest(unknown[0], KINDS)}")
    if args.keep < 0:
        raise UsageError(f"--keep must be at least 0, not {args.keep}")
    store, before = Store(args.store or default_folder()), time.time() - args.older_s
    kinds = args.kinds or ["checkpoints"]
    contents = store.contents()
    rows = newest_first([*contents.rows, *contents.unrecorded])
    going = {row.run_id for row in contents.unrecorded if may_go_on(store, row.run_id)}
    for run_id in sorted(going):
        say(escape.terminal(f"run {run_id} still goes on and is left alone"))
    old = [row for row in rows[args.keep :] if instant(row.created) < before and row.run_id not in going]
    carry_out(_of_runs(store, old, kinds), store.folder, dry_run=args.dry_run)
    if "caches" in kinds and going:
        say("caches are left alone while a run goes on")
    elif "caches" in kinds:
        cache = cache_folder()
        things = [removal.Removable(name=str(path), paths=(path,)) for path in _caches(cache, before)]
        carry_out(things, cache, dry_run=args.dry_run)
    return 0


def _of_runs(store: Store, rows: list[StoreRow], kinds: list[str]) -> list[Removable]:
    from trainmark.store import removal

    if "runs" in kinds:  # their checkpoints go with them
        return [removal.of_run(store, row.run_id) for row in rows]
    if "checkpoints" not in kinds:
        return []
    found = [removal.of_checkpoints(store, row.run_id) for row in rows]
    return [thing for thing in found if thing.paths]


def _caches(cache: Path, before: float) -> Iterator[Path]:
    """Of a folder that may be shared with other programs, what we made there ourselves and have not changed since."""
    from trainmark import datasets

    for name in [*(datasets.find(each).default_name() for each in datasets.names()), "mels", "taught-mels", "shards"]:
        path = cache / name
        if path.exists() and path.stat().st_mtime < before:
            yield path
