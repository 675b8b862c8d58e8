"""Charts of a run: where its time went, the time of each step, the loss, the quality, and the skew of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trainmark.record.format import NOTHING, format_goal, number, with_unit
from trainmark.record.language import Say
from trainmark.record.record import Record
from trainmark.view import chart
from trainmark.view.breakdown import (
    MAX_RANKS,
    RankTime,
    TimeStep,
    format_rate,
    list_evaluations,
    list_rank_times,
    name_time_step,
    split_time,
)
from trainmark.view.chart import Point
from trainmark.view.element import Markup, el
from trainmark.workloads import quality_word

_ROWS = 20
"""Of the table below a long series."""
_MAX_EVALUATIONS = 200


def draw_step_times(record: Record, say: Say, columns: int) -> Markup | None:
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
    # warm-up may be many times slower than what follows and would flatten it: a note tells what does not fit
    vertical = chart.linear_axis([*counted, middle * 0.95, middle * 1.05])
    above = max((value for _, value in points[:first]), default=0.0)
    notes = []
    if above > vertical.high:
        notes.append(
            say("The slowest step of the warm-up took {time}, beyond the chart.").format(time=f"{number(above)} {unit}")
        )
    if record.means_only:
        notes.append(say("Means of neighbouring steps are drawn: {reason}.").format(reason=record.means_only))
    half = 0.5
    bands = [chart.Band(name=say("warm-up"), start=half, end=timeline.warmup_steps + half)] * bool(
        timeline.warmup_steps
    )
    if timeline.steady_from > timeline.warmup_steps:
        bands.append(
            chart.Band(
                name=say("not yet steady"),
                start=timeline.warmup_steps + half,
                end=timeline.steady_from + half,
                late=True,
            )
        )
    sentence = say("{count} steps; the steady part begins with step {first} and its median step takes {time}.").format(
        count=len(points), first=first + 1, time=f"{number(middle)} {unit}"
    )
    return chart.draw_chart(
        say("Step time"),
        sentence,
        say,
        x=chart.exact_axis(0, len(points) + 1),
        y=vertical,
        x_name=say("step"),
        y_name=unit,
        y_unit=unit,
        lines=[chart.Line(name=say("step time"), points=points)],
        bands=bands,
        rules=[
            chart.Rule(
                name=say("median {time}").format(time=f"{number(middle)} {unit}"),
                points=((first, middle), (len(points) + 1, middle)),
            )
        ],
        heads=_piece_heads(say),
        rows=_pieces(points),
        note=[f"{sentence} ", *notes],
        counts_x=True,
        size=(980, 220),
        columns=columns * 4 // 3,
    )


def draw_loss(record: Record, say: Say, columns: int) -> Markup | None:
    points: list[Point] = [(step, value) for step, value in enumerate(record.loss, 1) if value is not None]
    if len(points) < 2:
        return None
    sentence = say("From {first} to {last}.").format(first=number(points[0][1], 4), last=number(points[-1][1], 4))
    missing = len(record.loss) - len(points)
    if missing:
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
        heads=_piece_heads(say),
        rows=_pieces(points),
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
    every = list_evaluations(record, say)
    last = max(points[-1][0], 1)
    x = chart.exact_axis(0, last * 1.04)
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
        rules=[chart.Rule(name=aim, points=((x.low, found.goal), (x.high, found.goal)))],
        heads=every.heads,
        rows=every.rows[-_MAX_EVALUATIONS:],
        counts_x=True,
    )


def _piece_heads(say: Say) -> list[str]:
    return [say("steps"), say("lowest"), say("median"), say("highest")]


def _pieces(points: Sequence[Point]) -> list[list[str]]:
    """A long series as a short table: the lowest, middle and highest of neighbouring values."""
    rows = []
    for part in chart.split_points(points, _ROWS):
        values = [value for _, value in part]
        ends = f"{part[0][0]:g}–{part[-1][0]:g}" if len(part) > 1 else f"{part[0][0]:g}"
        rows.append([ends, *(number(value, 4) for value in (min(values), median(values), max(values)))])
    return rows


def draw_time_spent(record: Record, say: Say) -> Markup | None:
    """From the end-to-end time to the time p_core divides by, phase by phase, as bars beside their numbers."""
    found = split_time(record)
    if not found:
        return None
    whole = found[0].ns or 1
    rows = [
        chart.draw_strip(
            name_time_step(step, say),
            format_rate(step, record),
            [chart.Bar(start=step.start_ns / whole, length=step.ns / whole, color=_pick_color(step))],
            (f"{number(step.ns / 1e9)} s", f"{100 * step.ns / whole:.1f} %"),
            class_=None if step.kind == "phase" else step.kind,
            data_ns=step.ns,
            data_kind=step.kind,
            data_name=step.name,
        )
        for step in found
    ]
    caption = say("As the slowest rank saw it; every step is exact to the nanosecond")
    heads = (say("Time"), say("Share"))
    table = chart.draw_strips(say("Phase"), heads, rows, caption=caption, kind="strips waterfall")
    return el("figure", el("figcaption", el("b", say("Where the time went"))), table)


def _pick_color(step: TimeStep) -> int:
    """Highlights what is subtracted and what remains."""
    if step.kind == "phase":
        return 1
    return {"p_core": 0, "computing": 0, "exchange": 2}.get(step.name, 5)


def draw_ranks(record: Record, say: Say) -> Markup | None:
    """Rank skew: compute and exchange time of each rank."""
    found = list_rank_times(record)
    if not found:
        return None
    longest = max(one.own_ns + (one.exchange_ns or 0) for one in found) or 1
    notes = []
    if len(found) > MAX_RANKS:
        notes.append(say("{count} faster ranks are not shown.").format(count=len(found) - MAX_RANKS))
    if found[0].exchange_ns is None:
        notes.append(say("The exchange was not measured, so ranks that wait look busy."))
    heads = (say("computing"), say("exchange"), say("over the fastest"))
    return el(
        "figure",
        el("figcaption", el("b", say("Ranks")), el("span", say("slowest first"), class_="unit")),
        chart.draw_strips(say("Rank"), heads, [_draw_rank(one, longest) for one in found[:MAX_RANKS]]),
        [el("p", note, class_="note") for note in notes],
    )


def _draw_rank(one: RankTime, longest: float) -> Markup:
    exchange = one.exchange_ns or 0
    pieces = [
        chart.Bar(start=0, length=one.own_ns / longest),
        chart.Bar(start=one.own_ns / longest, length=exchange / longest, color=2),
    ]
    numbers = (
        f"{number(one.own_ns / 1e9)} s",
        NOTHING if one.exchange_ns is None else f"{number(exchange / 1e9)} s",
        f"+{100 * one.over_fastest:.1f} %",
    )
    return chart.draw_strip(str(one.rank), one.host, pieces, numbers)
