"""How often `compare` sees a difference where there is none, and finds one where there is: on drawn runs.

    python bench/false_alarms.py [--experiments 2000]

Every run is a series of step times that resemble their neighbours, and whole runs lie apart as processes do. On runs of
your own machine: `trainmark run resnet50 --recipe smoke --repeat 10`, then `trainmark compare --null`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from trainmark.analysis.compare.judge import Side, Spread, place, quantile, ratio_interval
from trainmark.analysis.compare.null import binomial_interval
from trainmark.spec.statistics import mean_interval

STEPS = 100
NOISE = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two sides and how unlike their runs are."""

    runs: tuple[int, int]
    correlation: float = 0.0
    between: float = 0.0
    """Deviation from run to run."""
    speed: float = 1.0
    """Of B, beside A."""
    threshold: float = 0.03

    def __str__(self) -> str:
        a, b = self.runs
        return (
            f"{a} against {b} runs, correlation {self.correlation:g}, {100 * self.between:g} % between runs, "
            f"B {self.speed:g} times as fast, threshold {100 * self.threshold:g} %"
        )


CASES = (
    *(
        Case(runs=(1, 1), correlation=correlation, between=between, threshold=threshold)
        for threshold in (0.0, 0.03)
        for between in (0.0, 0.01, 0.03)
        for correlation in (0.0, 0.6)
    ),
    *(
        Case(runs=runs, between=between, threshold=threshold)
        for threshold in (0.0, 0.03)
        for between in (0.002, 0.03)
        for runs in ((1, 5), (2, 2), (3, 3), (5, 5), (10, 10))
    ),
    *(Case(runs=runs, between=0.01, speed=0.94) for runs in ((1, 1), (3, 3), (5, 5), (10, 10))),
)


def drawn_run(draw: np.random.Generator, case: Case, speed: float) -> tuple[float, Spread | None]:
    """The throughput of one run, and how surely its steps tell it."""
    shocks = draw.normal(0, NOISE * np.sqrt(1 - case.correlation**2), STEPS)
    unrest = np.empty(STEPS)
    last = draw.normal(0, NOISE)
    for step, shock in enumerate(shocks):
        last = unrest[step] = case.correlation * last + shock
    step_s = np.maximum(1 + unrest, 0.05) * np.exp(draw.normal(0, case.between)) / speed
    found = mean_interval(step_s, np.ones(STEPS))
    assert found is not None
    error = found.relative_half_width / quantile(0.975, found.degrees)
    return found.value, Spread(error=error, degrees=found.degrees, steps=STEPS)


def drawn_side(draw: np.random.Generator, case: Case, count: int, speed: float) -> Side:
    values, spreads = zip(*(drawn_run(draw, case, speed) for _ in range(count)), strict=True)
    return Side(values=values, spreads=spreads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=2000)
    args = parser.parse_args()
    for case in CASES:
        draw = np.random.default_rng(0)
        outcomes = []
        for _ in range(args.experiments):
            a, b = (
                drawn_side(draw, case, count, speed) for count, speed in zip(case.runs, (1.0, case.speed), strict=True)
            )
            interval = ratio_interval(a, b)
            outcomes.append(place(interval, case.threshold) if interval else "inconclusive")
        told_apart = sum(outcome in ("above", "below") for outcome in outcomes)
        low, high = binomial_interval(told_apart, len(outcomes))
        same = 100 * outcomes.count("same") / len(outcomes)
        print(
            f"{case}: told apart {100 * told_apart / len(outcomes):.1f} % [{100 * low:.1f}, {100 * high:.1f}], "
            f"same {same:.0f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
