"""Repeats the forecasts that published clusters allow, each without its own submitter's data, and counts the errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import NamedTuple

from trainmark.analysis.clusters import Chain
from trainmark.features.forecast import scaling_law

DISTANCES = ((1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, math.inf))
"""Times as many devices: beyond the first of a pair, up to the second."""


@dataclass(frozen=True, kw_only=True)
class BacktestLine:
    """Forecasts of one kind over one distance."""

    several: bool
    """From two sizes or more rather than from one."""
    beyond: float
    up_to: float
    count: int
    median_error: float
    worst_decile: float
    """The error that one of ten exceeds."""
    inside: int
    """How many outcomes lay in their 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class Backtest:
    lines: tuple[BacktestLine, ...]
    count: int
    inside: int

    @property
    def coverage(self) -> float:
        return self.inside / self.count if self.count else math.nan


class _Outcome(NamedTuple):
    several: bool
    doublings: float
    error: float
    inside: bool


def backtest(chains: Sequence[Chain]) -> Backtest:
    outcomes = list(_outcomes(chains))
    lines = []
    for several, (beyond, up_to) in product((False, True), DISTANCES):
        # a little above: 16 devices are 2.0 times 8
        near = [o for o in outcomes if o.several == several and beyond * 1.01 < 2**o.doublings <= up_to * 1.01]
        off = sorted(abs(math.expm1(outcome.error)) for outcome in near)
        if near:
            lines.append(
                BacktestLine(
                    several=several,
                    beyond=beyond,
                    up_to=up_to,
                    count=len(near),
                    median_error=median(off),
                    worst_decile=off[math.ceil(0.9 * len(off)) - 1],
                    inside=sum(outcome.inside for outcome in near),
                )
            )
    return Backtest(lines=tuple(lines), count=len(outcomes), inside=sum(outcome.inside for outcome in outcomes))


def _outcomes(chains: Sequence[Chain]) -> Iterator[_Outcome]:
    for held_out, several in product(dict.fromkeys(map(_who, chains)), (False, True)):
        reach = scaling_law.measure_reach([chain for chain in chains if _who(chain) != held_out], several=several)
        own = [chain for chain in chains if _who(chain) == held_out]
        for error, doublings in scaling_law.measure_errors(own, several=several):
            low, high = reach.after(doublings)
            yield _Outcome(several, doublings, error, low <= error <= high)


def _who(chain: Chain) -> tuple[str, str]:
    """A submitter; FlagPerf's rows are all one project's, of which a case is what stands by itself."""
    return (chain.round, chain.benchmark) if chain.round == "flagperf" else ("mlperf", chain.submitter)
