"""How the commands speak: data on stdout, talk on stderr, colour only where a person is looking."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypedDict, cast

if TYPE_CHECKING:
    from rich.console import Console

USUAL_COLUMNS = 120
"""Where no terminal says how wide it is."""


class Output:
    """Standard output that knows whether it took what was written; once it did not, the rest goes nowhere."""

    def __init__(self, stream: TextIO | None, nowhere: TextIO) -> None:
        self._stream, self._nowhere = stream or nowhere, nowhere
        self.problem = ""
        """Why something of it was lost."""
        self.result_is_kept = False
        """What the command found is on disk, so that little is lost with its output."""

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
        except BrokenPipeError:  # whoever read it has gone and wants no more, which is no problem
            self._drop()
            raise
        except OSError as error:
            self.problem = error.strerror or str(error)
            self._drop()

    def _drop(self) -> None:
        """What is still to be written, at the latest when Python ends, goes nowhere."""
        with contextlib.suppress(OSError, ValueError):
            os.dup2(self._nowhere.fileno(), self._stream.fileno())


@contextlib.contextmanager
def standard_streams() -> Iterator[Output]:
    """Streams that can be written to whatever a shell did to them: `>&-`, `>/dev/full`, a narrow encoding."""
    for number in range(3):  # the next file that is opened must not become one of them
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
    """Says that what the command found lies on disk, so that the command did its work even if nobody can read of it."""
    if isinstance(sys.stdout, Output):
        sys.stdout.result_is_kept = True


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr; plain where it is not a terminal, without colour where NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    columns = os.environ.get("COLUMNS", "")
    said = int(columns) if columns.isascii() and columns.isdigit() and len(columns) < 6 else 0
    width = None if stream.isatty() else said or USUAL_COLUMNS
    return Console(file=stream, width=width, highlight=False, soft_wrap=False, emoji=False)


class ScreenOptions(TypedDict):
    """What a view has to know of the screen it is drawn for."""

    width: int
    color: bool
    encoding: str


def screen_options(screen: Console) -> ScreenOptions:
    return ScreenOptions(
        width=screen.width,
        color=screen.color_system is not None and not screen.no_color,
        encoding=screen.encoding,
    )


def show(line: str) -> None:
    """One line on stdout."""
    print(line)


def print_status(sentence: str) -> None:
    """One line of talk on stderr; never fails the command if nobody listens."""
    with contextlib.suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)
