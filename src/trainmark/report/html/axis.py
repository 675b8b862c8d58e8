"""Axes: which numbers are marked, and where a value lies between the ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainmark.spec.format import number

Point = tuple[float, float]

_MOST_MARKS = 7
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


def linear(values: Sequence[float], *, zero: bool = False, count: int = 5) -> Axis:
    """An axis around finite values, with round ends."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= max(_SAME * max(abs(low), abs(high)), _NOTHING):
        around = max(abs(low), abs(high)) if max(abs(low), abs(high)) > _NOTHING else 1.0
        low, high = low - around / 2, high + around / 2
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_clean(index * step) for index in range(first, last + 1))
    return Axis(low=ticks[0], high=ticks[-1], ticks=ticks)


def exact(low: float, high: float, *, count: int = 5) -> Axis:
    """An axis that ends where the values do, with round ticks in between: for steps and seconds."""
    if high <= low:
        high = low + 1
    step = _round_step((high - low) / count)
    ticks = tuple(
        _clean(index * step) for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    )
    return Axis(low=low, high=high, ticks=ticks)


def logarithmic(values: Sequence[float]) -> Axis:
    """An axis for values that lie factors apart."""
    known = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = min(known) / 1.25, max(known) * 1.25
    if high < _FEW_FACTORS * low:
        return Axis(low=low, high=high, log=True, ticks=tuple(t for t in linear([low, high]).ticks if low <= t <= high))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits, every in (((1, 2, 5), 1), ((1, 3), 1), *(((1,), every) for every in range(1, len(decades)))):
        ticks = tuple(_clean(digit * 10.0**decade) for decade in decades[::every] for digit in digits)
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) <= _MOST_MARKS:
            break
    return Axis(low=low, high=high, log=True, ticks=inside)


def doubling(values: Sequence[int]) -> Axis:
    """An axis whose marks are the values themselves: numbers of devices, batch sizes."""
    known = sorted(set(values)) or [1]
    return Axis(low=known[0] / 1.15, high=known[-1] * 1.15, log=True, ticks=tuple(float(value) for value in known))


def tick(value: float) -> str:
    """A mark's number as short as it can be said."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{sign}"
    return f"{value:g}" if abs(value) >= 1e-3 else number(value)


def thinned(points: Sequence[Point], columns: int) -> list[Point]:
    """A long series as the lowest and the highest of each column, in their order, so that no spike is lost."""
    if len(points) <= 2 * columns:
        return list(points)
    return [point for part in parts(points, columns) for point in _ends(part)]


def parts(points: Sequence[Point], count: int) -> Iterator[Sequence[Point]]:
    """The series in so many neighbouring pieces of nearly equal length."""
    count = min(count, len(points))
    for index in range(count):
        yield points[index * len(points) // count : (index + 1) * len(points) // count]


def _ends(part: Sequence[Point]) -> list[Point]:
    low = min(range(len(part)), key=lambda index: part[index][1])
    high = max(range(len(part)), key=lambda index: part[index][1])
    return [part[index] for index in sorted({low, high})]


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * (1 - 1e-9)) * size


def _clean(value: float) -> float:
    return float(f"{value:.10g}")
