"""Runs a vendor's program for its output: no shell, no locale, a limit on time and size, and nothing left behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

MOST_BYTES = 4 << 20
"""No tool says so much of its devices: beyond this it has lost its way."""


def output_of(argv: Sequence[str], timeout_s: float, in_child: Callable[[], None] | None = None) -> tuple[str, str]:
    """The output and an empty text, or an empty text and why there is no output."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
            start_new_session=True,  # so that whatever it starts can be killed with it
            preexec_fn=in_child,  # noqa: PLW1509 - called in a process that has one thread that matters
        )
    except FileNotFoundError:
        return "", "not found"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"cannot be started: {error}"
    try:
        written, failed = _listen(process, time.monotonic() + timeout_s)
        if not failed:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
    finally:
        # also where it has ended: what it started may live on and hold its pipes
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    said = written[0].decode("utf-8", errors="replace")
    if failed:
        return "", failed.format(timeout_s=timeout_s)
    if process.returncode:
        last = [line.strip() for line in (written[1] or written[0]).decode("utf-8", "replace").splitlines()]
        words = next((line for line in last if line), "")
        return "", f"ended with exit code {process.returncode}" + (f": {words[:120]}" if words else "")
    return said, ""


def _listen(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[list[bytes], str]:
    written = [b"", b""]
    with selectors.DefaultSelector() as selector:
        for place, pipe in enumerate((process.stdout, process.stderr)):
            if pipe is not None:
                selector.register(pipe.fileno(), selectors.EVENT_READ, place)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            events = selector.select(left_s) if left_s > 0 else []
            if not events:
                return written, "did not answer within {timeout_s:g} s"
            for key, _ in events:
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                written[key.data] += piece
            if max(map(len, written)) > MOST_BYTES:
                return written, f"wrote more than {MOST_BYTES >> 20} MiB"
    return written, ""
