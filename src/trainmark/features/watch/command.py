"""`trainmark watch`: shows a run that is in progress in another process."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich import live as rich_live
from rich.text import Text

from trainmark.cli.liveness import has_processes, is_running, last_modified_s, read_run_folder
from trainmark.cli.terminal import open_console, print_status, screen_options
from trainmark.features.watch.live_screen import Live, draw, format_line, to_json
from trainmark.record import escape
from trainmark.record.run_folder import RECENT_STEPS, RunFolder
from trainmark.record.store import Store, default_folder, read_record
from trainmark.view.headline import write_headlines

if TYPE_CHECKING:
    from rich.console import Console

NAME = "watch"
GROUP = "Measure"
HELP = "Watch a run in progress, from another terminal."
EXAMPLES = """\
  trainmark watch                         the run in progress, until it ends
  trainmark watch 7d00aa                  by the beginning or the end of its id
  trainmark watch --once                  one frame
  trainmark watch --json                  one frame, for programs"""

POLL_EVERY_S = 0.5
LINE_EVERY_S = 5.0
RECORD_LIMIT_S = 30.0
"""Time for a launcher to write the record after its ranks ended."""
NEVER_S = 600.0
"""Silence after which a run with no known process and no rank counts as abandoned."""
MAX_FOLDERS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "run id, its beginning or end, or a group for its newest run (default: the newest that still runs)"
    parser.add_argument("run", nargs="?", metavar="RUN", help=words)
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of records (default: $TRAINMARK_STORE)")
    parser.add_argument("--once", action="store_true", help="one frame, then exit")
    parser.add_argument("--json", action="store_true", help="one frame as a JSON document")


def run(args: argparse.Namespace) -> int:
    store = Store(args.store or default_folder())
    watched = Watched(choose_folder(store, args.run), store)
    if args.json or args.once:
        return _show_once(watched, as_json=args.json)
    return follow(watched)


class Watched:
    """A run's folder, read incrementally."""

    def __init__(self, folder: Path, store: Store, *, now_s: Callable[[], float] = time.time) -> None:
        self.folder = RunFolder(folder, keep=RECENT_STEPS)
        self.record = store.path(folder.name)
        self._now_s = now_s

    def read(self) -> Live:
        self.folder.update()
        written = [self.folder.path / f"rank{rank}.jsonl" for rank in self.folder.ranks]
        silent_s = max(0.0, self._now_s() - last_modified_s(written or [self.folder.path]))
        gone = False
        if silent_s > RECORD_LIMIT_S and not self.record.exists():
            worked_on = has_processes(self.folder)
            gone = worked_on is False or (worked_on is None and not self.folder.ranks and silent_s > NEVER_S)
        return Live(folder=self.folder, silent_s=silent_s, gone=gone)


def choose_folder(store: Store, word: str | None) -> Path:
    """The folder of the named run, else the newest that still runs, else the newest."""
    if word:
        return store.run_folder(word)
    newest = store.newest_folders()
    for folder in newest[:MAX_FOLDERS]:
        if not store.path(folder.name).exists() and is_running(read_run_folder(folder)):
            return folder
    return store.run_folder()


def follow(watched: Watched, pause: Callable[[float], None] = time.sleep) -> int:
    """Shows the run until it ends; 0 with a record, 4 if it left none."""
    screen = open_console()
    frame = rich_live.Live(console=screen, auto_refresh=False, transient=True) if sys.stdout.isatty() else None
    printed: tuple[object, float] = (None, -LINE_EVERY_S)
    with frame or contextlib.nullcontext():
        while True:
            run = watched.read()
            news, now_s = (run.phase, len(run.first.evaluations), run.failure, run.gone), time.monotonic()
            if frame:
                frame.update(Text.from_ansi(draw(run, **screen_options(screen))), refresh=True)
            elif news != printed[0] or now_s - printed[1] >= LINE_EVERY_S:
                printed = news, now_s
                _write(format_line(run), screen)
            if watched.record.exists() or run.gone:
                break
            pause(POLL_EVERY_S)
    if watched.record.exists():
        return _print_result(watched)
    run_id = run.folder.run_id
    print_status(f"run {run_id}: {run.note}; see 'trainmark show {run_id}'")
    return 4


def _write(line: str, screen: Console) -> None:
    screen.file.write(escape.fit_encoding(line, screen.encoding) + "\n")
    screen.file.flush()


def _show_once(watched: Watched, *, as_json: bool) -> int:
    run, screen = watched.read(), open_console()
    if as_json:
        known = str(watched.record) if watched.record.exists() else None
        _write(msgspec.json.encode({**to_json(run), "record": known}).decode(), screen)
        return 0
    screen.file.write(draw(run, **screen_options(screen)))
    return _print_result(watched) if watched.record.exists() else 0


def _print_result(watched: Watched) -> int:
    screen = open_console()
    for line in (*write_headlines([read_record(watched.record)], ()), f"record: {watched.record}"):
        _write(escape.terminal(line), screen)
    return 0
