"""Draws axes, line charts, and bars and dots inside tables as SVG, with every number in a table beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import NamedTuple

from trainmark.record.format import number
from trainmark.record.language import Say
from trainmark.view.element import Attribute, Child, Markup, el
from trainmark.view.frame import plain_table

# Axes

Point = tuple[float, float]

_MAX_MARKS = 7
_SAME, _NOTHING = 1e-9, 1e-200
"""Values closer than this part of themselves, or than this, are one value to an axis."""
_FEW_FACTORS = 6
"""Ends closer than this are marked as on a plain axis: between two powers of ten there is not enough to mark."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The range a chart shows, in the values' own unit."""

    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = field(default=())

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one; beyond them for values outside."""
        if self.log:
            if value <= 0:
                return 0.0
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(values: Sequence[float], *, zero: bool = False, count: int = 5) -> Axis:
    """An axis around finite values, with round ends."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    largest = max(abs(low), abs(high))
    if high - low <= max(_SAME * largest, _NOTHING):
        around = largest if largest > _NOTHING else 1.0
        low, high = low - around / 2, high + around / 2
    step = _round_step((high - low) / count)
    ticks = _list_ticks(step, math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9))
    return Axis(low=ticks[0], high=ticks[-1], ticks=ticks)


def exact_axis(low: float, high: float, *, count: int = 5) -> Axis:
    """An axis that ends where the values do, with round ticks in between: for steps and seconds."""
    high = high if high > low else low + 1
    step = _round_step((high - low) / count)
    ticks = _list_ticks(step, math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9))
    return Axis(low=low, high=high, ticks=ticks)


def _list_ticks(step: float, first: int, last: int) -> tuple[float, ...]:
    return tuple(_round(index * step) for index in range(first, last + 1))


def log_axis(values: Sequence[float]) -> Axis:
    """An axis for values that lie factors apart."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = min(known) / 1.25, max(known) * 1.25
    if high < _FEW_FACTORS * low:
        return Axis(
            low=low, high=high, log=True, ticks=tuple(t for t in linear_axis([low, high]).ticks if low <= t <= high)
        )
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits, every in (((1, 2, 5), 1), ((1, 3), 1), *(((1,), every) for every in range(1, len(decades)))):
        ticks = (_round(digit * 10.0**decade) for decade in decades[::every] for digit in digits)
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) <= _MAX_MARKS:
            break
    return Axis(low=low, high=high, log=True, ticks=inside)


def doubling_axis(values: Sequence[int]) -> Axis:
    """An axis whose marks are the values themselves: numbers of devices, batch sizes."""
    known = sorted(set(values)) or [1]
    return Axis(low=known[0] / 1.15, high=known[-1] * 1.15, log=True, ticks=tuple(float(value) for value in known))


def format_tick(value: float) -> str:
    """A mark's number as short as it can be said."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{sign}"
    return f"{value:g}" if abs(value) >= 1e-3 else number(value)


def thin_points(points: Sequence[Point], columns: int) -> list[Point]:
    """A long series as the lowest and the highest of each column, in their order, so that no spike is lost."""
    if len(points) <= 2 * columns:
        return list(points)
    parts = split_points(points, columns)
    ends = ({pick(part, key=itemgetter(1)) for pick in (min, max)} for part in parts)
    return [point for pair in ends for point in sorted(pair)]


def split_points(points: Sequence[Point], count: int) -> Iterator[Sequence[Point]]:
    """The series in so many neighbouring pieces of nearly equal length."""
    count = min(count, len(points))
    for index in range(count):
        yield points[index * len(points) // count : (index + 1) * len(points) // count]


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * (1 - 1e-9)) * size


def _round(value: float) -> float:
    return float(f"{value:.10g}")


# Lines

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 30
_FINE = 20
"""Parts of a pixel that lines are drawn in; the script divides by it again."""
SIZE = (480, 220)
"""Of a drawing that has half the page."""
_MAX_ROWS = 12
"""Of the table below a long series."""
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


class _Plot(NamedTuple):
    """The inside of a drawing: its axes, and its pixels."""

    x: Axis
    y: Axis
    wide: int
    high: int

    def at(self, point: Point) -> Point:
        return self.wide * self.x.share(point[0]), self.high * (1 - self.y.share(point[1]))


