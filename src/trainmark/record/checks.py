"""The result of a check, whether of the doctor, a preflight, a data set or an audit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec

from trainmark.record.errors import NotReadyError, TrainmarkError

Verdict = Literal["ok", "note", "doubt", "failed", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("failed", "doubt", "note", "unknown", "ok")
"""Most severe first."""

LOG_BYTES = 64 << 20
"""Disk space any run needs: event files, logs and the record."""

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The verdict of one check, in a sentence, with its remedy."""

    verdict: Verdict
    """failed: it cannot work, or cannot be true; doubt: it hardly can, or its numbers suffer; note: worth knowing;
    unknown: it could not be checked."""
    sentence: str
    """Empty where another machine of the job reports it for all."""
    name: str = ""
    """What was checked, for programs: `memory`, `mfu-above-peak`."""
    group: str = ""
    """The heading it is listed under."""
    claim: str = ""
    """What the check holds to be true of an honest result: `phases sum to e2e_time`."""
    subject: str = ""
    """What was checked, where that is not the machine: a run, a row, a file."""
    evidence: str = ""
    """The figures that show it, with units."""
    remedy: str = ""
    """A command to paste, advice, or what to check next."""
    exit_code: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence, for programs."""
    findings: tuple[CheckResult, ...] = ()
    """All findings of one check, where there may be several; its verdict is then the most severe."""

    def __str__(self) -> str:
        if not self.subject:
            return self.sentence
        # a file's name may move the cursor
        subject = self.subject if self.subject.isprintable() else repr(self.subject)
        return f"{subject}: {self.sentence}"


def ok(sentence: str, **facts: Any) -> CheckResult:
    return CheckResult(verdict="ok", sentence=sentence, facts=facts)


def doubt(sentence: str, remedy: str = "", **facts: Any) -> CheckResult:
    return CheckResult(verdict="doubt", sentence=sentence, remedy=remedy, facts=facts)


def failed(sentence: str, remedy: str = "", **facts: Any) -> CheckResult:
    code = NotReadyError.exit_code
    return CheckResult(verdict="failed", sentence=sentence, remedy=remedy, exit_code=code, facts=facts)


def unknown(sentence: str, remedy: str = "", **facts: Any) -> CheckResult:
    return CheckResult(verdict="unknown", sentence=sentence, remedy=remedy, facts=facts)


def find_gravest(results: tuple[CheckResult, ...]) -> Verdict:
    return min((result.verdict for result in results), key=VERDICTS.index, default="ok")


def check(name: str, group: str = "") -> Callable[[Callable[Arguments, CheckResult]], Callable[Arguments, CheckResult]]:
    """Names a check function, and turns its exceptions into results."""

    def decorate(function: Callable[Arguments, CheckResult]) -> Callable[Arguments, CheckResult]:
        @functools.wraps(function)
        def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> CheckResult:
            try:
                result = function(*args, **kwargs)
            except TrainmarkError as error:
                result = failed(str(error))
            except Exception as error:  # drivers and plugins raise anything
                result = unknown(_reason(error))
            return replace(result, name=result.name or name, group=group)

        return wrapper

    return decorate


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be read: {error.strerror}"
    return f"could not be checked: {type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def format_bytes(size_bytes: float) -> str:
    """`64 MiB`, `23.5 GiB`."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes / 2**10:.3g} KiB"


def format_count(number: int, thing: str) -> str:
    """`1 core`, `20 000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}".replace(",", " ")


def find_existing_folder(path: Path) -> Path:
    """The nearest existing folder at or above a path."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path if path.is_dir() else path.parent
