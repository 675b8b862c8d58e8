"""Charts of how a run went on: time a step, the loss, the quality on its way to the target."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trainmark.report.breakdown import evaluations
from trainmark.report.html import axis, line_chart
from trainmark.report.html.axis import Point
from trainmark.report.html.element import Markup
from trainmark.spec.format import goal, number, with_unit
from trainmark.spec.language import Say
from trainmark.spec.record import Record
from trainmark.workloads import quality_word

_ROWS = 20
"""Of the table below a long series."""
_MOST_EVALUATIONS = 200


def step_times(record: Record, say: Say, columns: int) -> Markup | None:
    """Every step of the slowest rank, with its warm-up and its steady part marked."""
    timeline = record.timeline
    if not timeline.ranks or not timeline.steps:
        return None
    slowest = timeline.slowest
    took = [wait + compute for wait, compute in zip(slowest.wait_ns, slowest.compute_ns, strict=False)]
    unit, size = ("s", 1e9) if median(took) >= 1e8 else ("ms", 1e6)
    points: list[Point] = [(step, ns / size) for step, ns in enumerate(took, 1)]
    first = max(timeline.steady_from, timeline.warmup_steps)
    counted = [value for _, value in points[timeline.warmup_steps :]] or [value for _, value in points]
    middle = median([value for _, value in points[first:]] or counted)
    # warm-up may be many times slower than what follows and would press it flat: what does not fit is said
    vertical = axis.linear([*counted, middle * 0.95, middle * 1.05])
    above = max((value for _, value in points[:first]), default=0.0)
    notes = []
    if above > vertical.high:
        notes.append(
            say("The slowest step of the warm-up took {time}, beyond the chart.").format(time=f"{number(above)} {unit}")
        )
    if record.means_only:
        notes.append(say("Means of neighbouring steps are drawn: {reason}.").format(reason=record.means_only))
    half = 0.5
    bands = [line_chart.Band(name=say("warm-up"), start=half, end=timeline.warmup_steps + half)] * bool(
        timeline.warmup_steps
    )
    if timeline.steady_from > timeline.warmup_steps:
        bands.append(
            line_chart.Band(
                name=say("not yet steady"),
                start=timeline.warmup_steps + half,
                end=timeline.steady_from + half,
                late=True,
            )
        )
    said = say("{count} steps; the steady part begins with step {first} and its median step takes {time}.").format(
        count=len(points), first=first + 1, time=f"{number(middle)} {unit}"
    )
    return line_chart.draw(
        line_chart.Chart(
            title=say("Step time"),
            said=said,
            x=axis.exact(0, len(points) + 1),
            y=vertical,
            x_name=say("step"),
            y_name=unit,
            y_unit=unit,
            lines=[line_chart.Line(name=say("step time"), points=points)],
            bands=bands,
            rules=[
                line_chart.Rule(
                    name=say("median {time}").format(time=f"{number(middle)} {unit}"),
                    points=((first, middle), (len(points) + 1, middle)),
                )
            ],
            data=_pieces(points, say("steps"), say),
            note=[f"{said} ", *notes],
            whole_x=True,
            size=(980, 220),
            columns=columns * 4 // 3,
        ),
        say,
    )


def loss(record: Record, say: Say, columns: int) -> Markup | None:
    points: list[Point] = [(step, value) for step, value in enumerate(record.loss, 1) if value is not None]
    if len(points) < 2:
        return None
    said = say("From {first} to {last}.").format(first=number(points[0][1], 4), last=number(points[-1][1], 4))
    missing = len(record.loss) - len(points)
    if missing:
        said += " " + say("{count} values were not finite.").format(count=missing)
    return line_chart.draw(
        line_chart.Chart(
            title=say("Training loss"),
            said=said,
            x=axis.exact(0, len(record.loss) + 1),
            y=axis.linear([value for _, value in points]),
            x_name=say("step"),
            y_name=say("mean over all ranks"),
            y_unit="",
            lines=[line_chart.Line(name=say("loss"), points=points, color=3)],
            data=_pieces(points, say("steps"), say),
            note=said,
            whole_x=True,
            columns=columns,
        ),
        say,
    )


def quality(record: Record, say: Say) -> Markup | None:
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
    aim = say("target {goal}").format(goal=goal(found))
    every = evaluations(record, say)
    last = max(points[-1][0], 1)
    x = axis.exact(0, last * 1.04)
    said = say("{word} {value} at the last of {count} evaluations; {target}.").format(
        word=word, value=with_unit(points[-1][1], unit, 4), count=len(points), target=aim
    )
    beside = {name: value for name, value in found.history[-1].values.items() if name != found.name}
    if beside:  # without its floor, its ceiling and the like a figure can hardly be judged
        others = ", ".join(f"{quality_word(name)} {number(value, 4)}" for name, value in beside.items())
        said += " " + say("Beside it: {others}.").format(others=others)
    return line_chart.draw(
        line_chart.Chart(
            title=say("Quality"),
            said=said,
            x=x,
            y=axis.linear([*(value for _, value in points), found.goal]),
            x_name=say("step"),
            y_name=f"{word} {unit}".rstrip(),
            y_unit=unit,
            lines=[line_chart.Line(name=word, points=points, color=4, dots=len(points) <= 40)],
            rules=[line_chart.Rule(name=aim, points=((x.low, found.goal), (x.high, found.goal)))],
            data=line_chart.Data(heads=every.heads, rows=every.rows[-_MOST_EVALUATIONS:]),
            note=said,
            whole_x=True,
        ),
        say,
    )


def _pieces(points: Sequence[Point], what: str, say: Say) -> line_chart.Data:
    """A long series as a short table: the lowest, middle and highest of neighbouring values."""
    rows = []
    for part in axis.parts(points, _ROWS):
        values = [value for _, value in part]
        ends = f"{part[0][0]:g}–{part[-1][0]:g}" if len(part) > 1 else f"{part[0][0]:g}"
        rows.append([ends, *(number(value, 4) for value in (min(values), median(values), max(values)))])
    return line_chart.Data(heads=[what, say("lowest"), say("median"), say("highest")], rows=rows)