def draw_chart(
    title: str,
    said: str,
    say: Say,
    *,
    x: Axis,
    y: Axis,
    x_name: str,
    y_name: str,
    y_unit: str | None = None,
    lines: Sequence[Line],
    heads: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    bands: Sequence[Band] = (),
    areas: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    rules: Mapping[str, tuple[Point, Point]] | None = None,
    note: Child = None,
    counts_x: bool = False,
    x_marks: Mapping[float, str] | None = None,
    size: tuple[int, int] = SIZE,
    columns: int = 300,
) -> Markup:
    """A chart of lines, with its numbers as a table of `heads` and `rows` below; without these, the lines in pieces.

    `said` is what it shows in a sentence, for those who do not see it; it stands below unless a `note` does. `counts_x`
    says that the x axis counts, such as steps; `x_marks` stand at its ticks in place of numbers. Lines are thinned to
    two points for each of `columns`. An area is where values are expected, by x its low end and its high one; a rule is
    a value that lines are held against.
    """
    width, height = size
    plot = _Plot(x, y, width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
    inside = el(
        "svg",
        [_band(band, plot) for band in bands],
        [_area(ends, plot) for ends in (areas or {}).values()],
        [_line(line, plot, columns) for line in lines],
        [_rule(*map(plot.at, ends)) for ends in (rules or {}).values()],
        el("line", class_="cursor", y1=0, y2=plot.high),
        x=_LEFT,
        y=_TOP,
        width=plot.wide,
        height=plot.high,
        class_="plot",
    )
    drawing = el(
        "svg",
        el("desc", said),
        _axes(plot, x_name, x_marks or {}),
        inside,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{title}. {said}",
        data_x=_ends(x),
        data_y=_ends(y),
        data_x_name=x_name,
        data_unit=y_name if y_unit is None else y_unit,
        data_whole=counts_x,
    )
    if not heads:
        heads, rows = [x_name, say("lowest"), say("median"), say("highest")], list(_list_pieces(lines))
    keys = [_key(f"c{line.color}", line.name) for line in lines if line.name]
    keys = (keys if len(keys) > 1 else []) + [_key(_band_class(band), band.name) for band in bands]
    # below the drawing, where no name can cover a line
    keys += [_key(kind, name) for kind, names in (("area c1", areas), ("rule", rules)) for name in names or ()]
    return el(
        "figure",
        el("figcaption", el("b", title), el("span", y_name, class_="unit")),
        el("div", drawing, class_="chart", tabindex=0, role="group", aria_label=title),
        el("p", keys, class_="keys") if keys else None,
        el("p", note or said, class_="note") if note or said else None,
        # closed until someone asks for them
        el("details", el("summary", say("Data")), plain_table(heads, rows, range(len(heads))), class_="data"),
        class_="wide" if width > _WIDE else None,
    )


def _list_pieces(lines: Sequence[Line]) -> Iterator[list[str]]:
    """Long series as a short table: the lowest, middle and highest of neighbouring values."""
    for line in lines:
        name = f"{line.name}, " if len(lines) > 1 else ""
        for part in split_points(line.points, max(1, _MAX_ROWS // len(lines))):
            ends = "–".join(dict.fromkeys(format_tick(round(x, 1)) for x, _ in (part[0], part[-1])))
            values = [value for _, value in part]
            yield [name + ends, *(number(value, 4) for value in (min(values), median(values), max(values)))]


def _ends(axis: Axis) -> str:
    return f"{axis.low!r} {axis.high!r}{' log' if axis.log else ''}"


def _axes(plot: _Plot, x_name: str, x_marks: Mapping[float, str]) -> Markup:
    wide, high = plot.wide, plot.high
    marks: list[Markup] = []
    for value in plot.y.ticks:
        y = _TOP + high * (1 - plot.y.share(value))
        marks.append(el("line", x1=_LEFT, x2=_LEFT + wide, y1=y, y2=y))
        marks.append(el("text", format_tick(value), x=_LEFT - 7, y=y + 4, text_anchor="end"))
    for value in plot.x.ticks:
        x = _LEFT + wide * plot.x.share(value)
        end = "end" if x > _LEFT + wide - 10 else "middle"
        marks.append(el("text", x_marks.get(value) or format_tick(value), x=x, y=_TOP + high + 16, text_anchor=end))
    name = el("text", x_name, x=_LEFT + wide, y=_TOP + high + 28, text_anchor="end", class_="name")
    return el("g", marks, name, class_="axes")


def _band(band: Band, plot: _Plot) -> Markup:
    left, right = (plot.wide * min(max(plot.x.share(value), 0.0), 1.0) for value in (band.start, band.end))
    return el("rect", x=left, y=0, width=max(right - left, 1.0), height=plot.high, class_=_band_class(band))


def _area(ends: Sequence[tuple[float, float, float]], plot: _Plot) -> Markup:
    outline = [plot.at((x, low)) for x, low, _ in ends] + [plot.at((x, high)) for x, _, high in reversed(ends)]
    return el("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in outline), class_="area c1")


def _band_class(band: Band) -> str:
    return "band late" if band.late else "band"


def _rule(start: Point, end: Point) -> Markup:
    return el("g", el("line", x1=start[0], x2=end[0], y1=start[1], y2=end[1]), class_="rule")


def _line(line: Line, plot: _Plot, columns: int) -> Markup:
    points = line.points if line.tips else thin_points(line.points, columns)
    at = [plot.at(point) for point in points]
    spreads = []
    for (x, _), ends in zip(line.points, line.spread, strict=False):
        if ends is not None:
            (left, low), (_, high) = (plot.at((x, end)) for end in ends)
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


def _key(kind: str, name: str) -> Markup:
    high = 4 if kind.startswith("c") else 10
    mark = el("rect", width=14, height=high, y=7 - high / 2, rx=2, class_=kind)
    if kind == "rule":
        mark = el("line", x1=0, x2=14, y1=7, y2=7)
    return el("span", el("svg", mark, class_="swatch rule" if kind == "rule" else "swatch", aria_hidden="true"), name)


# Bars and dots inside the rows of a table

STRIP_HIGH = 18
"""Pixels of a row's drawing."""


@dataclass(frozen=True, kw_only=True)
class Dot:
    at: float
    spread: tuple[float, float] | None = None
    own: bool = False
    """Measured here; others are drawn hollow."""
    doubted: bool = False
    tip: str = ""
    leads_to: str | None = None
    """The address of the page it was read from."""


def draw_bar(start: float, length: float, color: int) -> Markup:
    """A bar in a row, by shares of the row's width; what is too short to be seen is a hair line."""
    width: Attribute = 1 if 0 < length < 0.002 else _percent(length)
    bar = el("rect", x=_percent(start), width=width, y=3, height=STRIP_HIGH - 6, class_=f"c{color}")
    return el("svg", bar, class_="strip", height=STRIP_HIGH, aria_hidden="true")


def draw_dots(found: Sequence[Dot], axis: Axis) -> Markup:
    places = [_percent(axis.share(value)) for value in axis.ticks]
    marks: list[Child] = [el("line", x1=x, x2=x, y1=-4, y2=STRIP_HIGH + 4, class_="grid") for x in places]
    for dot in found:
        if dot.spread:
            ends = [_percent(axis.share(end)) for end in dot.spread]
            marks.append(el("line", x1=ends[0], x2=ends[1], y1=STRIP_HIGH // 2, y2=STRIP_HIGH // 2, class_="spread"))
        kind = "own" if dot.own else "doubted" if dot.doubted else "other"
        linked = dot.leads_to is not None
        mark = el(
            "circle",
            cx=_percent(axis.share(dot.at)),
            cy=STRIP_HIGH // 2,
            r=5,
            class_=kind,
            data_tip=dot.tip or None,
            tabindex=0 if dot.tip and not linked else None,
            role="img" if dot.tip else None,
            aria_label=dot.tip or None,
        )
        marks.append(el("a", mark, href=dot.leads_to, rel="noreferrer", data_tip=dot.tip) if linked else mark)
    return el("svg", marks, class_="strip dots", height=STRIP_HIGH)


def draw_ruler(axis: Axis) -> Markup:
    """The numbers above the dots of a table."""
    texts = [
        el("text", format_tick(value), x=_percent(axis.share(value)), y=13, text_anchor="middle")
        for value in axis.ticks
    ]
    return el("svg", texts, class_="strip ruler", height=STRIP_HIGH, aria_hidden="true")


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
