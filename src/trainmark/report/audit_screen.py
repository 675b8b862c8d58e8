"""Draws an audit for a terminal: the gravest findings first, each with its figures, its reason and what to check."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.report.terminal import Paper
from trainmark.spec.audited import Audited, findings, summary
from trainmark.spec.finding import Checked

STYLES = {"wrong": "bold red", "doubtful": "bold yellow", "note": "bold"}


def render(
    audits: Sequence[Audited],
    *,
    everything: bool = False,
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """`everything` also lists what passed and what could not be checked."""
    paper = Paper(width=width, color=color, encoding=encoding)
    for finding in findings(audits):
        head = paper.text(f"{finding.severity}: {finding.subject}", STYLES[finding.severity])
        head.append_text(paper.text(f"  {finding.code}", "dim"))
        paper.put(head)
        paper.put(finding.numbers, _sentence(finding.why), f"Check {finding.check}.", indent=2)
        paper.put("")
    if everything:
        for audit in audits:
            paper.put(paper.text(audit.title, "bold"))
            for entry in audit.checked:
                paper.put(paper.text(_line(entry), "" if entry.outcome == "failed" else "dim"), indent=2)
            paper.put("")
    paper.put(f"{summary(audits)}.")
    return paper.drawn()


def _line(entry: Checked) -> str:
    said = f"{entry.outcome}: {entry.title}"
    return f"{said} ({entry.why_not})" if entry.why_not else said


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
