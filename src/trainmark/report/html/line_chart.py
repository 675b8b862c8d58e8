"""Draws a line chart as SVG: axes, bands and rules behind the lines, and the numbers as a table below."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainmark.report.html.axis import Axis, Point, thinned, tick
from trainmark.report.html.element import Child, Markup, el
from trainmark.spec.language import Say

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 30
_FINE = 20
"""Parts of a pixel that lines are drawn in; the script divides by it again."""
SIZE = (480, 220)
"""Of a drawing that has half the page."""
_WIDE = 600
"""A drawing wider than this takes both columns of a page."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    points: Sequence[Point]
    color: int = 0
    """Which of the palette's colours."""
    dots: bool = False
    """Marks every point: for few of them."""
    spread: Sequence[tuple[float, float] | None] = ()
    """For each point the ends of its interval."""
    labels: Sequence[str] = ()
    """For each point what stands beside it."""
    tips: Sequence[str] = ()
    """For each point what is told below the pointer, where that is more than two numbers; not thinned then."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A stretch of the x axis that means something."""

    name: str
    start: float
    end: float
    late: bool = False
    """The second of two kinds, drawn fainter."""


@dataclass(frozen=True, kw_only=True)
class Area:
    """Where values are expected, between two lines."""

    name: str
    ends: Sequence[tuple[float, float, float]]
    """Along the x axis: x, the low end and the high one."""
    color: int = 0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A value that lines are held against."""

    name: str
    points: tuple[Point, Point]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The numbers behind a chart, for those who do not see it or want them exactly."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    said: str
    """What the chart shows, in a sentence, for those who do not see it."""
    x: Axis
    y: Axis
    x_name: str
    y_name: str
    """With its unit."""
    y_unit: str
    lines: Sequence[Line]
    data: Data
    bands: Sequence[Band] = ()
    areas: Sequence[Area] = ()
    rules: Sequence[Rule] = ()
    note: Child = None
    whole_x: bool = False
    """The x axis counts: steps, devices."""
    x_marks: Mapping[float, str] = field(default_factory=dict)
    """What stands at ticks of the x axis in place of their numbers."""
    size: tuple[int, int] = SIZE
    columns: int = 300
    """Points a line is thinned to, two for each."""


def draw(chart: Chart, say: Say) -> Markup:
    width, height = chart.size
    inner = (width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    plot = el(
        "svg",
        [_band(band, chart, inner) for band in chart.bands],
        [_area(area, chart, inner) for area in chart.areas],
        [_line(line, chart, inner) for line in chart.lines],
        [_rule(rule, chart, inner) for rule in chart.rules],
        el("line", class_="cursor", y1=0, y2=inner[1]),
        x=_LEFT,
        y=_TOP,
        width=inner[0],
        height=inner[1],
        class_="plot",
    )
    drawing = el(
        "svg",
        el("desc", chart.said),
        _axes(chart, inner),
        plot,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{chart.title}. {chart.said}",
        data_x=_ends(chart.x),
        data_y=_ends(chart.y),
        data_x_name=chart.x_name,
        data_unit=chart.y_unit,
        data_whole=chart.whole_x,
    )
    keys = [_key(f"c{line.color}", line.name) for line in chart.lines if line.name]
    keys = (keys if len(keys) > 1 else []) + [_key(_band_class(band), band.name) for band in chart.bands]
    keys += [_key(f"area c{area.color}", area.name) for area in chart.areas]
    # below the drawing, where no name can cover a line
    keys += [_rule_key(rule.name) for rule in chart.rules if rule.name]
    return el(
        "figure",
        el("figcaption", el("b", chart.title), el("span", chart.y_name, class_="unit")),
        el("div", drawing, class_="chart", tabindex=0, role="group", aria_label=chart.title),
        el("p", keys, class_="keys") if keys else None,
        el("p", chart.note, class_="note") if chart.note else None,
        data_table(chart.data, say),
        class_="wide" if width > _WIDE else None,
    )


def data_table(data: Data, say: Say) -> Markup:
    """The numbers of a chart, closed until someone asks for them."""
    return el(
        "details",
        el("summary", say("Data")),
        el(
            "div",
            el(
                "table",
                el("thead", el("tr", [el("th", head, scope="col") for head in data.heads])),
                el("tbody", [el("tr", [el("td", cell) for cell in row]) for row in data.rows]),
            ),
            class_="scroll",
        ),
        class_="data",
    )


def _ends(axis: Axis) -> str:
    return f"{axis.low!r} {axis.high!r}{' log' if axis.log else ''}"


def _axes(chart: Chart, inner: tuple[int, int]) -> Markup:
    wide, high = inner
    marks: list[Markup] = []
    for value in chart.y.ticks:
        y = _TOP + high * (1 - chart.y.share(value))
        marks.append(el("line", x1=_LEFT, x2=_LEFT + wide, y1=y, y2=y))
        marks.append(el("text", tick(value), x=_LEFT - 7, y=y + 4, text_anchor="end"))
    for value in chart.x.ticks:
        x = _LEFT + wide * chart.x.share(value)
        end = "end" if x > _LEFT + wide - 10 else "middle"
        marks.append(el("text", chart.x_marks.get(value) or tick(value), x=x, y=_TOP + high + 16, text_anchor=end))
    name = el("text", chart.x_name, x=_LEFT + wide, y=_TOP + high + 28, text_anchor="end", class_="name")
    return el("g", marks, name, class_="axes")


def _band(band: Band, chart: Chart, inner: tuple[int, int]) -> Markup:
    left, right = (inner[0] * min(max(chart.x.share(value), 0.0), 1.0) for value in (band.start, band.end))
    return el("rect", x=left, y=0, width=max(right - left, 1.0), height=inner[1], class_=_band_class(band))


def _area(area: Area, chart: Chart, inner: tuple[int, int]) -> Markup:
    low = [_at((x, bottom), chart, inner) for x, bottom, _ in area.ends]
    high = [_at((x, top), chart, inner) for x, _, top in reversed(area.ends)]
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*low, *high))
    return el("polygon", points=outline, class_=f"area c{area.color}")


def _band_class(band: Band) -> str:
    return "band late" if band.late else "band"


def _rule(rule: Rule, chart: Chart, inner: tuple[int, int]) -> Markup:
    (x1, y1), (x2, y2) = (_at(point, chart, inner) for point in rule.points)
    return el("g", el("line", x1=x1, x2=x2, y1=y1, y2=y2), class_="rule")


def _line(line: Line, chart: Chart, inner: tuple[int, int]) -> Markup:
    points = line.points if line.tips else thinned(line.points, chart.columns)
    at = [_at(point, chart, inner) for point in points]
    spreads = []
    for (x, _), ends in zip(line.points, line.spread, strict=False):
        if ends is not None:
            (left, low), (_, high) = (_at((x, end), chart, inner) for end in ends)
            spreads.append(el("line", x1=left, x2=left, y1=low, y2=high, class_="spread"))
    dots = [el("circle", cx=x, cy=y, r=4) for x, y in at] if line.dots else []
    labels = [
        # below and behind its point, where a line that rises does not pass
        el("text", text, x=x + 6, y=y + 17)
        for (x, y), text in zip(at, line.labels, strict=False)
    ]
    return el(
        "g",
        el(
            "path",
            d=_path(at),
            transform=f"scale({1 / _FINE:g})",
            data_name=line.name,
            data_tips=json.dumps(line.tips, ensure_ascii=False) if line.tips else None,
        ),
        spreads,
        dots,
        labels,
        class_=f"line c{line.color}",
    )


def _path(at: Sequence[Point]) -> str:
    """Whole numbers, each point from the one before: half as long as it would be otherwise, and most of a page."""
    fine = [(round(_FINE * x), round(_FINE * y)) for x, y in at]
    before, steps = (0, 0), []
    for x, y in fine:
        steps.append(f"{x - before[0]} {y - before[1]}".replace(" -", "-"))
        before = (x, y)
    return f"m{steps[0]}" + ("l" + " ".join(steps[1:]) if steps[1:] else "") if steps else ""


def _at(point: Point, chart: Chart, inner: tuple[int, int]) -> Point:
    return inner[0] * chart.x.share(point[0]), inner[1] * (1 - chart.y.share(point[1]))


def _rule_key(name: str) -> Markup:
    mark = el("line", x1=0, x2=14, y1=7, y2=7)
    return el("span", el("svg", mark, class_="swatch rule", aria_hidden="true"), name)


def _key(kind: str, name: str) -> Markup:
    high = 4 if kind.startswith("c") else 10
    mark = el("rect", width=14, height=high, y=7 - high / 2, rx=2, class_=kind)
    return el("span", el("svg", mark, class_="swatch", aria_hidden="true"), name)
