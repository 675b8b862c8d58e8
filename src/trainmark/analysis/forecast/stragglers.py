"""How much longer the slowest of many ranks computes than the average one, drawn from the ranks that were seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainmark.spec.timeline import Timeline

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stragglers:
    """What ranks computed in a step, over the mean of all ranks in that step."""

    factors: Floats
    """Sorted."""
    by_step: bool
    """False where only sums over all steps are known, so that moments of a rank are not seen."""

    def slowest(self, ranks: int) -> float:
        """The slowest of so many ranks over the average one, as the mean of endless draws with replacement.

        No draw is slower than the slowest that was seen, so this grows no further where ranks are many.
        """
        share = np.arange(len(self.factors) + 1) / len(self.factors)
        return max(1.0, float(self.factors @ np.diff(share**ranks)))


def stragglers(timeline: Timeline) -> Stragglers | None:
    """Of the counted steps; None where fewer than two ranks computed, or the exchange was not told apart."""
    ranks = len(timeline.ranks)
    if ranks < 2 or not timeline.exchange_known:
        return None
    steps = slice(timeline.warmup_steps, timeline.steps)
    by_step = all(len(trace.compute_ns) >= timeline.steps and not trace.sums for trace in timeline.ranks)
    if by_step:
        own = np.array(
            [np.subtract(trace.compute_ns[steps], trace.exchange_ns[steps]) for trace in timeline.ranks], dtype=float
        )
    else:
        own = np.array([[timeline.own_ns(trace)] for trace in timeline.ranks])
    means = own.mean(axis=0)
    if not own.size or means.min() <= 0:
        return None
    # ranks lie nearer to a mean that they are part of than to that of many
    spread = math.sqrt(ranks / (ranks - 1))
    return Stragglers(factors=np.sort((1 + (own / means - 1) * spread).ravel()), by_step=by_step)
