"""How often a slowdown is found in a series of step times, and how often one is seen where there is none.

    python bench/drift.py [--tries 400]

Series are drawn: steps that resemble their neighbours, with and without a warm-up, at several lengths and noises. Below
it the coverage of the 95 % interval on skewed, correlated and slowly wandering steps, on the logarithm and symmetric
around the mean.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from itertools import product

import numpy as np

from trainmark.record.statistics import Series, detect_drift, find_steady_start, mean_interval

Noise = Callable[[np.random.Generator, int], Series]


def correlated(correlation: float, *, heavy: bool = False) -> Noise:
    """Deviations of variance 1; heavy-tailed ones are Student's with 3 degrees of freedom."""

    def draw(rng: np.random.Generator, n: int) -> Series:
        values = rng.standard_t(3, n) / math.sqrt(3) if heavy else rng.standard_normal(n)
        for i in range(1, n):
            values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
        return values

    return draw


NOISES = {
    "independent": correlated(0.0),
    "correlation 0.5": correlated(0.5),
    "correlation 0.8": correlated(0.8),
    "heavy tails, correlation 0.5": correlated(0.5, heavy=True),
}


def wandering(correlation: float, share: float = 1 / 3) -> Noise:
    """A slow wander, this share of the independent noise that lies over it."""
    noise, slow = correlated(0.0), correlated(correlation)
    return lambda rng, n: noise(rng, n) + share * slow(rng, n)


WANDERS = {f"wander {correlation:g}": wandering(correlation) for correlation in (0.9, 0.95, 0.98)}


def drifts(step_s: Series) -> bool:
    found = detect_drift(step_s[find_steady_start(step_s) :])
    return found is not None and found.is_drifting


def count(draw: Callable[[np.random.Generator], Series], tries: int) -> float:
    rng = np.random.default_rng(0)
    return 100 * sum(drifts(draw(rng)) for _ in range(tries)) / tries


def found(noise: Noise, n: int, scale: float, slower: float, begins: float, tries: int) -> float:
    """Per cent of series found to drift that became so many times slower."""
    times = np.where(np.arange(n) < begins * n, 1.0, slower)
    return count(lambda rng: times * np.maximum(0.05, 1 + scale * noise(rng, n)), tries)


def invented(noise: Noise, n: int, scale: float, shape: Series, tries: int) -> float:
    """Per cent of steady series, after their warm-up, that are said to drift."""
    return count(lambda rng: shape * np.maximum(0.05, 1 + scale * noise(rng, n)), tries)


def coverage(noise: Noise, n: int, sigma: float, tries: int) -> tuple[float, float, float]:
    """Per cent of intervals of lognormal steps that hold the true rate: as given, and symmetric around the value; and
    of the latter, those that reach below zero."""
    rng, truth = np.random.default_rng(0), math.exp(-(sigma**2) / 2)
    given = symmetric = below = 0
    for _ in range(tries):
        interval = mean_interval(np.exp(sigma * noise(rng, n)), np.ones(n))
        assert interval is not None
        given += interval.low <= truth <= interval.high
        symmetric += abs(truth / interval.value - 1) <= interval.half_width
        below += interval.half_width > 1
    return 100 * given / tries, 100 * symmetric / tries, 100 * below / tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=400)
    tries = parser.parse_args().tries
    print("found, % (steps; noise; times slower; begins at)")
    for n, (name, noise) in product((40, 60, 100, 400), NOISES.items()):
        shares = {
            (slower, begins): found(noise, n, 0.01, slower, begins, tries)
            for slower, begins in product((1.05, 1.1, 1.5, 4.9), (0.3, 0.5))
        }
        print(f"  {n}; {name}: " + ", ".join(f"{s:g}x at {b:g}: {share:.0f}" for (s, b), share in shares.items()))
    print("invented, % (steps; noise; its size)")
    for n, (name, noise), scale in product((30, 60, 100, 400), NOISES.items(), (0.01, 0.1)):
        shapes = {
            "no warm-up": np.ones(n),
            "fading": 1 + np.exp(-np.arange(n) * 30 / n),
            "two slow steps": 1 + 20.0 * (np.arange(n) < 2),
        }
        shown = ", ".join(f"{what}: {invented(noise, n, scale, shape, tries):.1f}" for what, shape in shapes.items())
        print(f"  {n}; {name}; {100 * scale:g} %: {shown}", flush=True)
    print("coverage of 95 % (steps; noise; sigma of lognormal steps): on the logarithm, symmetric (of it below zero)")
    for n, (name, noise), sigma in product((10, 30, 100, 400), NOISES.items(), (0.05, 0.5, 1.0)):
        if "heavy" in name:  # such steps have no mean
            continue
        given, symmetric, below = coverage(noise, n, sigma, tries)
        print(f"  {n}; {name}; {sigma:g}: {given:.1f}, {symmetric:.1f} ({below:.1f})", flush=True)
    for n, (name, noise) in product((30, 50, 100, 200, 400, 1000), WANDERS.items()):
        print(f"  {n}; {name}; 0.03: {coverage(noise, n, 0.03, tries)[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
