"""How the commands speak: data on stdout, talk on stderr, colour only where a person is looking."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr; plain where it is not a terminal, without colour where NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or 120)
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False)


def say(sentence: str) -> None:
    """One line of talk on stderr; never fails the command if nobody listens."""
    with contextlib.suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)
