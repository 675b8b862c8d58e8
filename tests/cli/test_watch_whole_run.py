"""A real run, watched by the real command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from background import LONG, Started, record_of

WATCH = [sys.executable, "-m", "trainmark", "watch"]


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What a terminal shows until it shows this; the test's own limit ends it if that never comes."""
    shown = b""
    while wanted not in shown:
        shown += os.read(terminal, 65536)
    return shown


def test_a_run_is_watched_on_a_terminal_left_alone_and_watched_to_its_end(
    environment: dict[str, str], pictures: Path
) -> None:
    run = Started(environment, *LONG, "--data", pictures, "--quiet")
    try:
        run.wait_for_steps(2)
        ours, theirs = pty.openpty()
        on_terminal = {**environment, "TERM": "xterm"}
        looked = subprocess.Popen(WATCH, stdin=theirs, stdout=theirs, stderr=theirs, env=on_terminal)
        os.close(theirs)
        shown = read_until(ours, b"images/s")
        assert run.folder().name.encode() in shown
        looked.send_signal(signal.SIGINT)
        assert looked.wait(30) == 130
        os.close(ours)
        assert run.process.poll() is None  # whoever looks at a run does nothing to it

        followed = subprocess.Popen(
            WATCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, errors="replace"
        )
        assert followed.stdout is not None
        assert "train" in followed.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        out, err = followed.communicate(timeout=60)
        assert followed.returncode == 0, err
        assert "incomplete: interrupted" in out
        assert record_of(run.store)["run_id"] in out
        assert err == ""
    finally:
        run.process.send_signal(signal.SIGTERM)
        run.end()
