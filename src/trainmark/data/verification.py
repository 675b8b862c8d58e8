"""Verification reports of a set: size, problems and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError

Decode = Literal["none", "header", "full"]
"""How much is read: names and sizes, the beginning and end of files, or everything."""

Size = TypeVar("Size", bound=Any)
Job = TypeVar("Job")
Seen = TypeVar("Seen")


def problem(path: str, text: str) -> CheckResult:
    """A file that fails or misleads a run; the path is relative to the root, with forward slashes."""
    return CheckResult(verdict="failed", subject=path, sentence=text)


def note_on(path: str, text: str) -> CheckResult:
    """Unusual but harmless: a PNG named .JPEG, a file that belongs to no clip."""
    return CheckResult(verdict="note", subject=path, sentence=text)


@dataclass(frozen=True, kw_only=True)
class Report(Generic[Size]):
    """Expected and actual size, problems and notes."""

    expected: Size | None
    """None if unknown."""
    found: Size
    problems: tuple[CheckResult, ...]
    notes: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether the set can be trained on as it is."""
        return not self.problems and self.expected in (None, self.found)

    def sentence(self) -> str:
        """The verdict in one sentence."""
        found = str(self.found)
        if self.expected not in (None, self.found):
            found += f" where {self.expected} were expected"
        if not self.problems:
            return found
        return f"{found}; {len(self.problems)} problems, the first: {self.problems[0]}"

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "expected": None if self.expected is None else asdict(self.expected),
            "found": asdict(self.found),
            "problems": [{"path": found.subject, "text": found.sentence} for found in self.problems],
            "notes": [{"path": found.subject, "text": found.sentence} for found in self.notes],
        }


@dataclass(kw_only=True)
class Findings:
    """Results of one process for a part of a set."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[CheckResult] = field(default_factory=list)
    notes: list[CheckResult] = field(default_factory=list)

    def add(self, path: str, fault: str = "", note: str = "") -> None:
        """Adds a file's fault and note, unless empty."""
        self.problems += [problem(path, fault)] if fault else []
        self.notes += [note_on(path, note)] if note else []

    @classmethod
    def total(cls, parts: Iterable[Findings]) -> Findings:
        found = cls()
        for part in parts:
            found.counts.update(part.counts)
            found.problems += part.problems
            found.notes += part.notes
        return found


def inspect(verify: Callable[..., Report[Any]], folder: Path) -> tuple[str, str]:
    """Summary of a folder by names and sizes alone, and its faults."""
    report = verify(folder, decode="none")
    return str(report.found), "" if report.ok else report.sentence()


def map_parallel(check: Callable[[Job], Seen], jobs: Sequence[Job], processes: int, what: str) -> list[Seen]:
    """What `check` finds in each job, in order; `what` names the items if a process dies."""
    if processes == 1 or len(jobs) < 2:
        return [check(job) for job in jobs]
    # spawned, not forked: the caller may have threads, and forking those can hang
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(check, jobs, chunksize=max(1, len(jobs) // (processes * 16))))
        except BrokenProcessPool as error:
            raise NotReadyError(
                f"a process died while checking the {what} (out of memory, or a file that crashes the decoder); "
                "try decode 'header', or one process to see where"
            ) from error
