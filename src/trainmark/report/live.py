"""What can be said of a run while it goes on, from what its processes have written so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainmark.spec.events import Evaluated
from trainmark.spec.plan import Plan
from trainmark.spec.rank_log import RankLog
from trainmark.spec.run_folder import RunFolder
from trainmark.spec.time_left import RECENT_STEPS, time_left_s
from trainmark.spec.topology import Topology

MOST_POINTS = 256


class Speed(NamedTuple):
    """Throughput over the last steps, their wait for data included."""

    items_per_s: float
    interval: tuple[float, float] | None
    """95 % confidence; None with too few steps."""
    steps: int


class Late(NamedTuple):
    """How far a rank is behind the others."""

    rank: int
    steps: int
    """Behind the rank that has written most."""
    percent: float | None
    """Longer than the fastest rank's own computing; None where nothing can be compared yet."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run as far as it has come."""

    folder: RunFolder

    @property
    def run_id(self) -> str:
        return self.folder.run_id

    @property
    def plan(self) -> Plan | None:
        """None until it could be read."""
        return self.folder.plan

    @property
    def item(self) -> str | None:
        return self.folder.head.item if self.folder.head else None

    @property
    def ranks(self) -> list[RankLog]:
        return self.folder.logs

    @property
    def first(self) -> RankLog:
        return next(iter(self.ranks), RankLog())

    @property
    def evaluation(self) -> Evaluated | None:
        """The last one."""
        return self.first.evaluations[-1] if self.first.evaluations else None

    @property
    def phase(self) -> str:
        """Of the first rank; a failure of any goes before."""
        return "failed" if any(rank.failed for rank in self.ranks) else phase(self.first)

    @property
    def over(self) -> bool:
        """Every rank heard has said its last word."""
        return bool(self.ranks) and all(rank.end or rank.failed for rank in self.ranks)

    @property
    def failure(self) -> str | None:
        if self.folder.fault:
            return self.folder.fault.sentence
        return next((f"rank {rank.rank}: {rank.failed.sentence}" for rank in self.ranks if rank.failed), None)

    @property
    def step(self) -> int:
        """Steps that every rank has finished."""
        return min((rank.step for rank in self.ranks), default=0)

    @property
    def devices(self) -> int:
        return Topology.parse(self.plan.topology).devices if self.plan else max(1, len(self.ranks))

    @property
    def planned(self) -> int | None:
        """The step at which the run ends at the latest, where that is a step."""
        first = self.first
        if self.plan is None:
            return None
        return self.plan.last_step(
            first_step=first.first_step, steps_per_epoch=first.steps_per_epoch, items_per_step=first.items_per_step
        )

    @property
    def elapsed_s(self) -> float | None:
        return max((node.elapsed_s for node in self.folder.nodes if node.elapsed_s is not None), default=None)

    @property
    def usual_s(self) -> float:
        """What the longest of the last steps took."""
        return max(_whole_s(self.first), default=0.0)

    @property
    def left_s(self) -> float | None:
        """About how long the training still takes, by its last steps and what it has paused for; None where nobody can
        know."""
        if self.plan is None or self.phase not in ("train", "evaluate"):
            return None
        return time_left_s(self.plan, self.first, step=self.step, elapsed_s=self.elapsed_s)

    @property
    def loss(self) -> float | None:
        """Of the last step all ranks have finished, as a mean over them."""
        if not (common := self._common()):
            return None
        last = [rank.loss[part][-1] for rank, part in common]
        known = [loss for loss in last if loss is not None and math.isfinite(loss)]
        return sum(known) / len(known) if len(known) == len(last) else None

    def speed(self) -> Speed | None:
        """Over the steady part of the last steps; ranks on other machines that are not heard do as much as these."""
        if not (common := self._common()):
            return None
        import numpy as np

        from trainmark.spec import statistics

        whole_s = [(np.array(rank.wait_ns[part]) + np.array(rank.compute_ns[part])) / 1e9 for rank, part in common]
        step_s = max(whole_s, key=lambda taken: float(taken.sum()))
        items = np.sum([rank.items[part] for rank, part in common], axis=0) * (self.devices / len(common))
        start = statistics.steady_start(step_s, items)
        step_s, items = step_s[start:], items[start:]
        if step_s.sum() <= 0:
            return None
        found = statistics.mean_interval(step_s, items)
        rate = float(items.sum() / step_s.sum())
        return Speed(rate, (found.low, found.high) if found else None, int(step_s.size))

    def lateness(self) -> list[Late]:
        """Of every rank, the latest first."""
        furthest = max((rank.step for rank in self.ranks), default=0)
        # all ranks take equally long for a step, as the fast ones wait in their exchange: what is left tells them apart
        own = [sum(rank.compute_ns[part]) - sum(rank.exchange_ns[part]) for rank, part in self._common()]
        fastest = min(own, default=0)
        found = [
            Late(rank.rank, furthest - rank.step, 100 * (spent / fastest - 1) if fastest > 0 and len(own) > 1 else None)
            for rank, spent in zip(self.ranks, own or [0] * len(self.ranks), strict=True)
        ]
        return sorted(found, key=lambda late: (-late.steps, -(late.percent or 0.0), late.rank))

    def _common(self) -> list[tuple[RankLog, slice]]:
        """Of each rank those of its last steps that all ranks have finished; nothing where there is none of them."""
        ranks = self.ranks
        high = min((rank.step for rank in ranks), default=0)
        low = max((max(rank.kept_from, rank.step - RECENT_STEPS) for rank in ranks), default=0)
        if low >= high:
            return []
        return [(rank, slice(low - rank.kept_from, high - rank.kept_from)) for rank in ranks]


def phase(rank: RankLog) -> str:
    """What a rank does, with the ends that its events tell apart from training."""
    if rank.failed:
        return "failed"
    return "finish" if rank.phases_ns and rank.phase == "train" else rank.phase


def thinned(values: Sequence[float | None]) -> list[float]:
    """A series of any length in a few hundred points, each the mean of equally many neighbours."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    width = -(-len(known) // MOST_POINTS) or 1
    return [sum(part) / len(part) for at in range(0, len(known), width) if (part := known[at : at + width])]


def _whole_s(rank: RankLog) -> list[float]:
    recent = slice(-RECENT_STEPS, None)
    return [(wait + compute) / 1e9 for wait, compute in zip(rank.wait_ns[recent], rank.compute_ns[recent], strict=True)]
