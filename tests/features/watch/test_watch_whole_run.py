"""A real run, watched by the real command."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.background import LONG, Started, record_of

WATCH = [sys.executable, "-m", "trainmark", "watch"]


class Terminal:
    """What a terminal shows; it is read until it ends, as a program that nobody reads would wait for ever."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.shown = b""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        os.close(self.theirs)
        self._reader.start()

    def wait_for(self, wanted: bytes) -> None:
        with self._news:
            assert self._news.wait_for(lambda: wanted in self.shown, timeout=90), self.shown

    def end(self) -> None:
        self._reader.join(30)
        os.close(self._ours)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while more := os.read(self._ours, 65536):
                with self._news:
                    self.shown += more
                    self._news.notify()


def test_a_run_is_watched_on_a_terminal_left_alone_and_watched_to_its_end(
    environment: dict[str, str], pictures: Path
) -> None:
    run = Started(environment, *LONG, "--data", pictures, "--quiet")
    try:
        run.wait_for_steps(2)
        terminal = Terminal()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
        looked = subprocess.Popen(WATCH, **streams, env={**environment, "TERM": "xterm"})
        terminal.begin()
        terminal.wait_for(b"images/s")
        assert run.folder().name.encode() in terminal.shown
        looked.send_signal(signal.SIGINT)
        assert looked.wait(60) == 130
        terminal.end()
        assert run.process.poll() is None  # whoever looks at a run does nothing to it

        followed = subprocess.Popen(
            WATCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, errors="replace"
        )
        assert followed.stdout is not None
        assert "train" in followed.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        out, err = followed.communicate(timeout=60)
        assert followed.returncode == 0, err
        assert "was interrupted" in out
        assert record_of(run.store)["run_id"] in out
        assert err == ""
    finally:
        run.process.send_signal(signal.SIGTERM)
        run.end()
