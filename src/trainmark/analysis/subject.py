"""What is to be compared, audited or reported on: a run, repeats of one plan, or a published row."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark.spec.published_row import PublishedRow
from trainmark.spec.record import Record


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is to be compared, audited or reported on."""

    word: str
    """As it was typed."""
    label: str
    """What to call it in a sentence; from outside, so it is escaped where it is shown."""
    records: tuple[Record, ...] = ()
    """One, or the repeats of one plan; none for a published row."""
    row: PublishedRow | None = None
