"""Output of the commands: results on stdout, status on stderr, colour only on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict, cast

from trainmark.record import escape

if TYPE_CHECKING:
    from rich.console import Console

USUAL_COLUMNS = 120
"""Where the terminal's width is unknown."""


class Output:
    """Standard output that remembers a failed write and drops what follows it."""

    def __init__(self, stream: TextIO | None, nowhere: TextIO) -> None:
        self._stream, self._nowhere = stream or nowhere, nowhere
        self.problem = ""
        """Why output was lost."""
        self.result_is_kept = False
        """The results are on disk, so lost output does not fail the command."""

    def write(self, text: str) -> int:
        if self._stream is self._nowhere:
            self.problem = "standard output is closed"
        with self._noting_problems():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._noting_problems():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _noting_problems(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # the reader is gone, which is no error
            self._drop()
            raise
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._drop()

    def _drop(self) -> None:
        """Sends the rest, also what Python flushes at exit, to the null device."""
        with contextlib.suppress(OSError, ValueError):
            os.dup2(self._nowhere.fileno(), self._stream.fileno())


@contextlib.contextmanager
def standard_streams() -> Iterator[Output]:
    """Streams that survive `>&-`, `>/dev/full` and a narrow encoding."""
    for number in range(3):  # a file opened later must not become one of them
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    for stream in before:
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        output = Output(sys.stdout, nowhere)
        sys.stdout, sys.stderr = cast(TextIO, output), sys.stderr or nowhere
        try:
            yield output
        finally:
            sys.stdout, sys.stderr = before


def mark_result_saved() -> None:
    """Records that the results are on disk, so that lost output does not fail the command."""
    if isinstance(sys.stdout, Output):
        sys.stdout.result_is_kept = True


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr; plain where it is not a terminal, without colour where NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    requested = int(columns) if columns.isascii() and columns.isdigit() and len(columns) < 6 else 0
    width = None if stream.isatty() else requested or USUAL_COLUMNS
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False)


class ScreenOptions(TypedDict):
    """What a view needs to know of the screen."""

    width: int
    color: bool
    encoding: str


def screen_options(screen: Console) -> ScreenOptions:
    return ScreenOptions(
        width=screen.width,
        color=screen.color_system is not None and not screen.no_color,
        encoding=screen.encoding,
    )


def show(text: str) -> None:
    """Lines on stdout; nothing in them is obeyed by the terminal."""
    print("\n".join(map(escape.terminal, text.split("\n"))))


def print_status(text: str) -> None:
    """Lines on stderr, as harmless; a closed stderr never fails the command."""
    with contextlib.suppress(OSError):
        print("\n".join(map(escape.terminal, text.split("\n"))), file=sys.stderr, flush=True)
