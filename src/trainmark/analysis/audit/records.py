"""Audits our own records: recomputes what can be, and holds the rest against what it must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmark.analysis.audit import (
    record_doubts,
    record_file,
    record_machine,
    record_metrics,
    record_quality,
    record_sensed,
    record_series,
    record_telemetry,
)
from trainmark.analysis.audit.record_case import RecordCase
from trainmark.spec.audit import DAMAGED, concluded, look, wrong
from trainmark.spec.checks import CheckResult
from trainmark.spec.record import Record, upgrade

CHECKS = (
    *record_file.CHECKS,
    *record_series.CHECKS,
    *record_metrics.CHECKS,
    *record_quality.CHECKS,
    *record_telemetry.CHECKS,
    *record_sensed.CHECKS,
    *record_machine.CHECKS,
    *record_doubts.CHECKS,
)


def audit_record(record: Record, document: Mapping[str, Any] | None = None) -> tuple[CheckResult, ...]:
    """Every check on a record; with the `document` it was read from, what the record leaves out is checked too."""
    return look(CHECKS, RecordCase(record=record, document=document), record.run_id)


def audit_document(document: Mapping[str, Any], name: str) -> tuple[CheckResult, ...]:
    """Every check on a record file's JSON; one that cannot be read as a record is wrong for that."""
    title = "the file is a record, with the plan its fingerprint was taken of"
    try:
        document = upgrade(document)
        record = Record.from_json(document)
    except DAMAGED as error:
        why, check = "no run writes a record that cannot be read", "who changed the file after it was written"
        return (concluded("readable", title, (wrong(str(error), why, check),), name),)
    return (concluded("readable", title, (), name), *audit_record(record, document))
