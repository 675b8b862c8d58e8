"""Draws bars and dots inside the rows of a table, so that every picture has its number beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.report.html.axis import Axis, tick
from trainmark.report.html.element import Child, Markup, el

HIGH = 18
"""Pixels of a row's drawing."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A piece of a row, as shares of the row's width."""

    start: float
    length: float
    color: int = 0


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


def bars(pieces: Sequence[Bar]) -> Markup:
    """One row of bars. Lengths are percent, so that the row is as wide as the screen allows."""
    drawn = [
        el(
            "rect",
            x=_percent(bar.start),
            width=_percent(bar.length),
            y=3,
            height=HIGH - 6,
            class_=f"c{bar.color}",
        )
        for bar in pieces
    ]
    # what is there but too short to be seen is still shown as a hair line
    hair = [
        el("rect", x=_percent(bar.start), width=1, y=3, height=HIGH - 6, class_=f"c{bar.color}")
        for bar in pieces
        if 0 < bar.length < 0.002
    ]
    return el("svg", drawn, hair, class_="strip", height=HIGH, aria_hidden="true")


def dots(found: Sequence[Dot], axis: Axis) -> Markup:
    marks: list[Child] = [_grid(axis)]
    for dot in found:
        if dot.spread:
            ends = [_percent(axis.share(end)) for end in dot.spread]
            marks.append(el("line", x1=ends[0], x2=ends[1], y1=HIGH // 2, y2=HIGH // 2, class_="spread"))
        kind = "own" if dot.own else "doubted" if dot.doubted else "other"
        linked = dot.leads_to is not None
        mark = el(
            "circle",
            cx=_percent(axis.share(dot.at)),
            cy=HIGH // 2,
            r=5,
            class_=kind,
            data_tip=dot.tip or None,
            tabindex=0 if dot.tip and not linked else None,
            role="img" if dot.tip else None,
            aria_label=dot.tip or None,
        )
        marks.append(el("a", mark, href=dot.leads_to, rel="noreferrer", data_tip=dot.tip) if linked else mark)
    return el("svg", marks, class_="strip dots", height=HIGH)


def ruler(axis: Axis) -> Markup:
    """The numbers above the dots of a table."""
    texts = [el("text", tick(value), x=_percent(axis.share(value)), y=13, text_anchor="middle") for value in axis.ticks]
    return el("svg", texts, class_="strip ruler", height=HIGH, aria_hidden="true")


def _grid(axis: Axis) -> list[Markup]:
    places = [_percent(axis.share(value)) for value in axis.ticks]
    return [el("line", x1=x, x2=x, y1=-4, y2=HIGH + 4, class_="grid") for x in places]


def _percent(share: float) -> str:
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"
