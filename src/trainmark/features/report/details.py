"""Cards and folds with the facts of a run: plan, precision, profile, environment, telemetry."""

from __future__ import annotations

from collections.abc import Sequence

from trainmark.record.format import number
from trainmark.record.language import Say
from trainmark.record.machine import MachineTelemetry
from trainmark.record.record import Record
from trainmark.view import chart, facts, profile_facts
from trainmark.view.element import Child, Markup, el
from trainmark.view.sections import FactSection


def draw_precision(record: Record, say: Say) -> Markup | None:
    """The types the observed step was computed in, as a card."""
    section = facts.precision(record, say)
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card") if section else None


def draw_card(section: FactSection) -> Markup:
    """A feature's facts about a run, as a card."""
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card")


def draw_profile(record: Record, say: Say) -> Markup | None:
    """Where a step's time goes, as a card."""
    section = profile_facts.build_profile(record, say)
    return el("section", el("h3", _draw_title(section)), _draw_body(section), class_="card") if section else None


def draw_folds(record: Record, say: Say) -> list[Markup]:
    """All other facts, folded."""
    found = [
        facts.metrics,
        facts.plan,
        facts.bands,
        facts.data,
        facts.restarts,
        facts.checkpoints,
        facts.network,
        facts.environment,
    ]
    sections = [section for section in (one(record, say) for one in found) if section]
    return [
        el("details", el("summary", _draw_title(section)), _draw_body(section), class_="fold") for section in sections
    ]


def draw_fill(record: Record, say: Say) -> Markup | None:
    """The batches that were tried, as a curve."""
    section, found = facts.fill(record, say), record.environment.fill
    fitting = [entry for entry in found.curve if entry.items_per_s and not entry.unfit] if found else []
    if section is None or not fitting:
        return None
    unit = f"{record.item}/s"
    points = [(entry.batch, entry.items_per_s) for entry in fitting]
    return chart.draw_chart(
        section.title,
        section.sentence,
        say,
        x=chart.doubling_axis([entry.batch for entry in fitting]),
        y=chart.linear_axis([entry.items_per_s for entry in fitting], zero=True),
        x_name=say("batch per device"),
        y_name=unit,
        y_unit=unit,
        lines=[chart.Line(name=unit, points=points, color=4, dots=True)],
        heads=list(section.heads),
        rows=[list(row) for row in section.rows],
        counts_x=True,
    )


def _draw_title(section: FactSection) -> list[Child]:
    return [section.title, el("small", f" {section.remark}") if section.remark else None]


def _draw_body(section: FactSection) -> list[Child]:
    pairs = [(fact.name, fact.value) for fact in section.facts if not fact.local]
    return [
        el("p", section.sentence, class_="note") if section.sentence else None,
        el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="pairs")
        if pairs
        else None,
        _draw_table(section) if section.rows else None,
    ]


def _draw_table(section: FactSection) -> Markup:
    first, *rest = range(len(section.heads))
    rows = [
        el(
            "tr",
            el("th", row[first], scope="row"),
            [el("td", row[place], class_=None if place in section.left else "number") for place in rest],
        )
        for row in section.rows
    ]
    head = el("thead", el("tr", [el("th", head, scope="col") for head in section.heads]))
    return el("div", el("table", head, el("tbody", rows)), class_="scroll")


# Telemetry: power, temperature, memory and utilisation over time


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
    """One chart per kind of sensor, with one line per device."""
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
    sentence = facts.telemetry_summary(values, unit, say)
    bands = []
    if len(machine.training_s) == 2:
        start, end = machine.training_s
        bands.append(chart.Band(name=say("training"), start=start, end=end))
    rows = []
    for line in drawn:
        of_line = [value for _, value in line.points]
        ends = (sum(of_line) / len(of_line), min(of_line), max(of_line))
        rows.append([line.name or title, *(number(value) for value in ends)])
    return chart.draw_chart(
        title,
        sentence,
        say,
        x=chart.exact_axis(0.0, last, count=4),
        y=chart.linear_axis([*values, *((0.0, 100.0) if unit == "%" else ())], zero=unit != "°C", count=4),
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
