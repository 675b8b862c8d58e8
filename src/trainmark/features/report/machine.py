"""Charts of what the samplers saw: power, heat, memory and use over time, and what no sensor could say."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.record.format import number
from trainmark.record.language import Say
from trainmark.record.machine import MachineTelemetry
from trainmark.record.record import Record
from trainmark.view import chart, facts
from trainmark.view.element import Child, Markup, el

_MAX_MACHINES = 4
_SIZE = (320, 170)


def draw_telemetry(record: Record, say: Say, columns: int) -> Markup | None:
    machines = record.telemetry.machines
    if not machines:
        return None
    shown: list[Child] = [el("h3", say("Machine"))]
    for machine in machines[:_MAX_MACHINES]:
        shown.append(el("p", facts.telemetry_remark(machine, say), class_="note"))
        shown.append(el("div", _draw_charts(machine, say, columns), class_="charts three"))
        shown.append(_draw_unavailable(machine, say))
    if len(machines) > _MAX_MACHINES:
        left = say("{count} more machines were sampled.").format(count=len(machines) - _MAX_MACHINES)
        shown.append(el("p", left, class_="note"))
    return el("section", shown, class_="machine")


def _draw_charts(machine: MachineTelemetry, say: Say, columns: int) -> list[Markup]:
    """One for each kind of sensor, with a line for each device."""
    charts: dict[str, tuple[str, list[chart.Line]]] = {}
    for curve in facts.telemetry_curves(machine, say):
        if curve.key == "shm_free_bytes":  # for the terminal: on a page it is one chart too many
            continue
        _, drawn = charts.setdefault(curve.word, (curve.unit, []))
        label = "" if curve.device is None else say("device {number}").format(number=curve.device)
        points = list(zip(curve.at_s, curve.values, strict=False))
        drawn.append(chart.Line(name=label, points=points, color=1 if curve.device is None else len(drawn)))
    return [_draw_chart(word, unit, drawn, machine, say, columns) for word, (unit, drawn) in charts.items()]


def _draw_chart(
    title: str, unit: str, drawn: Sequence[chart.Line], machine: MachineTelemetry, say: Say, columns: int
) -> Markup:
    values = [value for line in drawn for _, value in line.points]
    last = max(point[0] for line in drawn for point in line.points)
    said = facts.telemetry_summary(values, unit, say)
    bands = []
    if len(machine.training_s) == 2:
        start, end = machine.training_s
        bands.append(chart.Band(name=say("training"), start=start, end=end))
    rows = []
    for line in drawn:
        of_line = [value for _, value in line.points]
        ends = (sum(of_line) / len(of_line), min(of_line), max(of_line))
        rows.append([line.name or title, *(number(value) for value in ends)])
    return chart.draw(
        title,
        said,
        say,
        x=chart.exact(0.0, last, count=4),
        y=chart.linear([*values, *((0.0, 100.0) if unit == "%" else ())], zero=unit != "°C", count=4),
        x_name=say("seconds"),
        y_name=unit,
        y_unit=unit,
        lines=drawn,
        bands=bands,
        heads=["", say("mean"), say("lowest"), say("highest")],
        rows=rows,
        size=_SIZE,
        columns=max(40, min(columns, 120) // len(drawn)),
    )


def _draw_unavailable(machine: MachineTelemetry, say: Say) -> Markup | None:
    missing = facts.telemetry_missing(machine, say)
    if not missing:
        return None
    return el(
        "p",
        el("b", say("Unavailable")),
        [[" ", ", ".join(names), ": ", el("span", reason), "."] for reason, names in missing.items()],
        class_="note unavailable",
    )
