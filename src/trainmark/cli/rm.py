"""`trainmark rm`: removes runs, their checkpoints, or caches, and prints the bytes freed."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainmark import data as datasets
from trainmark.cli.liveness import is_running, read_run_folder
from trainmark.cli.terminal import print_status, show
from trainmark.data.synthetic import cache_folder
from trainmark.record.checks import format_bytes
from trainmark.record.errors import NotReadyError, UsageError
from trainmark.record.index import parse_instant
from trainmark.record.numbers import parse_seconds
from trainmark.record.store import Store, default_folder
from trainmark.record.timeline import ENDING

UNCHANGED_S = 24 * 3600.0
"""A run of another host without a record counts as running until its files are unchanged for this long."""
NAME = "rm"
GROUP = "Keep"
HELP = "Remove runs with all their files, or only checkpoints or caches."
EXAMPLES = """\
  trainmark rm a1b2c3 5a8c9d0e                   a run, and all runs of a group
  trainmark rm a1b2c3 --checkpoints              only its checkpoints; record and events stay
  trainmark rm --older-than 90d                  lists what would go; --yes removes it
  trainmark rm --older-than 30d --checkpoints --yes
  trainmark rm --older-than 1d --caches --yes    synthetic data, mels and indexes of shards, made again when needed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="run ids or parts of them, or groups")
    add(
        "--older-than",
        type=lambda text: parse_seconds(text, option="--older-than"),
        metavar="TIME",
        help="instead of RUNs, all that are older than this: 12h, 7d",
    )
    add("--checkpoints", action="store_true", help="only checkpoints of the runs")
    add("--caches", action="store_true", help="only caches, which are made again when needed")
    add("--yes", action="store_true", help="remove what --older-than chooses, and do not only list it")
    add("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    add("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")


def run(args: argparse.Namespace) -> int:
    if bool(args.runs) is (args.older_than is not None):
        raise UsageError("name the RUNs to remove, or choose them by --older-than 30d; one of the two")
    if args.caches and (args.runs or args.checkpoints):
        raise UsageError("--caches belong to no run; remove them apart, with --older-than alone")
    store, only_listed = Store(args.store or default_folder()), args.dry_run or not (args.runs or args.yes)
    if args.runs:
        run_ids = list(dict.fromkeys(run_id for word in args.runs for run_id in store.find_run_ids(word)))
        if going := [run_id for run_id in run_ids if may_be_running(store, run_id)]:
            raise UsageError(f"run {going[0]} is still running, and nothing was removed; end it first, or leave it out")
    else:
        contents, before = store.contents(), time.time() - args.older_than
        going = [row.run_id for row in contents.unrecorded if may_be_running(store, row.run_id)]
        for damaged in contents.damaged:
            print_status(str(damaged))
        for run_id in sorted(going):
            print_status(f"run {run_id} is still running and is left alone")
        rows = [*contents.rows, *contents.unrecorded]
        run_ids = [row.run_id for row in rows if parse_instant(row.created) < before and row.run_id not in going]
        if args.caches:
            cache = cache_folder()
            caches = [Removable(name=str(path), paths=(path,)) for path in _find_caches(cache, before)]
            if going:
                print_status("caches are left alone while a run is in progress")
            else:
                _remove_all(caches, cache, only_listed=only_listed)
            return 0
    things = [_find_files(store, run_id, only_checkpoints=args.checkpoints) for run_id in run_ids]
    _remove_all([thing for thing in things if thing.paths], store.folder, only_listed=only_listed)
    return 0


@dataclass(frozen=True, kw_only=True)
class Removable:
    """One removable thing with all its files."""

    name: str
    paths: tuple[Path, ...]
    """Existing paths, in the order of removal."""


def _find_files(store: Store, run_id: str, *, only_checkpoints: bool) -> Removable:
    """Of a run; its record goes last, so that an interrupted removal can be repeated."""
    checkpoints = store.runs / run_id / "checkpoints"
    pages = [store.folder / "reports" / name for name in (f"{run_id}.html", f"report-{run_id}.html")]
    records = [store.records / f"{run_id}{ENDING}", store.path(run_id)]
    every = [checkpoints] if only_checkpoints else [store.runs / run_id, store.samples / run_id, *pages, *records]
    name = f"checkpoints of {run_id}" if only_checkpoints else run_id
    return Removable(name=name, paths=tuple(path for path in every if os.path.lexists(path)))


def may_be_running(store: Store, run_id: str) -> bool:
    """True for a run without a record unless its processes are gone, or its files are unchanged for a day."""
    path = store.runs / run_id
    return not store.path(run_id).exists() and path.is_dir() and is_running(read_run_folder(path), UNCHANGED_S)


def _find_caches(cache: Path, before: float) -> Iterator[Path]:
    """What trainmark itself put into the cache folder and has not changed since."""
    for name in [*(datasets.find(each).default_name() for each in datasets.names()), "mels", "taught-mels", "shards"]:
        path = cache / name
        if path.exists() and path.stat().st_mtime < before:
            yield path


def _remove_all(things: Sequence[Removable], within: Path, *, only_listed: bool) -> None:
    """Removes or only lists them, each with its bytes."""
    freed = 0
    for thing in things:
        size = sum(map(_size, thing.paths))
        freed += size
        if not only_listed:
            remove(thing, within)
        show(f"{'would remove' if only_listed else 'removed'} {thing.name}: {format_bytes(size)}")
    if only_listed:
        show(f"{len(things)} would be removed, {format_bytes(freed)}; nothing was")
    else:
        show(f"{len(things)} removed, {format_bytes(freed)}")


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


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as themselves."""
    total = 0
    with contextlib.suppress(OSError):  # removed meanwhile
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        with os.scandir(path) as entries:
            total = sum(_size(Path(entry.path)) for entry in entries)
    return total
