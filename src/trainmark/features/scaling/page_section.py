"""Charts the speed-up of runs against the ideal line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainmark.analysis.scaling import Point, Scaling, find_scalings
from trainmark.features.scaling.after_sweep import make_table
from trainmark.record.format import drop_noisy
from trainmark.record.language import Say
from trainmark.record.numbers import Bounds
from trainmark.record.published_row import PublishedRow
from trainmark.record.record import Record
from trainmark.view import chart
from trainmark.view.element import Markup, el
from trainmark.workloads import title

ORDER = 2


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """One chart per group of runs that differ in topology alone; None where there is none."""
    charts = [_draw_chart(group, say) for group in find_scalings(records)]
    if not charts:
        return None
    return el("section", el("h2", say("Scaling")), el("div", charts, class_="charts"), class_="growth")


def _draw_chart(group: Scaling, say: Say) -> Markup:
    base, last = group.points[0], group.points[-1]
    devices = [point.topology.devices for point in group.points]
    kind = say("weak scaling") if group.kind == "weak" else say("strong scaling")
    summary = say("{topology} reaches {efficiency} of the ideal speed-up over {base}, by {metric}.").format(
        topology=last.topology, efficiency=_percent(last.efficiency.value), base=base.topology, metric=group.metric
    )
    facts = " · ".join((kind, group.device, group.precision, group.recipe_name))
    ideal = [(float(count), count / devices[0]) for count in (devices[0], devices[-1])]
    measured = chart.Line(
        name=say("measured"),
        points=[(point.topology.devices, point.speed_up) for point in group.points],
        dots=True,
        spread=[_spread(point, base) for point in group.points],
        labels=["", *(_percent(point.efficiency.value) for point in group.points[1:])],
    )
    table = make_table(group, say)
    drawn = chart.draw_chart(
        title(group.workload),
        summary,
        say,
        x=replace(chart.doubling_axis(devices), high=devices[-1] * 1.6),  # the last point's label stands behind it
        y=chart.log_axis([*(point.speed_up for point in group.points), ideal[-1][1]]),
        x_name=say("devices"),
        y_name=say("speed-up"),
        y_unit="×",
        lines=[measured, chart.Line(name=say("ideal"), points=ideal, color=5)],
        heads=[column.title for column in table.columns],
        rows=[[str(cell) for cell in row] for row in table.rows],
        note=[summary, " ", el("span", facts)],
        counts_x=True,
    )
    warnings = el("ul", [el("li", note) for note in group.notes], class_="doubts") if group.notes else None
    return el("div", drawn, warnings)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _spread(point: Point, base: Point) -> Bounds | None:
    if (interval := drop_noisy(point.efficiency.interval)) is None:
        return None
    ideal = point.topology.devices / base.topology.devices
    return interval[0] * ideal, interval[1] * ideal
