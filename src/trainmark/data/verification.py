"""Verification of a set: its size, problems and notes, found by several processes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any, Literal, TypeVar

from PIL import Image, UnidentifiedImageError

from trainmark.data.jpeg import FORMATS, BadImage, JpegDecoder
from trainmark.record import cores
from trainmark.record.checks import CheckResult
from trainmark.record.errors import NotReadyError

Decode = Literal["none", "header", "full"]
"""How much is read: names and sizes, the beginning and end of files, or everything."""

Job = TypeVar("Job")
Seen = TypeVar("Seen")

WORTH_PROCESSES = 1024
"""Number of files from which starting processes pays off."""
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND"}
_TAIL = 4 << 10


@dataclass(kw_only=True)
class Report:
    """What was found in a set, or in the part of it that one process checks."""

    found: Any = None
    """The size of the set."""
    expected: Any = None
    """None if unknown."""
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[CheckResult] = field(default_factory=list)
    """Files that fail or mislead a run; paths are relative to the root, with forward slashes."""
    notes: list[CheckResult] = field(default_factory=list)
    """Unusual but harmless: a PNG named .JPEG, a file that belongs to no clip."""

    def add(self, path: str, fault: str = "", note: str = "") -> None:
        """Adds a file's fault and note, unless empty."""
        self.problems += [CheckResult(verdict="failed", subject=path, sentence=fault)] if fault else []
        self.notes += [CheckResult(verdict="note", subject=path, sentence=note)] if note else []

    def merge(self, parts: Iterable[Report]) -> None:
        for part in parts:
            self.counts.update(part.counts)
            self.problems += part.problems
            self.notes += part.notes

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


def map_parallel(
    check: Callable[[Job], Seen], jobs: Sequence[Job], decode: Decode, what: str, *, worth: int = WORTH_PROCESSES
) -> list[Seen]:
    """What `check` finds in each job, in order, from `worth` jobs on in several processes; `what` names the items if
    one dies."""
    if decode == "none" or len(jobs) < worth:
        return [check(job) for job in jobs]
    processes = cores.count_usable_cores()
    # spawned, not forked: the caller may have threads, and forking those can hang
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            return list(pool.map(check, jobs, chunksize=max(1, len(jobs) // (processes * 4))))
        except BrokenProcessPool as error:
            raise NotReadyError(
                f"a process died while checking the {what} (out of memory, or a file that crashes the decoder); "
                "try decode 'header'"
            ) from error


def check_image(name: str, data: bytes, decode: Decode) -> tuple[tuple[int, int], str]:
    """Width and height of an image file, and a note; BadImage if a run could not read it.

    Checks the first and last bytes. With "full", or without an end marker, the decoder that a run uses decides.
    """
    if not data:
        raise BadImage("is empty")
    try:
        with Image.open(io.BytesIO(data), formats=(*FORMATS, "GIF", "BMP", "WEBP", "TIFF")) as image:
            kind, size = image.format or "", image.size
    except UnidentifiedImageError as error:
        raise BadImage("does not begin like a JPEG file") from error
    except Exception as error:  # Pillow's readers may raise anything
        raise BadImage(f"has a damaged header: {error}") from error
    if kind not in FORMATS:
        raise BadImage(f"is a {kind} file, which a run does not read; convert it to JPEG")
    complaint = ""
    if decode == "full" or _ENDS[kind] not in data[-_TAIL:]:
        try:
            complaint = JpegDecoder().check(data)
        except BadImage as error:
            raise BadImage(f"cannot be decoded: {error}") from error
    if kind != "JPEG" and not name.endswith(".png"):
        return size, f"is a {kind} file, not a JPEG"
    return size, complaint and f"decodes with a complaint: {complaint}"
