"""The vocabulary of the synthetic image set: 40 outlines and 27 surfaces, whose pairs are its classes.

The order of both lists is part of the data set's definition. 40 and 27 share no divisor, so class i, with outline
i mod 40 and surface i mod 27, is a different pair for each of the first 1080 classes, and near classes share neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Points = tuple[tuple[float, float], ...]
"""A closed polygon around the origin, about one unit in radius, y pointing down."""


@dataclass(frozen=True)
class Outline:
    """A flat shape: the union of its parts, less its holes."""

    parts: tuple[Points, ...]
    holes: tuple[Points, ...] = ()


Surface = Callable[[Floats, Floats, Floats], Floats]
"""Maps object coordinates u and v and a smooth noise in -1..1 to a pattern: one colour below zero, another above."""


# Outlines


def _curve(at: Callable[[float], tuple[float, float]], start: float, stop: float, points: int = 80) -> Points:
    return tuple(at(start + (stop - start) * i / (points - 1)) for i in range(points))


def _around(radius: Callable[[float], float], points: int = 120) -> Points:
    """A closed curve given as its distance from the origin at an angle in radians, 0 pointing up."""
    return _curve(lambda t: (radius(t) * math.sin(t), -radius(t) * math.cos(t)), 0, 2 * math.pi, points)


def _ellipse(width: float, height: float, x: float = 0.0, y: float = 0.0) -> Points:
    return tuple((x + width * px, y + height * py) for px, py in _around(lambda _: 1.0, 60))


def _box(width: float, height: float, x: float = 0.0, y: float = 0.0) -> Points:
    return ((x - width, y - height), (x + width, y - height), (x + width, y + height), (x - width, y + height))


def _star(tips: int, inner: float) -> Points:
    """Corners alternately at radius 1 and at `inner`; with `inner` at cos(pi/tips) it is the regular polygon."""
    radii = [inner if i % 2 else 1.0 for i in range(2 * tips)]
    return tuple((r * math.sin(math.pi * i / tips), -r * math.cos(math.pi * i / tips)) for i, r in enumerate(radii))


def _polygon(sides: int) -> Points:
    return _star(sides, math.cos(math.pi / sides))


def _petals(count: int, depth: float) -> Points:
    return _around(lambda t: 1 - depth + depth * math.cos(count * t))


def _gear(teeth: int, depth: float) -> Points:
    return _around(lambda t: 1.0 if (t * teeth / (2 * math.pi)) % 1 < 0.5 else 1 - depth, 40 * teeth)


def _mirror(*right_side: tuple[float, float]) -> Points:
    """An outline symmetric about the vertical axis, from the corners of its right side, top to bottom."""
    return right_side + tuple((-x, y) for x, y in reversed(right_side))


def _band(at: Callable[[float], tuple[float, float]], start: float, stop: float, half_width: float) -> Points:
    """A ribbon of even width along a curve."""
    step = (stop - start) / 200
    left, right = [], []
    for i in range(101):
        t = start + (stop - start) * i / 100
        (x, y), (x0, y0), (x1, y1) = at(t), at(t - step), at(t + step)
        length = math.hypot(x1 - x0, y1 - y0)
        across_x, across_y = half_width * (y0 - y1) / length, half_width * (x1 - x0) / length
        left.append((x + across_x, y + across_y))
        right.append((x - across_x, y - across_y))
    return tuple(left) + tuple(reversed(right))


def _heart(t: float) -> tuple[float, float]:
    height = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
    return math.sin(t) ** 3, -height / 16 - 0.1


OUTLINES: dict[str, Outline] = {
    "star": Outline((_star(5, 0.42),)),
    "ring": Outline((_ellipse(1, 1),), (_ellipse(0.48, 0.48),)),
    "triangle": Outline((_polygon(3),)),
    "cross": Outline((_box(1, 0.34), _box(0.34, 1))),
    "disc": Outline((_ellipse(0.95, 0.95),)),
    "arrow": Outline((_mirror((0, -1), (0.85, -0.1), (0.32, -0.1), (0.32, 1)),)),
    "square": Outline((_box(0.8, 0.8),)),
    "flower": Outline((_petals(6, 0.24),)),
    "crescent": Outline((_ellipse(1, 1),), (_ellipse(0.78, 0.78, 0.5, 0),)),
    "heart": Outline((_curve(_heart, 0, 2 * math.pi),)),
    "gear": Outline((_gear(9, 0.25),), (_ellipse(0.25, 0.25),)),
    "bottle": Outline((_mirror((0.2, -1.1), (0.2, -0.5), (0.52, -0.15), (0.52, 1)),)),
    "fish": Outline((_ellipse(0.75, 0.5, 0.3, 0), ((-0.25, 0), (-1, 0.55), (-0.8, 0), (-1, -0.55)))),
    "frame": Outline((_box(0.9, 0.9),), (_box(0.48, 0.48),)),
    "bolt": Outline(
        (((0.1, -1.1), (-0.6, 0.15), (-0.05, 0.15), (-0.25, 1.1), (0.6, -0.25), (0.05, -0.25), (0.45, -1.1)),)
    ),
    "oval": Outline((_ellipse(1.1, 0.58),)),
    "drop": Outline((_mirror((0, -1.1), (0.6, 0.2)), _ellipse(0.62, 0.62, 0, 0.35))),
    "clover": Outline((_petals(3, 0.36),)),
    "hook": Outline((_box(0.3, 1, -0.5, 0), _box(0.8, 0.3, 0, 0.7))),
    "hammer": Outline((_box(0.95, 0.32, 0, -0.65), _box(0.24, 0.9, 0, 0.1))),
    "hexagon": Outline((_polygon(6),)),
    "sun": Outline((_star(12, 0.66),)),
    "plank": Outline((_box(1.15, 0.38),)),
    "spiral": Outline((_band(lambda t: (t / 11.5 * math.cos(t), t / 11.5 * math.sin(t)), 1.2, 11, 0.15),)),
    "snake": Outline((_band(lambda t: (t, 0.45 * math.sin(4.5 * t)), -1, 1, 0.2),)),
    "mushroom": Outline((_box(0.28, 0.5, 0, 0.5), _mirror((0, -1), (0.6, -0.8), (1, -0.2), (0.95, 0.1)))),
    "hourglass": Outline((_mirror((0.8, -1), (0.14, 0), (0.8, 1)),)),
    "butterfly": Outline((_around(lambda t: 0.3 + 0.7 * abs(math.sin(2 * t))),)),
    "house": Outline((_mirror((0, -1), (0.95, -0.2), (0.68, -0.2), (0.68, 0.9)),)),
    "dumb-bell": Outline((_ellipse(0.5, 0.5, 0, -0.65), _ellipse(0.5, 0.5, 0, 0.65), _box(0.16, 0.6))),
    "fork": Outline(
        (_box(0.85, 0.2, 0, 0.1), _box(0.16, 1), _box(0.16, 0.5, -0.69, -0.5), _box(0.16, 0.5, 0.69, -0.5))
    ),
    "horseshoe": Outline((_band(lambda t: (0.75 * math.sin(t), 0.85 * math.cos(t)), 0.55, 5.75, 0.22),)),
    "eye": Outline((_ellipse(1.1, 0.62),), (_ellipse(0.3, 0.3),)),
    "bowl": Outline((_curve(lambda t: (math.cos(t), math.sin(t) - 0.45), 0, math.pi),)),
    "kite": Outline((_mirror((0, -1.1), (0.68, -0.3), (0, 1.1)),)),
    "spark": Outline((_star(4, 0.33),)),
    "fir": Outline((_mirror((0, -1.1), (0.5, -0.35), (0.28, -0.35), (0.8, 0.5), (0.2, 0.5), (0.2, 1)),)),
    "window": Outline((_box(0.62, 1.05),), (_box(0.34, 0.26, 0, -0.5), _box(0.34, 0.26, 0, 0.5))),
    "zigzag": Outline(
        (
            (
                *((-0.8, -0.95), (0.8, -0.95), (0.8, -0.5), (-0.1, 0.5), (0.8, 0.5)),
                *((0.8, 0.95), (-0.8, 0.95), (-0.8, 0.5), (0.1, -0.5), (-0.8, -0.5)),
            ),
        )
    ),
    "pie": Outline(((*_curve(lambda t: (math.cos(t), math.sin(t)), 0.6, 2 * math.pi - 0.6), (0.0, 0.0)),)),
}


# Surfaces


def _wave(x: Floats) -> Floats:
    """A triangle wave of period 1: 0.5 at whole numbers, -0.5 half-way."""
    wave: Floats = np.abs(_cell(x)) * 2 - np.float32(0.5)
    return wave


def _cell(x: Floats) -> Floats:
    """The place within a cell of width 1, -0.5 to 0.5."""
    place: Floats = x - np.floor(x) - np.float32(0.5)
    return place


def _odd(x: Floats) -> Floats:
    """1 in every second cell of width 1, else 0."""
    pairs = x * np.float32(0.5)
    odd: Floats = np.floor((pairs - np.floor(pairs)) * 2)
    return odd


def _radius(u: Floats, v: Floats) -> Floats:
    radius: Floats = np.sqrt(u * u + v * v)
    return radius


def _turn(u: Floats, v: Floats) -> Floats:
    """The direction of (u, v) as a fraction of a turn, to a few thousandths; by hand, so that all machines agree."""
    across, along = np.abs(u), np.abs(v)
    ratio = np.minimum(across, along) / np.maximum(np.maximum(across, along), np.float32(1e-6))
    eighth = ratio * (np.float32(0.1585) - np.float32(0.0335) * ratio * ratio)
    quarter = np.where(across > along, np.float32(0.25) - eighth, eighth)
    half = np.where(v < 0, np.float32(0.5) - quarter, quarter)
    turn: Floats = np.where(u < 0, 1 - half, half)
    return turn


def _dots(u: Floats, v: Floats, radius: float) -> Floats:
    """Round dots, one per cell, every second row shifted by half a cell."""
    dots: Floats = (np.float32(radius) - _radius(_cell(u + _odd(v) * np.float32(0.5)), _cell(v))) * 2
    return dots


def _scales(u: Floats, v: Floats) -> Floats:
    """Rounded tiles that overlap downward, every second row shifted by half a cell."""
    x, y = _cell(u + _odd(v) * np.float32(0.5)), _cell(v) + np.float32(0.5)
    scales: Floats = (np.float32(0.62) - _radius(x, y)) * 2
    return scales


def _bricks(u: Floats, v: Floats) -> Floats:
    x, y = np.abs(_cell(u * np.float32(0.6) + _odd(v) * np.float32(0.5))), np.abs(_cell(v))
    bricks: Floats = np.minimum(np.float32(0.42) - x, np.float32(0.36) - y) * 2
    return bricks


def _noughts(u: Floats, v: Floats) -> Floats:
    noughts: Floats = np.float32(0.16) - np.abs(_radius(_cell(u), _cell(v)) - np.float32(0.3)) * 2
    return noughts


def _plus_signs(u: Floats, v: Floats) -> Floats:
    x, y = np.abs(_cell(u)), np.abs(_cell(v))
    signs: Floats = np.minimum(np.float32(0.14) - np.minimum(x, y), np.float32(0.4) - np.maximum(x, y)) * 2
    return signs


def _weave(u: Floats, v: Floats) -> Floats:
    """Three threads per cell, lying across in one cell and along in the next."""
    threads: Floats = np.where(_odd(u) == _odd(v), _wave(v * 3), _wave(u * 3)) + np.float32(0.1)
    return threads


SURFACES: dict[str, Surface] = {
    "striped": lambda u, v, n: _wave(u * 3),
    "spotted": lambda u, v, n: _dots(u * 3, v * 3, 0.3),
    "chequered": lambda u, v, n: _wave(u * 2) * _wave(v * 2) * 4,
    "ringed": lambda u, v, n: _wave(_radius(u, v) * 3),
    "plain": lambda u, v, n: n * np.float32(0.02) - np.float32(0.5),
    "rayed": lambda u, v, n: _wave(_turn(u, v) * 8),
    "bricked": lambda u, v, n: _bricks(u * 3, v * 3),
    "blotched": lambda u, v, n: n * 2,
    "chevroned": lambda u, v, n: _wave(v * 3 + _wave(u * 2) * np.float32(1.2)),
    "latticed": lambda u, v, n: np.maximum(_wave(u * 3), _wave(v * 3)) - np.float32(0.25),
    "halved": lambda u, v, n: u * 3,
    "scaly": lambda u, v, n: _scales(u * 3, v * 3),
    "pin-striped": lambda u, v, n: _wave(u * 6) - np.float32(0.1),
    "marbled": lambda u, v, n: _wave(u * 2 + n * 2),
    "crossed": lambda u, v, n: _plus_signs(u * 3, v * 3),
    "diamonded": lambda u, v, n: _wave(u * 2) + _wave(v * 2),
    "swirled": lambda u, v, n: _wave(_radius(u, v) * 2 + _turn(u, v) * 2),
    "quartered": lambda u, v, n: u * v * 10,
    "wavy": lambda u, v, n: _wave(v * 3 + _wave(u * 2) * (1 - np.abs(_wave(u * 2))) * np.float32(0.9)),
    "boxed": lambda u, v, n: _wave(np.maximum(np.abs(u), np.abs(v)) * 3),
    "noughted": lambda u, v, n: _noughts(u * 3, v * 3),
    "tartan": lambda u, v, n: _wave(u * 2) + _wave(v * 2) - np.float32(0.35) + _wave(u * 8) * np.float32(0.6),
    "banded": lambda u, v, n: np.float32(0.2) - np.abs(v),
    "woven": lambda u, v, n: _weave(u * 2, v * 2),
    "grained": lambda u, v, n: _wave(u * 5 + n + v * np.float32(0.3)),
    "petalled": lambda u, v, n: _wave(_turn(u, v) * 5) - _radius(u, v) + np.float32(0.4),
    "speckled": lambda u, v, n: _dots(u * 6 + n, v * 6, 0.22),
}


def form(index: int) -> tuple[str, Outline, Surface]:
    """Class number `index`: its name ("striped star"), its outline, its surface."""
    outline, surface = list(OUTLINES)[index % len(OUTLINES)], list(SURFACES)[index % len(SURFACES)]
    return f"{surface} {outline}", OUTLINES[outline], SURFACES[surface]
