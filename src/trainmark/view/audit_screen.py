"""Draws an audit for a terminal: most severe findings first, each with evidence, reason and what to check."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.record.audit import SEVERITIES, Audit, collect_findings, find_reason, name_outcome, summarise
from trainmark.view.terminal import TerminalWriter

STYLES = {"failed": "bold red", "doubt": "bold yellow", "note": "bold"}


def render(
    audits: Sequence[Audit],
    *,
    everything: bool = False,
    width: int = 100,
    color: bool = False,
    encoding: str = "utf-8",
) -> str:
    """`everything` also lists what passed and what could not be checked."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    for finding in collect_findings(audits):
        head = writer.text(f"{SEVERITIES[finding.verdict]}: {finding.subject}", STYLES[finding.verdict])
        head.append_text(writer.text(f"  {finding.name}", "dim"))
        writer.put(head)
        sentence = f"{finding.sentence[:1].upper()}{finding.sentence[1:]}."
        writer.put(finding.evidence, sentence, f"Check {finding.remedy}.", indent=2)
        writer.put("")
    if everything:
        for audit in audits:
            writer.put(writer.text(audit.title, "bold"))
            for entry in audit.checks:
                reason = find_reason(entry)
                line = f"{name_outcome(entry)}: {entry.claim}" + (f" ({reason})" if reason else "")
                writer.put(writer.text(line, "" if entry.findings else "dim"), indent=2)
            writer.put("")
    writer.put(f"{summarise(audits)}.")
    return writer.getvalue()
