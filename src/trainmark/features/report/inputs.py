"""Inputs of a page: records, published rows, checks, and where their files lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainmark.features.report.trend import Trend
from trainmark.record.checks import CheckResult
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.view.sections import FactSection


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    records: tuple[Record, ...]
    rows: tuple[PublishedRow, ...] = ()
    """Requested published rows, which are in the summary, too."""
    beside: tuple[PublishedRow, ...] = ()
    """Published rows to show the machines beside."""
    checks: Mapping[str, tuple[CheckResult, ...]] = field(default_factory=dict)
    """By run id; empty where nothing was checked."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """By run id, the run folder with its audio and images."""
    samples: Mapping[str, Path] = field(default_factory=dict)
    """By run id, the folder of samples made after the run."""
    facts: Mapping[str, Sequence[FactSection]] = field(default_factory=dict)
    """By run id, what features know of it beside its record."""
    trends: tuple[Trend, ...] = ()
    """Metrics followed from run to run."""
    made: str = ""
    """Date of the page."""
    trainmark: str = ""
    language: str = "en"
    home: str = ""
    """Link back to the site."""


MAX_OPEN = 12
"""Runs a page shows in full from the start; of more, each is folded, and rendered only when opened."""
COLUMNS, FEWER_COLUMNS = 300, 120
"""Columns a long series is thinned to: a page of many runs must still open quickly."""
