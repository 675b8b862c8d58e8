"""`trainmark watch`: shows a run that is in progress in another process."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich import live as rich_live
from rich.text import Text

from trainmark.cli.liveness import has_processes, is_running, last_modified_s, read_run_folder
from trainmark.cli.terminal import open_console, print_status
from trainmark.features.watch.live_screen import Live, draw, format_line, format_result, to_json
from trainmark.record import escape
from trainmark.record.run_folder import RECENT_STEPS, RunFolder
from trainmark.record.store import Store, default_folder, read_record

if TYPE_CHECKING:
    from rich.console import Console

NAME = "watch"
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
SETTLE_S = 5.0
"""Usual time for that, before which nothing is reported."""
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

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.folder = RunFolder(folder, keep=RECENT_STEPS)
        self.record = store.path(folder.name)
        self._now_s, self._wall_s = now_s, wall_s
        self._heard_at_s: float | None = None

    def read(self) -> Live:
        heard = self.folder.update()
        if self._heard_at_s is None:
            self._heard_at_s = self._now_s() - self._silent_before_s()
        elif heard:
            self._heard_at_s = self._now_s()
        silent_s = self._now_s() - self._heard_at_s
        gone = silent_s > SETTLE_S and self._is_abandoned(silent_s) and not self.record.exists()
        return Live(folder=self.folder, silent_s=silent_s, gone=gone)

    def _is_abandoned(self, silent_s: float) -> bool:
        worked_on = has_processes(self.folder)
        if worked_on is None and not self.folder.ranks:
            return self.folder.head is None or silent_s > NEVER_S
        return worked_on is False

    def _silent_before_s(self) -> float:
        """How long the ranks had been silent at the first read, by file times."""
        written = [self.folder.path / f"rank{rank}.jsonl" for rank in self.folder.ranks]
        return max(0.0, self._wall_s() - last_modified_s(written or [self.folder.path]))


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
    with contextlib.ExitStack() as shown:
        show = _open_frame(screen, shown) if sys.stdout.isatty() else _open_log(screen)
        while True:
            run = watched.read()
            show(run)
            if watched.record.exists() or (run.gone and (run.silent_s or 0.0) > RECORD_LIMIT_S):
                break
            pause(POLL_EVERY_S)
    if watched.record.exists():
        return _print_result(watched)
    print_status(escape.terminal(f"run {run.run_id}: {run.note}; see 'trainmark show {run.run_id}'"))
    return 4


def _open_frame(screen: Console, shown: contextlib.ExitStack) -> Callable[[Live], None]:
    """On a terminal: redraws one frame."""
    live = shown.enter_context(rich_live.Live(console=screen, auto_refresh=False, transient=True))
    return lambda run: live.update(Text.from_ansi(_draw(run, screen)), refresh=True)


def _open_log(screen: Console) -> Callable[[Live], None]:
    """Elsewhere: prints a line on news, and every few seconds."""
    printed: tuple[object, float] = (None, -LINE_EVERY_S)

    def show(run: Live) -> None:
        nonlocal printed
        now = time.monotonic()
        news = (run.phase, len(run.first.evaluations), run.failure, run.gone)
        if news != printed[0] or now - printed[1] >= LINE_EVERY_S:
            printed = news, now
            screen.file.write(escape.fit_encoding(format_line(run), screen.encoding) + "\n")
            screen.file.flush()

    return show


def _draw(run: Live, screen: Console) -> str:
    color = screen.color_system is not None and not screen.no_color
    return draw(run, width=screen.width, color=color, encoding=screen.encoding)


def _show_once(watched: Watched, *, as_json: bool) -> int:
    run, screen = watched.read(), open_console()
    if as_json:
        known = str(watched.record) if watched.record.exists() else None
        screen.file.write(json.dumps({**to_json(run), "record": known}, allow_nan=False) + "\n")
        return 0
    screen.file.write(_draw(run, screen))
    return _print_result(watched) if watched.record.exists() else 0


def _print_result(watched: Watched) -> int:
    screen = open_console()
    lines = [format_result(read_record(watched.record)), escape.terminal(f"record: {watched.record}")]
    screen.file.write(escape.fit_encoding("\n".join(lines) + "\n", screen.encoding))
    return 0
