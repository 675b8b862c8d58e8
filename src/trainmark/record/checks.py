"""What a check came to, whoever made it: a doctor, a look before a run, a data set's examiner, an audit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec

from trainmark.record.errors import NotReadyError, TrainmarkError

Verdict = Literal["ok", "note", "doubt", "failed", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("failed", "doubt", "note", "unknown", "ok")
"""The gravest first."""

LOG_BYTES = 64 << 20
"""What any run writes: event files, logs and the record."""

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """How one thing stands, in a sentence, and what would help."""

    verdict: Verdict
    """failed: it cannot work, or cannot be so; doubt: it can, hardly, or its numbers suffer; note: a reader has to
    know it; unknown: nobody could look."""
    sentence: str
    """Empty where another machine of the job tells it for all."""
    name: str = ""
    """What was looked at, for programs: `memory`, `mfu-above-peak`."""
    group: str = ""
    """The heading it stands below."""
    claim: str = ""
    """What the check holds to be true of an honest result: `phases sum to e2e_time`."""
    subject: str = ""
    """What it is about, where that is not the machine: a run, a row, a file."""
    evidence: str = ""
    """The figures that show it, with units."""
    remedy: str = ""
    """A line to paste, a word of advice, or what to look at next."""
    exit_code: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence, for programs."""
    findings: tuple[CheckResult, ...] = ()
    """Everything one check found, where that may be more than one thing; its own verdict is then the gravest."""

    def __str__(self) -> str:
        if not self.subject:
            return self.sentence
        subject = (
            self.subject if self.subject.isprintable() else repr(self.subject)
        )  # a file's name may move the cursor
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
    """Names what a function looks at, and turns whatever stops it from looking into a result too."""

    def decorate(function: Callable[Arguments, CheckResult]) -> Callable[Arguments, CheckResult]:
        @functools.wraps(function)
        def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> CheckResult:
            try:
                result = function(*args, **kwargs)
            except TrainmarkError as error:
                result = failed(str(error))
            except Exception as error:  # drivers and plugins raise what they like, and one of them is not the machine
                result = unknown(_reason(error))
            return replace(result, name=result.name or name, group=group)

        return wrapper

    return decorate


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be read: {error.strerror}"
    return f"could not be looked at: {type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """What a driver says before it goes on about it."""
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
    """Where something would be made that is not there yet: the nearest folder above it that is."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path if path.is_dir() else path.parent
