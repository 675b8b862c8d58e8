"""One thing the doctor looked at: how it stands, in a sentence, and what would help."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, ParamSpec

from trainmark.spec.errors import NotReadyError, TrainmarkError

Verdict = Literal["ok", "doubt", "failed", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("ok", "doubt", "failed", "unknown")

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str = ""
    group: str = ""
    """The heading it stands below."""
    verdict: Verdict
    """`failed` where a run could not work, `doubt` where it would and its numbers could suffer."""
    sentence: str
    """Empty where the first machine of a job tells it for all."""
    remedy: str = ""
    """A line to paste, or a word of advice."""
    exit_code: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind the sentence, for programs."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """Of the links: what each message size took."""


def ok(sentence: str, **facts: Any) -> Section:
    return Section(verdict="ok", sentence=sentence, facts=facts)


def doubt(sentence: str, remedy: str = "", **facts: Any) -> Section:
    return Section(verdict="doubt", sentence=sentence, remedy=remedy, facts=facts)


def failed(sentence: str, remedy: str = "", **facts: Any) -> Section:
    return Section(verdict="failed", sentence=sentence, remedy=remedy, exit_code=NotReadyError.exit_code, facts=facts)


def unknown(sentence: str, remedy: str = "", **facts: Any) -> Section:
    return Section(verdict="unknown", sentence=sentence, remedy=remedy, facts=facts)


def check(name: str, group: str) -> Callable[[Callable[Arguments, Section]], Callable[Arguments, Section]]:
    """Names what a function looks at, and turns whatever stops it from looking into a section too."""

    def decorate(look: Callable[Arguments, Section]) -> Callable[Arguments, Section]:
        @functools.wraps(look)
        def looked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Section:
            try:
                section = look(*args, **kwargs)
            except TrainmarkError as error:
                section = failed(str(error))
            except Exception as error:  # drivers and plugins raise what they like, and one of them is not the machine
                section = unknown(_reason(error))
            return replace(section, name=section.name or name, group=group)

        return looked

    return decorate


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be read: {error.strerror}"
    return f"could not be looked at: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def amount(size_bytes: float) -> str:
    """`64 MiB`, `23.5 GiB`."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes / 2**10:.3g} KiB"


def count(number: int, thing: str) -> str:
    """`1 core`, `20 000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}".replace(",", " ")
