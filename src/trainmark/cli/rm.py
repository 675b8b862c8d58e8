"""`trainmark rm` and `trainmark gc`: remove runs, checkpoints and caches, and print the bytes freed."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import data as datasets
from trainmark.cli.liveness import has_processes, last_modified_s, read_run_folder
from trainmark.cli.terminal import print_status, show
from trainmark.data.synthetic import cache_folder
from trainmark.record.checks import format_bytes
from trainmark.record.errors import NotReadyError, UsageError, nearest
from trainmark.record.index import parse_instant, sort_newest_first
from trainmark.record.numbers import parse_seconds
from trainmark.record.store import Store, default_folder

if TYPE_CHECKING:
    from trainmark.record.index import StoreRow
    from trainmark.record.store import Store


@dataclass(frozen=True, kw_only=True)
class Removable:
    """One removable thing with all its files."""

    name: str
    paths: tuple[Path, ...]
    """Existing paths, in the order of removal."""

    @property
    def size_bytes(self) -> int:
        return sum(map(_size, self.paths))


def find_run_files(store: Store, run_id: str) -> Removable:
    """All files of a run; its record goes last, so that an interrupted removal can be repeated."""
    from trainmark.record.timeline import ENDING

    pages = [store.folder / "reports" / name for name in (f"{run_id}.html", f"report-{run_id}.html")]
    paths = [
        store.runs / run_id,
        store.samples / run_id,
        *pages,
        store.records / f"{run_id}{ENDING}",
        store.path(run_id),
    ]
    return Removable(name=run_id, paths=_keep_existing(paths))


def find_checkpoints(store: Store, run_id: str) -> Removable:
    """The checkpoints of a run; its record and events stay."""
    return Removable(name=f"checkpoints of {run_id}", paths=_keep_existing([store.runs / run_id / "checkpoints"]))


def remove(thing: Removable, within: Path) -> None:
    """Deletes the paths; a link's target stays, and a path outside of the folder is refused."""
    for path in thing.paths:
        if within.resolve() not in path.parent.resolve().parents and within.resolve() != path.parent.resolve():
            raise UsageError(f"{path} is outside of {within} and is not removed")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise NotReadyError(f"{path} cannot be removed: {error.strerror}") from error


def _keep_existing(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if os.path.lexists(path))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as themselves."""
    total = 0
    with contextlib.suppress(OSError):  # removed meanwhile
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            total = sum(_size(Path(entry.path)) for entry in entries)
    return total


UNCHANGED_S = 24 * 3600.0
"""A run of another host without a record counts as running until its files are unchanged for this long."""
KINDS = ("checkpoints", "runs", "caches")


class Remove:
    NAME = "rm"
    HELP = "Remove runs from the store: records, events, checkpoints, samples and pages."
    EXAMPLES = """\
  trainmark rm a1b2c3 --dry-run           what would be removed, and its bytes
  trainmark rm a1b2c3 5a8c9d0e            a run, and all runs of a group"""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("runs", nargs="+", metavar="RUN", help="run ids or parts of them, or groups")
        _add_shared(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        store = Store(args.store or default_folder())
        run_ids = dict.fromkeys(run_id for word in args.runs for run_id in store.find_run_ids(word))
        if going := [run_id for run_id in run_ids if may_be_running(store, run_id)]:
            raise UsageError(f"run {going[0]} is still running, and nothing was removed; end it first, or leave it out")
        _remove_all([find_run_files(store, run_id) for run_id in run_ids], store.folder, dry_run=args.dry_run)
        return 0


class CollectGarbage:
    NAME = "gc"
    HELP = "Make room: remove old checkpoints, old runs, or caches that are made again when needed."
    EXAMPLES = """\
  trainmark gc --dry-run                  checkpoints of runs older than 30 days, and their bytes
  trainmark gc checkpoints --older 7d     records and events stay
  trainmark gc runs --older 90d --keep 50 whole runs with their records, but never the newest 50
  trainmark gc caches --older 1d          synthetic data, mels and indexes of shards"""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("kinds", nargs="*", metavar="WHAT", help=f"{', '.join(KINDS)} (default: checkpoints)")
        add(
            "--older",
            type=lambda text: parse_seconds(text, option="--older"),
            default=30 * 86400.0,
            dest="older_s",
            metavar="TIME",
            help="what is older than this: 12h, 7d (default: 30d)",
        )
        add("--keep", type=int, default=0, metavar="N", help="never touch the newest N runs (default: 0)")
        _add_shared(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        if unknown := [kind for kind in args.kinds if kind not in KINDS]:
            raise UsageError(f"WHAT {unknown[0]!r} is not known; {nearest(unknown[0], KINDS)}")
        if args.keep < 0:
            raise UsageError(f"--keep must be at least 0, not {args.keep}")
        store, before = Store(args.store or default_folder()), time.time() - args.older_s
        kinds = args.kinds or ["checkpoints"]
        contents = store.contents()
        for damaged in contents.damaged:
            print_status(str(damaged))
        rows = sort_newest_first([*contents.rows, *contents.unrecorded])
        going = {row.run_id for row in contents.unrecorded if may_be_running(store, row.run_id)}
        for run_id in sorted(going):
            print_status(f"run {run_id} is still running and is left alone")
        old = [row for row in rows[args.keep :] if parse_instant(row.created) < before and row.run_id not in going]
        _remove_all(_find_removable(store, old, kinds), store.folder, dry_run=args.dry_run)
        if "caches" in kinds and going:
            print_status("caches are left alone while a run is in progress")
        elif "caches" in kinds:
            cache = cache_folder()
            things = [Removable(name=str(path), paths=(path,)) for path in _find_caches(cache, before)]
            _remove_all(things, cache, dry_run=args.dry_run)
        return 0


COMMANDS = (Remove, CollectGarbage)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def may_be_running(store: Store, run_id: str) -> bool:
    """True for a run without a record unless its processes are gone, or its files are unchanged for a day."""
    path = store.runs / run_id
    if store.path(run_id).exists() or not path.is_dir():
        return False
    alive = has_processes(read_run_folder(path))
    if alive is not None:
        return alive
    return time.time() - last_modified_s([path, *path.glob("*.jsonl")]) < UNCHANGED_S


def _find_removable(store: Store, rows: Sequence[StoreRow], kinds: Sequence[str]) -> list[Removable]:
    if "runs" in kinds:  # their checkpoints go with them
        return [find_run_files(store, row.run_id) for row in rows]
    found = [find_checkpoints(store, row.run_id) for row in rows if "checkpoints" in kinds]
    return [thing for thing in found if thing.paths]


def _find_caches(cache: Path, before: float) -> Iterator[Path]:
    """What trainmark itself put into the cache folder and has not changed since."""
    for name in [*(datasets.find(each).default_name() for each in datasets.names()), "mels", "taught-mels", "shards"]:
        path = cache / name
        if path.exists() and path.stat().st_mtime < before:
            yield path


def _remove_all(things: Sequence[Removable], within: Path, *, dry_run: bool) -> None:
    """Removes or, with `dry_run`, only lists them, each with its bytes."""
    freed = 0
    for thing in things:
        size = thing.size_bytes
        freed += size
        if not dry_run:
            remove(thing, within)
        show(f"{'would remove' if dry_run else 'removed'} {thing.name}: {format_bytes(size)}")
    if dry_run:
        show(f"{len(things)} would be removed, {format_bytes(freed)}; nothing was")
    else:
        show(f"{len(things)} removed, {format_bytes(freed)}")
