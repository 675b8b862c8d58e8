"""Follows one plan on one device from run to run, and finds and charts steps in its speed or quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trainmark.analysis import quantities
from trainmark.analysis.comparison import collect_values, compare
from trainmark.analysis.judge import own_interval
from trainmark.record.errors import UsageError
from trainmark.record.format import NOTHING, device_name, drop_noisy, format_interval, short_device, with_unit
from trainmark.record.index import StoreRow
from trainmark.record.language import Say
from trainmark.record.record import Record
from trainmark.record.store import Subject
from trainmark.view import chart
from trainmark.view.element import Markup, el
from trainmark.view.headline import name_network

COMMIT = "commit"
"""The tag that names the revision of the user's code."""


@dataclass(frozen=True, kw_only=True)
class TrendPoint:
    """A run, or the repeats of a group, each one sample of the same point in time."""

    records: tuple[Record, ...]
    value: float
    interval: tuple[float, float] | None
    """95 % confidence; None where one run does not give it."""
    change: float | None = None
    """Relative change from the point before, where the two differ by verdict."""
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
    compared = quantities.find_compared(metric, subjects)
    changes = [None, *(_compute_change(a, b, metric) for a, b in pairwise(subjects))]
    sides = [collect_values(subject.records, compared) for subject in subjects]
    return Trend(
        metric=compared.name,
        unit=quantities.value_of_record(runs[0], compared)[1],
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


# Charts: every run with its interval, steps between neighbours named


_MAX_MARKS = 6
"""Revisions that have room below a chart."""


def draw_trends(trends: Sequence[Trend], say: Say) -> Markup | None:
    """A chart for each number that is followed; nothing where there is none."""
    if not trends:
        return None
    charts = [_draw_chart(trend, say) for trend in trends]
    return el("section", el("h2", say("Trend")), el("div", charts, class_="charts"), class_="growth")


def _draw_chart(trend: Trend, say: Say) -> Markup:
    points, unit, record = trend.points, "" if trend.unit == "-" else trend.unit, trend.record
    ends = [end for point in points for end in drop_noisy(point.interval) or ()]
    values = [*(point.value for point in points), *ends]
    # at least 5 % to either side, so that noise looks like noise; below the lowest point its label needs room
    middle, room = median(values), 0.15 * (max(values) - min(values))
    places = range(1, len(points) + 1, -(-len(points) // _MAX_MARKS))
    marks = {
        float(place): f"{points[place - 1].record.created[5:10]} {points[place - 1].source[:7]}" for place in places
    }
    return chart.draw_chart(
        f"{name_network(record)} · {device_name(record)} · {record.plan.topology} · {record.precision}",
        _describe_trend(trend, say),
        say,
        x=chart.Axis(low=0.5, high=len(points) + 0.8, ticks=tuple(marks)),
        x_marks=marks,
        y=chart.linear_axis([*values, min(values) - room, 0.95 * middle, 1.05 * middle]),
        x_name=say("day and revision, oldest first"),
        y_name=f"{trend.metric} {unit}".rstrip(),
        y_unit=unit,
        lines=[
            chart.Line(
                name=trend.metric,
                points=[(place, point.value) for place, point in enumerate(points, 1)],
                color=0 if trend.metric == "p_core" else 4,
                dots=True,
                spread=[point.interval for point in points],
                labels=[_format_change(point) for point in points],
                tips=[
                    " · ".join(filter(None, (*_name_point(point), f"{trend.metric} {cell}", _format_change(point))))
                    for point in points
                    for cell in [with_unit(point.value, unit, 4)]
                ],
            )
        ],
        heads=[say("created"), say("source"), say("run"), trend.metric, say("95 % interval"), say("step")],
        rows=[
            [
                *_name_point(point),
                with_unit(point.value, unit, 4),
                format_interval(point.interval, say("too noisy to say")) or NOTHING,
                _format_change(point) or NOTHING,
            ]
            for point in points
        ],
        size=(980, 240),
    )


def _describe_trend(trend: Trend, say: Say) -> str:
    first, last = (trend.points[place].record.created[:10] for place in (0, -1))
    points = say("{count} points from {first} to {last}.").format(count=len(trend.points), first=first, last=last)
    if not trend.steps:
        return f"{points} " + say("No neighbours differ by the verdict of compare.")
    step = trend.steps[-1]
    worse = say("worse") if step.worse else say("better")
    return f"{points} " + say("Steps: {count}; the last is {change} at {source}, which is {worse}.").format(
        count=len(trend.steps), change=_format_change(step), source=step.source, worse=worse
    )


def _name_point(point: TrendPoint) -> tuple[str, str, str]:
    """When it ran, from which source, and which run or group it is."""
    run = point.record.group or point.record.run_id.rpartition("-")[2]
    return point.record.created[:16].replace("T", " "), point.source, run


def _format_change(point: TrendPoint) -> str:
    return "" if point.change is None else f"{100 * point.change:+.1f} %".replace("-", "−")
