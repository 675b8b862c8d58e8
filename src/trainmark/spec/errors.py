"""Everything that can go wrong, as one sentence for the user and one exit code for the shell."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.spec.record import Record


class TrainmarkError(Exception):
    """A failure the user can act on: its text is the sentence shown, `exit_code` what the process ends with."""

    exit_code = 1
    record: Record | None = None
    """What a run that failed had measured by then, where it left a record."""


class UsageError(TrainmarkError):
    """The command line or a setting is wrong."""

    exit_code = 2


class NotReadyError(TrainmarkError):
    """The machine is not ready: devices, data, disk, port, versions."""

    exit_code = 3


class WorkloadError(TrainmarkError):
    """The workload failed: a rank died, memory ran out, a data file is corrupt."""

    exit_code = 4


class InvalidResultError(TrainmarkError):
    """The run ended but its result must not be used: loss not finite, or a `--strict` rule broken."""

    exit_code = 5


class HangError(TrainmarkError):
    """Nothing moved for longer than the stated limit."""

    exit_code = 124


NEAR = 0.65
"""Of the letters of two words, how many must be alike for one to be meant by the other."""
NO_PROCESSES = (
    "no more processes or threads may be started here; raise the limit ('ulimit -u', or the container's), "
    "or end other programs of this user"
)


def lacks_processes(error: BaseException) -> bool:
    """True where the system refused a process or a thread."""
    return isinstance(error, BlockingIOError) or (
        isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    )


def misfit(error: Exception) -> str:
    """What msgspec says of a document that does not fit its type, the field first: `quality.goal: expected ...`."""
    said, _, place = str(error).partition(" - at `$")
    said = f"{said[:1].lower()}{said[1:]}"
    return f"{place.rstrip('`').lstrip('.')}: {said}" if place.strip("`") else said


def nearest(word: str, known: Iterable[str]) -> str:
    """Ends a sentence about an unknown word: the known one that is meant, where one is near, else all of them."""
    known = list(known)
    bare = {name.lower().lstrip("-"): name for name in reversed(known)}  # dashes are alike in all options
    said = word.lower().lstrip("-")
    longer = [name for name in bare if len(said) > 2 and name.startswith(said)]
    close = longer if len(longer) == 1 else difflib.get_close_matches(said, bare, n=1, cutoff=NEAR)
    if close:
        return f"did you mean {bare[close[0]]!r}?"
    return "known: " + ", ".join(known)
