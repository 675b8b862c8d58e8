"""Charts of a run: where its time went, the time of each step, the loss, the quality, sensors."""

from __future__ import annotations

from statistics import median

from trainmark.record.format import format_goal, number, with_unit
from trainmark.record.language import Say
from trainmark.record.machine import MachineTelemetry
from trainmark.record.record import Record
from trainmark.view import chart, facts
from trainmark.view.chart import Point
from trainmark.view.element import Child, Markup, el
from trainmark.workloads import quality_word

_MAX_EVALUATIONS = 200
_MAX_MACHINES = 4


def draw_step_times(record: Record, say: Say, columns: int) -> Markup | None:
    """Every step of the slowest rank, with its warm-up and its steady part marked."""
    timeline = record.timeline
    if not timeline.ranks or not timeline.steps:
        return None
    slowest, warmup = timeline.slowest, timeline.warmup_steps
    took = [wait + compute for wait, compute in zip(slowest.wait_ns, slowest.compute_ns, strict=False)]
    unit, size = ("s", 1e9) if median(took) >= 1e8 else ("ms", 1e6)
    times = [ns / size for ns in took]
    first = max(timeline.steady_from, warmup)
    counted = times[warmup:] or times
    middle = median(times[first:] or counted)
    # warm-up may be many times slower than what follows and would flatten it: a sentence tells what does not fit
    vertical = chart.linear_axis([*counted, middle * 0.95, middle * 1.05])
    above = max(times[:first], default=0.0)
    sentence = say("{count} steps; the steady part begins with step {first} and its median step takes {time}.").format(
        count=len(times), first=first + 1, time=f"{number(middle)} {unit}"
    )
    if above > vertical.high:
        beyond = say("The slowest step of the warm-up took {time}, beyond the chart.")
        sentence += " " + beyond.format(time=f"{number(above)} {unit}")
    if record.means_only:
        sentence += " " + say("Means of neighbouring steps are drawn: {reason}.").format(reason=record.means_only)
    bands = [
        chart.Band(name=say("warm-up"), start=0.5, end=warmup + 0.5),
        chart.Band(name=say("not yet steady"), start=warmup + 0.5, end=timeline.steady_from + 0.5, late=True),
    ]
    return chart.draw_chart(
        say("Step time"),
        sentence,
        say,
        x=chart.exact_axis(0, len(times) + 1),
        y=vertical,
        x_name=say("step"),
        y_name=unit,
        lines=[chart.Line(name=say("step time"), points=list(enumerate(times, 1)))],
        bands=[band for band in bands if band.end > band.start],
        rules={
            say("median {time}").format(time=f"{number(middle)} {unit}"): ((first, middle), (len(times) + 1, middle))
        },
        counts_x=True,
        size=(980, 220),
        columns=columns * 4 // 3,
    )


def draw_loss(record: Record, say: Say, columns: int) -> Markup | None:
    points: list[Point] = [(step, value) for step, value in enumerate(record.loss, 1) if value is not None]
    if len(points) < 2:
        return None
    sentence = say("From {first} to {last}.").format(first=number(points[0][1], 4), last=number(points[-1][1], 4))
    if missing := len(record.loss) - len(points):
        sentence += " " + say("{count} values were not finite.").format(count=missing)
    return chart.draw_chart(
        say("Training loss"),
        sentence,
        say,
        x=chart.exact_axis(0, len(record.loss) + 1),
        y=chart.linear_axis([value for _, value in points]),
        x_name=say("step"),
        y_name=say("mean over all ranks"),
        y_unit="",
        lines=[chart.Line(name=say("loss"), points=points, color=3)],
        counts_x=True,
        columns=columns,
    )


def draw_quality(record: Record, say: Say) -> Markup | None:
    """Each evaluation, and the target it was trained to."""
    found = record.quality
    points: list[Point] = [
        (evaluation.step, evaluation.values[found.name])
        for evaluation in found.history
        if found.name in evaluation.values
    ]
    if not points:
        return None
    unit = "" if found.unit in ("", "-") else found.unit
    word = quality_word(found.name)
    aim = say("target {goal}").format(goal=format_goal(found))
    heads, rows = facts.list_evaluations(record, say)
    x = chart.exact_axis(0, max(points[-1][0], 1) * 1.04)
    sentence = say("{word} {value} at the last of {count} evaluations; {target}.").format(
        word=word, value=with_unit(points[-1][1], unit, 4), count=len(points), target=aim
    )
    beside = {name: value for name, value in found.history[-1].values.items() if name != found.name}
    if beside:  # without its floor, its ceiling and the like a figure can hardly be judged
        others = ", ".join(f"{quality_word(name)} {number(value, 4)}" for name, value in beside.items())
        sentence += " " + say("Beside it: {others}.").format(others=others)
    return chart.draw_chart(
        say("Quality"),
        sentence,
        say,
        x=x,
        y=chart.linear_axis([*(value for _, value in points), found.goal]),
        x_name=say("step"),
        y_name=f"{word} {unit}".rstrip(),
        y_unit=unit,
        lines=[chart.Line(name=word, points=points, color=4, dots=len(points) <= 40)],
        rules={aim: ((x.low, found.goal), (x.high, found.goal))},
        heads=heads,
        rows=rows[-_MAX_EVALUATIONS:],
        counts_x=True,
    )


