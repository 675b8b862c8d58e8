"""What an audit came to: findings sorted by weight, counts, and the document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainmark.spec.finding import Checked, Finding, Severity

SEVERITIES: tuple[Severity, ...] = ("wrong", "doubtful", "note")


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One thing that was held against what is known: a run, a page, an event log."""

    title: str
    checked: tuple[Checked, ...]


def findings(audits: Iterable[Audited]) -> list[Finding]:
    """The gravest first; what weighs the same stays in the order it was found."""
    found = [finding for audit in audits for entry in audit.checked for finding in entry.findings]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def is_wrong(audits: Iterable[Audited]) -> bool:
    return any(finding.severity == "wrong" for finding in findings(audits))


def summary(audits: Sequence[Audited]) -> str:
    count = Counter(entry.outcome for audit in audits for entry in audit.checked)
    graded = Counter(finding.severity for finding in findings(audits))
    words = {severity: severity for severity in SEVERITIES} | {"note": "notes" if graded["note"] > 1 else "note"}
    shown = ", ".join(f"{graded[severity]} {words[severity]}" for severity in SEVERITIES if graded[severity])
    said = (
        f"{count.total()} checks: {count['passed']} passed, "
        f"{count['failed']} failed, {count['not checked']} could not be checked"
    )
    return f"{said}; findings: {shown}" if shown else said


def to_json(audits: Sequence[Audited]) -> dict[str, Any]:
    return {
        "summary": summary(audits),
        "wrong": is_wrong(audits),
        "findings": [asdict(finding) for finding in findings(audits)],
        "audited": [{"title": audit.title, "checks": [asdict(entry) for entry in audit.checked]} for audit in audits],
    }
