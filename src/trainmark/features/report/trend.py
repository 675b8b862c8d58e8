"""Follows one plan on one device from run to run, and finds where its speed or quality took a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainmark.analysis import quantities
from trainmark.analysis.comparison import compare, side_of
from trainmark.analysis.judge import own_interval
from trainmark.record.errors import UsageError
from trainmark.record.format import short_device
from trainmark.record.index import StoreRow
from trainmark.record.lookup import Subject
from trainmark.record.record import Record

COMMIT = "commit"
"""The tag by which a run says which state of its user's own code ran."""


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """A run, or the repeats of a group, of which each is one sample of the same moment."""

    records: tuple[Record, ...]
    value: float
    interval: tuple[float, float] | None
    """95 % confidence; None where one run does not tell it."""
    change: float | None = None
    """The step from the point before, as a part of its value, where the verdict on the two is a difference."""
    worse: bool = False

    @property
    def record(self) -> Record:
        return self.records[0]

    @property
    def source(self) -> str:
        """What ran: the tag `commit`, else the git revision of trainmark, else its version."""
        return self.record.tags.get(COMMIT) or self.record.revision or self.record.trainmark


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One number of one plan on one device, oldest first."""

    metric: str
    unit: str
    points: tuple[TrendPoint, ...]

    @property
    def record(self) -> Record:
        return self.points[0].record

    @property
    def steps(self) -> list[TrendPoint]:
        return [point for point in self.points if point.change is not None]


def select_trend_rows(
    rows: Sequence[StoreRow], *, of: StoreRow | None = None, workload: str | None = None
) -> list[StoreRow]:
    """The rows of plans that were measured more than once on one device; of one plan or workload, or of all."""

    def plan(row: StoreRow) -> tuple[str, str]:
        return row.fingerprint, short_device(row.device)

    measured = [
        row
        for row in rows
        if row.status == "valid"
        and row.p_core is not None
        and workload in (None, row.workload)
        and (of is None or plan(of) == plan(row))
    ]
    runs = Counter(map(plan, measured))
    return [row for row in measured if runs[plan(row)] > 1]


def compute_trends(records: Sequence[Record]) -> list[Trend]:
    """Speed and quality of each plan that has at least two points, the plan that ran last first."""
    plans: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.created, record.run_id)):
        if record.status == "valid":
            key = record.plan.fingerprint, short_device(record.environment.device.name)
            plans.setdefault(key, []).append(record)
    newest_first = sorted(plans.values(), key=lambda runs: runs[-1].created, reverse=True)
    found = [_compute_trend(runs, metric) for runs in newest_first for metric in ("p_core", "quality")]
    return [trend for trend in found if trend is not None]


def _compute_trend(runs: Sequence[Record], metric: str) -> Trend | None:
    runs = [record for record in runs if _has_value(record, metric)]
    groups: dict[str, list[Record]] = {}
    for record in runs:
        groups.setdefault(record.group or record.run_id, []).append(record)
    subjects = [Subject(word=name, label=name, records=tuple(group)) for name, group in groups.items()]
    if len(subjects) < 2:
        return None
    compared = quantities.find(metric, subjects)
    changes = [None, *(_compute_change(a, b, metric) for a, b in pairwise(subjects))]
    sides = [side_of(subject.records, compared) for subject in subjects]
    return Trend(
        metric=compared.name,
        unit=quantities.of_record(runs[0], compared)[1],
        points=tuple(
            TrendPoint(
                records=subject.records,
                value=side.mean,
                interval=own_interval(side),
                change=change,
                worse=change is not None and (change > 0) is (compared.better == "lower"),
            )
            for subject, side, change in zip(subjects, sides, changes, strict=True)
        ),
    )


def _compute_change(a: Subject, b: Subject, metric: str) -> float | None:
    try:
        found = compare(a, b, metric=metric)
    except UsageError:  # they are not alike, as where one was measured by another definition: no verdict, no step
        return None
    return None if found.verdict in ("same", "inconclusive") else found.judgement.ratio - 1


def _has_value(record: Record, metric: str) -> bool:
    if metric == "quality":
        return (record.quality.value or 0) > 0
    found = record.metrics.get(metric)
    return found is not None and (found.value or 0) > 0