def draw_time_spent(record: Record, say: Say) -> Markup | None:
    """From the end-to-end time to the time p_core divides by, phase by phase, as bars beside their numbers."""
    found = facts.split_time(record)
    if not found:
        return None
    whole = found[0].ns or 1
    rows = [
        el(
            "tr",
            el("th", facts.name_time_step(step, say), el("small", facts.format_rate(step, record)), scope="row"),
            el("td", chart.draw_bar(step.start_ns / whole, step.ns / whole, _pick_color(step)), class_="room"),
            el("td", f"{number(step.ns / 1e9)} s", class_="number"),
            el("td", f"{100 * step.ns / whole:.1f} %", class_="number"),
            class_=None if step.kind == "phase" else step.kind,
            data_ns=step.ns,
            data_kind=step.kind,
            data_name=step.name,
        )
        for step in found
    ]
    heads = [
        el("th", say("Phase"), scope="col"),
        el("td", class_="room"),
        [el("th", head, scope="col", class_="number") for head in (say("Time"), say("Share"))],
    ]
    caption = say("As the slowest rank saw it; every step is exact to the nanosecond")
    return el(
        "figure",
        el("figcaption", el("b", say("Where the time went"))),
        el(
            "table",
            el("caption", caption, class_="note"),
            el("thead", el("tr", heads)),
            el("tbody", rows),
            class_="strips waterfall",
        ),
    )


def _pick_color(step: facts.TimeStep) -> int:
    """Highlights what is subtracted and what remains."""
    if step.kind == "phase":
        return 1
    return {"p_core": 0, "computing": 0, "exchange": 2}.get(step.name, 5)


# Telemetry: power, temperature, memory and utilisation over time


def draw_telemetry(record: Record, say: Say, columns: int) -> Markup | None:
    machines = record.telemetry.machines
    if not machines:
        return None
    shown: list[Child] = [el("h3", say("Machine"))]
    for machine in machines[:_MAX_MACHINES]:
        missing = facts.telemetry_missing(machine, say)
        shown += [
            el("p", facts.telemetry_remark(machine, say), class_="note"),
            el("div", _draw_sensors(machine, say, columns), class_="charts three"),
            el(
                "p",
                el("b", say("Unavailable")),
                [[" ", ", ".join(names), ": ", el("span", reason), "."] for reason, names in missing.items()],
                class_="note unavailable",
            )
            if missing
            else None,
        ]
    if len(machines) > _MAX_MACHINES:
        left = say("{count} more machines were sampled.").format(count=len(machines) - _MAX_MACHINES)
        shown.append(el("p", left, class_="note"))
    return el("section", shown, class_="machine")


def _draw_sensors(machine: MachineTelemetry, say: Say, columns: int) -> list[Markup]:
    """One chart per kind of sensor, with one line per device."""
    kinds: dict[str, list[facts.SensorCurve]] = {}
    for curve in facts.telemetry_curves(machine, say):
        if curve.key != "shm_free_bytes":  # for the terminal: on a page it is one chart too many
            kinds.setdefault(curve.word, []).append(curve)
    bands = []
    if len(machine.training_s) == 2:
        bands.append(chart.Band(name=say("training"), start=machine.training_s[0], end=machine.training_s[1]))
    charts = []
    for word, found in kinds.items():
        unit, values = found[0].unit, [value for curve in found for value in curve.values]
        lines = [
            chart.Line(
                name="" if curve.device is None else say("device {number}").format(number=curve.device),
                points=list(zip(curve.at_s, curve.values, strict=False)),
                color=1 if curve.device is None else place,
            )
            for place, curve in enumerate(found)
        ]
        charts.append(
            chart.draw_chart(
                word,
                facts.telemetry_summary(values, unit, say),
                say,
                x=chart.exact_axis(0.0, max(at for curve in found for at in curve.at_s), count=4),
                y=chart.linear_axis([*values, *((0.0, 100.0) if unit == "%" else ())], zero=unit != "°C", count=4),
                x_name=say("seconds"),
                y_name=unit,
                lines=lines,
                bands=bands,
                size=(320, 170),
                columns=max(40, min(columns, 120) // len(lines)),
            )
        )
    return charts
