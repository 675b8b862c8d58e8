"""The audit framework: small functions that yield findings, or say why they could not run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from trainmark.record.checks import VERDICTS, CheckResult, Verdict, find_gravest
from trainmark.record.errors import TrainmarkError

Case = TypeVar("Case")

CLOSE = 1e-9
"""Relative: figures are kept at full precision, so what was computed from the same series agrees to rounding."""

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, TrainmarkError)
"""What code raises on a document with a wrong type or a missing field."""

SEVERITIES: dict[Verdict, str] = {"failed": "wrong", "doubt": "doubtful", "note": "note"}
"""Severities of an audit. wrong: cannot be true; doubtful: hardly can be; note: worth knowing."""


class CannotCheckError(Exception):
    """Raised by a check that lacks something; its text says what."""


CheckFunction = Callable[[Case], Iterable[CheckResult]]


@dataclass(frozen=True, kw_only=True)
class Check(Generic[Case]):
    code: str
    title: str
    """What holds for an honest result."""
    run: CheckFunction[Case]


def check(code: str, title: str) -> Callable[[CheckFunction[Any]], Check[Any]]:
    """Turns a function into a check."""
    return lambda function: Check(code=code, title=title, run=function)


def _find(verdict: Verdict, numbers: str, why: str, check: str, subject: str = "") -> CheckResult:
    return CheckResult(verdict=verdict, evidence=numbers, sentence=why, remedy=check, subject=subject)


wrong = partial(_find, "failed")
"""It cannot be true. `subject` is a part of what is audited, such as a row of a page."""
doubtful = partial(_find, "doubt")
"""It can hardly be true."""
note = partial(_find, "note")
"""Worth knowing."""


def run_checks(checks: Iterable[Check[Case]], case: Case, subject: str) -> tuple[CheckResult, ...]:
    """Runs every check on one case; a check that fails on what it reads has found it damaged."""
    results = []
    for entry in checks:
        try:
            results.append(conclude(entry.code, entry.title, tuple(entry.run(case)), subject))
        except CannotCheckError as reason:
            results.append(mark_unchecked(entry.code, entry.title, str(reason)))
        except DAMAGED as error:
            text = f"{type(error).__name__}: {error}"
            damage = wrong(text, "it holds something that no run writes", "what was changed in the file")
            results.append(conclude(entry.code, entry.title, (damage,), subject))
    return tuple(results)


def conclude(code: str, title: str, found: tuple[CheckResult, ...], subject: str) -> CheckResult:
    """The result of a check that ran: it passed where it found nothing."""
    named = tuple(replace(one, name=code, subject=one.subject or subject) for one in found)
    return CheckResult(verdict=find_gravest(named), sentence=title, name=code, claim=title, findings=named)


def mark_unchecked(code: str, title: str, reason: str) -> CheckResult:
    return CheckResult(verdict="unknown", sentence=reason, name=code, claim=title)


def name_outcome(result: CheckResult) -> str:
    """`passed`, `failed` or `not checked`."""
    return {"ok": "passed", "unknown": "not checked"}.get(result.verdict, "failed")


def find_reason(result: CheckResult) -> str | None:
    return result.sentence if result.verdict == "unknown" else None


def is_same(one: object, other: object, relative: float = CLOSE) -> bool:
    """Equal, numbers up to rounding; a bool is not a number here."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=relative, abs_tol=1e-12)
    return one == other


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audited thing: a run, a page, an event log."""

    title: str
    checks: tuple[CheckResult, ...]
    empty: bool = False
    """Whether there was nothing to check, which is no pass."""


def collect_findings(audits: Iterable[Audit]) -> list[CheckResult]:
    """Most severe first, otherwise in the order found."""
    return sort_by_gravity(finding for audit in audits for entry in audit.checks for finding in entry.findings)


def sort_by_gravity(found: Iterable[CheckResult]) -> list[CheckResult]:
    return sorted(found, key=lambda finding: VERDICTS.index(finding.verdict))


def list_empty(audits: Iterable[Audit]) -> list[str]:
    """The titles of audits with nothing to check."""
    return [audit.title for audit in audits if audit.empty]


def is_wrong(audits: Iterable[Audit]) -> bool:
    return any(finding.verdict == "failed" for finding in collect_findings(audits))


def summarise(audits: Sequence[Audit]) -> str:
    count = Counter(name_outcome(entry) for audit in audits for entry in audit.checks)
    graded = Counter(finding.verdict for finding in collect_findings(audits))
    words = SEVERITIES | {"note": "notes" if graded["note"] > 1 else "note"}
    shown = ", ".join(f"{graded[verdict]} {word}" for verdict, word in words.items() if graded[verdict])
    text = (
        f"{count.total()} checks: {count['passed']} passed, "
        f"{count['failed']} failed, {count['not checked']} could not be checked"
    )
    return f"{text}; findings: {shown}" if shown else text


def to_json(audits: Sequence[Audit]) -> dict[str, Any]:
    return {
        "summary": summarise(audits),
        "wrong": is_wrong(audits),
        "findings": [_finding_to_json(finding) for finding in collect_findings(audits)],
        "audited": [
            {
                "title": audit.title,
                "empty": audit.empty,
                "checks": [
                    {
                        "code": entry.name,
                        "title": entry.claim,
                        "outcome": name_outcome(entry),
                        "findings": [_finding_to_json(finding) for finding in entry.findings],
                        "why_not": find_reason(entry),
                    }
                    for entry in audit.checks
                ],
            }
            for audit in audits
        ],
    }


def _finding_to_json(finding: CheckResult) -> dict[str, str]:
    return {
        "code": finding.name,
        "severity": SEVERITIES[finding.verdict],
        "subject": finding.subject,
        "numbers": finding.evidence,
        "why": finding.sentence,
        "check": finding.remedy,
    }
