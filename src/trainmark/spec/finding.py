"""What a check has found, or why it could not look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["wrong", "doubtful", "note"]
Outcome = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    code: str
    """For programs: `mfu-above-peak`."""
    severity: Severity
    """wrong: cannot be so; doubtful: can hardly be so; note: a reader has to know it."""
    subject: str
    """What it is about: a run, a row, a page."""
    numbers: str
    """The figures that show it, with units."""
    why: str
    """One sentence."""
    check: str
    """What to look at next."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One check with what it found. A check that fails has findings; one that could not look says why."""

    code: str
    title: str
    """What it holds to be true of an honest result: `phases sum to e2e_time`."""
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    why_not: str | None = None
