"""Writes a run as an MLPerf log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmark.features.mlperf.write import choose_division, format_log, open_run
from trainmark.record.errors import UsageError
from trainmark.record.record import Record


def write_log(records: Sequence[Record], *, language: str, folders: Mapping[str, Path]) -> str:
    """The log of one run; which division it may be in is part of it."""
    if len(records) != 1:
        raise UsageError(
            f"mllog is the log of one run, and {len(records)} are meant; name one, or see 'trainmark package'"
        )
    run = open_run(records[0], folders.get(records[0].run_id, Path()))
    return format_log(run, division=choose_division([run], None))


FORMATS = {"mllog": write_log}
