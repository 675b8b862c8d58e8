"""Error types: one sentence for the user and one exit code for the shell."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class TrainmarkError(Exception):
    """A failure the user can act on: its text is the sentence shown, `exit_code` what the process ends with."""

    exit_code = 1
    record: Any = None
    """The Record of a run that failed, where it left one."""
    log: Path | None = None
    """The log of the rank that failed, which holds its traceback."""


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
    """No progress for longer than the stated limit."""

    exit_code = 124


class SignalError(TrainmarkError):
    """A signal ended the run."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.exit_code = 128 + number


def error_from_exit_code(code: int, sentence: str) -> TrainmarkError:
    """The error behind another process's exit code."""
    for kind in (UsageError, NotReadyError, WorkloadError, InvalidResultError, HangError):
        if code == kind.exit_code:
            return kind(sentence)
    if code > 128:
        return SignalError(sentence, code - 128)
    error = TrainmarkError(sentence)
    error.exit_code = code
    return error


NEAR = 0.65
"""Similarity from which a word may be a typo of another; `cost` and `compute` are 0.55."""
NO_PROCESSES = (
    "no more processes or threads may be started here; raise the limit ('ulimit -u', or the container's), "
    "or end other programs of this user"
)


def is_process_limit(error: BaseException) -> bool:
    """Whether the system refused a process or a thread."""
    return isinstance(error, BlockingIOError) or (
        isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    )


def describe_misfit(error: Exception) -> str:
    """msgspec's validation error, the field first: `quality.goal: expected ...`."""
    text, _, place = str(error).partition(" - at `$")
    text = f"{text[:1].lower()}{text[1:]}"
    return f"{place.rstrip('`').lstrip('.')}: {text}" if place.strip("`") else text


MAX_NAMED = 24
_MIN_BEGINNING = 4


def nearest(word: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """Ends a sentence about an unknown word: the known word it abbreviates or mistypes, else those with the same start,
    else `otherwise`, or as many of all as fit."""
    plain: dict[str, str] = {}
    for name in known:
        plain.setdefault(name.lower().lstrip("-"), name)  # dashes are alike in all options
    typed = word.lower().lstrip("-")
    longer = [name for name in plain if len(typed) > 2 and name.startswith(typed)]
    if close := longer if len(longer) == 1 else difflib.get_close_matches(typed, plain, n=1, cutoff=NEAR):
        return f"did you mean {plain[close[0]]!r}?"
    alike = [
        name
        for low, name in plain.items()
        if len(first := re.split(r"[-_:]", low)[0]) >= _MIN_BEGINNING and typed.startswith(first)
    ]
    if not alike and otherwise:
        return otherwise
    named = alike or list(plain.values())
    words, more = ", ".join(named[:MAX_NAMED]), len(named) - MAX_NAMED
    if more > 0:
        words = f"{words} and {more} more"
    if not alike:
        return f"known: {words}"
    return f"there is {words}" if len(alike) == 1 else f"there are {words}"
