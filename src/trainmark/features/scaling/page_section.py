"""Charts the speed-up of runs against the ideal line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trainmark.analysis.scaling import Point, Scaling, find_scalings
from trainmark.record.format import NOTHING, drop_noisy, number
from trainmark.record.language import Say
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.view import chart
from trainmark.view.element import Child, Markup, el
from trainmark.workloads import title

ORDER = 2


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """One chart per group of runs that differ in topology alone; None where there is none."""
    charts = [_chart(group, say) for group in find_scalings(records)]
    if not charts:
        return None
    return el("section", el("h2", say("Scaling")), el("div", charts, class_="charts"), class_="growth")


def _chart(group: Scaling, say: Say) -> Markup:
    base = group.points[0]
    devices = [point.topology.devices for point in group.points]
    last = group.points[-1]
    kind = say("weak scaling") if group.kind == "weak" else say("strong scaling")
    summary = say("{topology} reaches {efficiency} of the ideal speed-up over {base}, by {metric}.").format(
        topology=last.topology, efficiency=_efficiency(last), base=base.topology, metric=group.metric
    )
    x = replace(chart.doubling_axis(devices), high=devices[-1] * 1.6)  # the last point's label stands behind it
    ideal = [(float(count), count / devices[0]) for count in (devices[0], devices[-1])]
    facts = " · ".join((kind, group.device, group.precision, group.recipe_name))
    notes: list[Child] = [summary, " ", el("span", facts)]
    drawn = chart.draw_chart(
        title(group.workload),
        summary,
        say,
        x=x,
        y=_speed_ups([point.speed_up for point in group.points], ideal[-1][1]),
        x_name=say("devices"),
        y_name=say("speed-up"),
        y_unit="×",
        lines=[
            chart.Line(
                name=say("measured"),
                points=[(point.topology.devices, point.speed_up) for point in group.points],
                dots=True,
                spread=[_spread(point, base) for point in group.points],
                labels=["", *(f"{100 * point.efficiency.value:.0f} %" for point in group.points[1:])],
            ),
            chart.Line(name=say("ideal"), points=ideal, color=5),
        ],
        heads=[say("topology"), say("devices"), group.metric, say("speed-up"), say("efficiency")],
        rows=[
            [
                str(point.topology),
                str(point.topology.devices),
                NOTHING
                if point.throughput.value is None
                else f"{number(point.throughput.value)} {point.throughput.unit}",
                number(point.speed_up),
                _efficiency(point),
            ]
            for point in group.points
        ],
        note=notes,
        counts_x=True,
    )
    warnings = el("ul", [el("li", note) for note in group.notes], class_="doubts") if group.notes else None
    return el("div", drawn, warnings)


def _speed_ups(values: Sequence[float], ideal: float) -> chart.Axis:
    """A log axis like that of the devices, so that the ideal is a straight line."""
    low, high = min(*values, 1.0) / 1.3, max(*values, ideal) * 1.3
    exponents = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    return chart.Axis(low=low, high=high, log=True, ticks=tuple(2.0**exponent for exponent in exponents))


def _efficiency(point: Point) -> str:
    shown = f"{100 * point.efficiency.value:.1f} %"
    if (interval := drop_noisy(point.efficiency.interval)) is None:
        return shown
    low, high = interval
    return f"{shown} [{100 * low:.1f}, {100 * high:.1f}]"


def _spread(point: Point, base: Point) -> tuple[float, float] | None:
    if (interval := drop_noisy(point.efficiency.interval)) is None:
        return None
    ideal = point.topology.devices / base.topology.devices
    return interval[0] * ideal, interval[1] * ideal
