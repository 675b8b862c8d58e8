"""MLPerf Training logs as published rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trainmark.analysis.published_page import FoundPage
from trainmark.features.mlperf import folder, rows
from trainmark.features.mlperf.audit_result import audit_results
from trainmark.features.mlperf.audit_source import recognises as recognises
from trainmark.record.audit import findings
from trainmark.record.checks import CheckResult
from trainmark.record.published_row import PublishedRow


def pages(word: str | Path) -> Iterator[FoundPage]:
    """One per result folder."""
    for result in folder.find_result_folders(Path(word)):
        yield FoundPage(name=str(result.path), page=rows.make_page(result), content=rows.digest_logs(result))


def audited_rows(place: Path) -> Iterator[tuple[PublishedRow, tuple[CheckResult, ...]]]:
    """One row per result folder below a place, with what the audit finds about it."""
    for result, found in audit_results(folder.find_result_folders(place)):
        for row in rows.make_page(result).rows[:1]:
            yield row, tuple(findings(found))
