"""The card that says how far a run can be trusted: what was checked, what failed, what could not be looked at."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.features.report.header import translate_status
from trainmark.record.audit import SEVERITIES, by_gravity
from trainmark.record.checks import CheckResult
from trainmark.record.doubt_text import translate_doubt
from trainmark.record.endings import translate_ending
from trainmark.record.language import Say
from trainmark.record.record import Doubt, Record
from trainmark.view.element import Child, Markup, el

MAX_FINDINGS = 3


def draw_validity(record: Record, checks: Sequence[CheckResult], say: Say) -> Markup:
    failed = [check for check in checks if check.findings]
    unseen = [check for check in checks if check.verdict == "unknown"]
    passed = [check for check in checks if check.verdict == "ok"]
    kind = "bad" if record.status != "valid" or _has_wrong(failed) else "fair" if failed or record.doubts else "good"
    return el(
        "section",
        el("h3", say("Can this be trusted?")),
        el(
            "p",
            el("span", translate_status(record.status, say), class_=f"status {record.status}"),
            translate_ending(record.ended, say),
            class_="ended",
        ),
        _draw_counts(len(passed), len(failed), len(unseen), say) if checks else el("p", say("Nothing was checked.")),
        _draw_findings([finding for check in failed for finding in check.findings], say),
        _draw_doubts(record.doubts, say),
        _draw_list(say("Could not be checked"), [f"{say(check.claim)}: {check.sentence}" for check in unseen]),
        _draw_list(say("Checked and held"), [say(check.claim) for check in passed]),
        class_=f"card validity {kind}",
    )


def _has_wrong(failed: Sequence[CheckResult]) -> bool:
    return any(check.verdict == "failed" for check in failed)


def _draw_counts(passed: int, failed: int, unseen: int, say: Say) -> Markup:
    counted = (
        ("good", passed, say("checked and held")),
        ("bad" if failed else "none", failed, say("failed")),
        ("fair" if unseen else "none", unseen, say("could not be checked")),
    )
    return el(
        "ul", [el("li", el("b", str(count)), el("span", word), class_=kind) for kind, count, word in counted],
        class_="counts",
    )  # fmt: skip


def _draw_findings(found: Sequence[CheckResult], say: Say) -> list[Child]:
    """The gravest first; many of them are folded, so that the card stays a card."""
    ordered = by_gravity(found)
    first, rest = ordered[:MAX_FINDINGS], ordered[MAX_FINDINGS:]
    shown: list[Child] = (
        [el("ul", [_draw_finding(finding, say) for finding in first], class_="findings")] if first else []
    )
    if rest:
        shown.append(
            el(
                "details",
                el("summary", say("{count} more findings").format(count=len(rest))),
                el("ul", [_draw_finding(finding, say) for finding in rest], class_="findings"),
                class_="data",
            )
        )
    return shown


def _draw_finding(finding: CheckResult, say: Say) -> Markup:
    severities = {"failed": say("wrong"), "doubt": say("doubtful"), "note": say("note")}
    return el(
        "li",
        el("b", severities[finding.verdict], class_=f"severity {SEVERITIES[finding.verdict]}"),
        f" {finding.sentence} ",
        el("span", finding.evidence, class_="numbers"),
        el("small", say("Look at: {check}").format(check=finding.remedy)),
    )


def _draw_doubts(doubts: Sequence[Doubt], say: Say) -> list[Child]:
    if not doubts:
        return [el("p", say("The run itself has no doubts."), class_="note")]
    return [
        el("h4", say("Doubts")),
        el(
            "ul",
            [el("li", translate_doubt(doubt, say)) for doubt in doubts],
            class_="doubts",
        ),
    ]


def _draw_list(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return el(
        "details",
        el("summary", f"{title} ({len(sentences)})"),
        el("ul", [el("li", sentence) for sentence in sentences]),
        class_="data",
    )
