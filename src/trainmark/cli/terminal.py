"""How the commands speak: data on stdout, talk on stderr, colour only where a person is looking."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr; plain where it is not a terminal, without colour where NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or 120)
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False)


class Look(TypedDict):
    """What a view has to know of the screen it is drawn for."""

    width: int
    color: bool
    encoding: str


def look(screen: Console) -> Look:
    return Look(
        width=screen.width,
        color=screen.color_system is not None and not screen.no_color,
        encoding=screen.encoding,
    )


def say(sentence: str) -> None:
    """One line of talk on stderr; never fails the command if nobody listens."""
    with contextlib.suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)
