"""How a check is written: a small function that yields what it found, or says why it could not look."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from trainmark.spec.errors import TrainmarkError
from trainmark.spec.finding import Checked, Finding, Severity

Case = TypeVar("Case")

CLOSE = 1e-9
"""Relative: figures are kept at full precision, so what was computed from the same series agrees to rounding."""

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TrainmarkError)
"""What code meets where a document holds a word for a number, or nothing where something belongs."""


class CannotCheckError(Exception):
    """Raised by a check for which something is missing; its text says what."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A finding before it is known whose it is."""

    severity: Severity
    numbers: str
    why: str
    check: str
    subject: str | None = None
    """Where it is about a part of what is audited: a row of a page."""


Look = Callable[[Case], Iterable[Found]]


@dataclass(frozen=True, kw_only=True)
class Check(Generic[Case]):
    code: str
    title: str
    """What it holds to be true of an honest result."""
    look: Look[Case]


def check(code: str, title: str) -> Callable[[Look[Any]], Check[Any]]:
    """Makes a function a check."""
    return lambda look: Check(code=code, title=title, look=look)


def wrong(numbers: str, why: str, check: str, subject: str | None = None) -> Found:
    """It cannot be so."""
    return Found(severity="wrong", numbers=numbers, why=why, check=check, subject=subject)


def doubtful(numbers: str, why: str, check: str, subject: str | None = None) -> Found:
    """It can hardly be so."""
    return Found(severity="doubtful", numbers=numbers, why=why, check=check, subject=subject)


def note(numbers: str, why: str, check: str, subject: str | None = None) -> Found:
    """A reader has to know it."""
    return Found(severity="note", numbers=numbers, why=why, check=check, subject=subject)


def look(checks: Iterable[Check[Case]], case: Case, subject: str) -> tuple[Checked, ...]:
    """Every check on one thing. A check that trips over what it reads has found that it is damaged."""
    return tuple(_looked(entry, case, subject) for entry in checks)


def _looked(entry: Check[Case], case: Case, subject: str) -> Checked:
    try:
        found = tuple(entry.look(case))
    except CannotCheckError as reason:
        return Checked(code=entry.code, title=entry.title, outcome="not checked", why_not=str(reason))
    except DAMAGED as error:
        said = f"{type(error).__name__}: {error}"
        found = (wrong(said, "something stands there that no run writes", "what was changed in the file"),)
    findings = tuple(
        Finding(
            code=entry.code,
            severity=one.severity,
            subject=one.subject or subject,
            numbers=one.numbers,
            why=one.why,
            check=one.check,
        )
        for one in found
    )
    if not findings:
        return Checked(code=entry.code, title=entry.title, outcome="passed")
    return Checked(code=entry.code, title=entry.title, outcome="failed", findings=findings)


def same(one: object, other: object, relative: float = CLOSE) -> bool:
    """Equal, and numbers to rounding; a truth value is not a number here."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=relative, abs_tol=1e-12)
    return one == other
