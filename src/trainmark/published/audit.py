"""Audits published pages: each row by itself, rows against each other, and the page's words against its figures."""

from __future__ import annotations

from collections.abc import Iterable

from trainmark.published import audit_rows, audit_tables, audit_words
from trainmark.published.page import PublishedPage
from trainmark.spec.audit import look
from trainmark.spec.checks import CheckResult
from trainmark.spec.published_row import PublishedRow

CHECKS = (*audit_rows.CHECKS, *audit_tables.CHECKS, *audit_words.CHECKS)


def audit_page(page: PublishedPage) -> tuple[CheckResult, ...]:
    return look(CHECKS, page, page.title)


def by_source(rows: Iterable[PublishedRow]) -> list[PublishedPage]:
    """Rows put back on the pages they were read from; of their words only what the rows hold is left."""
    pages: dict[str, list[PublishedRow]] = {}
    for row in rows:
        pages.setdefault(row.source.title, []).append(row)
    return [PublishedPage(title=title, rows=tuple(members)) for title, members in pages.items()]
