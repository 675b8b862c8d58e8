"""What is said of a set that was looked through: its size, what is wrong with it and what is only unusual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Generic, Literal, TypeVar

from trainmark.spec.errors import NotReadyError

Decode = Literal["none", "header", "full"]
"""How closely to look: at names and sizes, at where files begin and end, or at everything in them."""

Size = TypeVar("Size")
Job = TypeVar("Job")
Seen = TypeVar("Seen")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about a file or a folder of the set."""

    path: str
    """Below the root, with forward slashes."""
    text: str

    def __str__(self) -> str:
        path = self.path if self.path.isprintable() else repr(self.path)  # a file's name may move the cursor
        return f"{path}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Report(Generic[Size]):
    """What was expected, what was found, and which files are not as they should be."""

    expected: Size | None
    """None where nothing is known of the set."""
    found: Size
    problems: tuple[Finding, ...]
    """A run that reads these fails or learns the wrong thing."""
    notes: tuple[Finding, ...]
    """Unusual, and still read without loss: a PNG named .JPEG, a file that belongs to no clip."""

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


def in_parallel(look: Callable[[Job], Seen], jobs: Sequence[Job], processes: int, what: str) -> list[Seen]:
    """What `look` sees in each job, in order; `what` names the things looked at in case a process dies over them."""
    if processes == 1 or len(jobs) < 2:
        return [look(job) for job in jobs]
    # started afresh, not forked: the caller may have threads, and a fork of those can hang
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(look, jobs, chunksize=max(1, len(jobs) // (processes * 16))))
        except BrokenProcessPool as error:
            raise NotReadyError(
                f"a process died while looking at the {what} (out of memory, or a file that crashes the decoder); "
                "try decode 'header', or one process to see where"
            ) from error
