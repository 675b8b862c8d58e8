"""Audits published pages: each row alone, rows against each other, and the page's text against its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trainmark.analysis.published_library import PublishedPage
from trainmark.features.published.audit_checks import CHECKS, unread_lines
from trainmark.record.audit import SEVERITIES, Audit, mark_unchecked, run_checks, sort_by_gravity
from trainmark.record.checks import CheckResult
from trainmark.record.published_row import PublishedRow, RowFinding


def audit(page: PublishedPage) -> Audit:
    """All findings on a page; a page without figures is empty."""
    return Audit(title=page.title, checks=audit_page(page), empty=not has_figures(page))


def audit_page(page: PublishedPage) -> tuple[CheckResult, ...]:
    if has_figures(page):
        return run_checks(CHECKS, page, page.title)
    why = "no row of the page holds a figure" if page.rows else "no row of results was read"
    left = [mark_unchecked(entry.code, entry.title, why) for entry in CHECKS if entry is not unread_lines]
    return (*left, *run_checks([unread_lines], page, page.title))


def has_figures(page: PublishedPage) -> bool:
    return any(row.has_figures for row in page.rows)


def group_by_source(rows: Iterable[PublishedRow]) -> list[PublishedPage]:
    """Groups rows by the page they were read from; of its text, only the rows are known."""
    pages: dict[tuple[str, str], list[PublishedRow]] = {}
    for row in rows:
        pages.setdefault((row.source.title, row.source.address), []).append(row)
    return [PublishedPage(title=title, rows=tuple(members)) for (title, _), members in pages.items()]


def find_doubts(pages: Iterable[PublishedPage]) -> Mapping[str, tuple[CheckResult, ...]]:
    """What is wrong or doubtful, by row name, most severe first."""
    found: dict[str, list[CheckResult]] = {}
    for page in pages:
        for check in audit_page(page):
            for finding in check.findings:
                if finding.verdict in ("failed", "doubt"):
                    found.setdefault(finding.subject, []).append(finding)
    return {name: tuple(sort_by_gravity(all_of)) for name, all_of in found.items()}


def add_findings(page: PublishedPage) -> PublishedPage:
    """The page with its audit's findings stored on each row, so that readers need not audit it again."""
    return replace(page, rows=attach_findings(page.rows, find_doubts([page])))


def attach_findings(
    rows: Sequence[PublishedRow], doubts: Mapping[str, tuple[CheckResult, ...]]
) -> tuple[PublishedRow, ...]:
    return tuple(
        replace(
            row,
            findings=tuple(
                RowFinding(verdict=SEVERITIES[one.verdict], check=one.name, sentence=one.sentence)
                for one in doubts.get(row.name, ())
            ),
        )
        for row in rows
    )
