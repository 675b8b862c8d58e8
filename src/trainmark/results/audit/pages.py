"""Audits published pages: each row by itself, rows against each other, and the page's words against its figures."""

from __future__ import annotations

from collections.abc import Iterable

from trainmark.results.audit import page_rows, page_tables, page_words
from trainmark.results.audit.checking import look
from trainmark.results.audit.finding import Checked
from trainmark.results.published import PublishedRow
from trainmark.results.published_page import Page

CHECKS = (*page_rows.CHECKS, *page_tables.CHECKS, *page_words.CHECKS)


def audit_page(page: Page) -> tuple[Checked, ...]:
    return look(CHECKS, page, page.title)


def by_source(rows: Iterable[PublishedRow]) -> list[Page]:
    """Rows put back on the pages they were read from; of their words only what the rows hold is left."""
    pages: dict[str, list[PublishedRow]] = {}
    for row in rows:
        pages.setdefault(row.source.title, []).append(row)
    return [Page(title=title, rows=tuple(members)) for title, members in pages.items()]
