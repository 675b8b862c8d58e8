"""Finds the largest useful batch of a device by trying: grows until memory or throughput says stop, then halves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from trainmark.launch.options import RunOptions
from trainmark.record.errors import UsageError, WorkloadError
from trainmark.record.machine import BatchTry, FillSearch
from trainmark.record.plan import Plan
from trainmark.record.recipe import kind_of

LEAST_GAIN = 0.03
"""A batch is worth its size if it is faster than all smaller ones by this share."""
CLOSE = 8
"""The search ends when the batch that fits and the one that does not are an eighth apart."""


@dataclass(frozen=True, kw_only=True)
class Try:
    """What one batch size did."""

    batch: int
    items_per_s: float = 0.0
    step_s: float = 0.0
    memory_bytes: int | None = None
    unfit: str = ""
    """Why this batch cannot be used; empty where it can."""
    most: int | None = None
    """A batch the training set can surely fill on all devices."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where a search begins and what it may take."""

    start: int
    all_s: float
    """No further batch is tried after this."""
    longest_step_s: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class FillResult:
    batch_per_device: int
    reason: str
    curve: tuple[Try, ...]
    """Every batch that was tried, in the order of their sizes."""
    took_s: float = 0.0

    def facts(self) -> FillSearch:
        """As the record keeps it."""
        curve = msgspec.convert(self.curve, tuple[BatchTry, ...], from_attributes=True)
        took_s = round(self.took_s, 1)
        return FillSearch(batch_per_device=self.batch_per_device, reason=self.reason, took_s=took_s, curve=curve)


Attempt = Callable[[int, float | None], Try]
"""Trains a few steps with a batch; also given is how long a step may take, where that can be foreseen."""


def needs_search(plan: Plan, options: RunOptions) -> bool:
    """True where a plan's batch is still to be found: recipe fill, and no word of the user about it."""
    return kind_of(plan.recipe_name).finds_batch and not options.is_set("batch_per_device")


def refuse_several_launchers(decided: list[Plan], options: RunOptions) -> None:
    """Parties of one run must agree on the batch before they meet, and a search would find another on each."""
    for plan in decided:
        if needs_search(plan, options):
            raise UsageError(
                f"recipe fill finds the batch of {plan.workload} where one process starts all ranks, not among several "
                "nodes or tasks; find it with --topology 1x1, then give it: --set batch_per_device=N"
            )


def find(plan: Plan, *, say: Callable[[str], None] = lambda sentence: None) -> FillResult:
    """Searches on the first device of this machine, with one rank: the batch is a device's own."""
    from trainmark.launch.fill_trial import Trial

    trial = Trial(plan)
    say(f"{plan.workload}: looking for the largest useful batch, for {trial.bounds.all_s:.0f} s at most")

    def try_and_say(batch: int, step_s: float | None) -> Try:
        done = trial(batch, step_s)
        memory = "" if done.memory_bytes is None else f", {done.memory_bytes / 2**30:.2f} GiB"
        say(f"  batch {batch}: {done.unfit or f'{done.items_per_s:.3g} {trial.item}/s{memory}'}")
        return done

    found = search(try_and_say, trial.bounds)
    say(f"{plan.workload}: batch_per_device={found.batch_per_device}; {found.reason}")
    return found


def search(attempt: Attempt, bounds: Bounds, now_s: Callable[[], float] = time.monotonic) -> FillResult:
    """The smallest of the batches tried that none is faster than by more than 3 %."""
    looking = _Search(attempt, bounds, now_s)
    fits, unfit = looking.first()
    reason = ""
    if unfit is None:
        fits, unfit, reason = looking.grow(fits)
    if unfit is not None:
        reason = looking.close_in(fits, unfit) or reason
    return looking.found(reason)


class _Search:
    def __init__(self, attempt: Attempt, bounds: Bounds, now_s: Callable[[], float]) -> None:
        self._attempt, self._bounds, self._now_s = attempt, bounds, now_s
        self._began_s = now_s()
        self._tries: dict[int, Try] = {}

    def first(self) -> tuple[int, int | None]:
        """A batch that fits, and the one above it that did not if the start was too large."""
        batch, unfit = self._bounds.start, None
        while (done := self._try(batch)).unfit:
            if batch == 1:
                raise WorkloadError(f"no batch fits this device, not even of 1: {done.unfit}")
            batch, unfit = batch // 2, batch
        return batch, unfit

    def grow(self, batch: int) -> tuple[int, int | None, str]:
        """Doubles: the largest that fits, the one above it to close in on if one cannot be used, and why it stopped."""
        slow = 0
        while True:
            larger = 2 * batch
            best = max(done.items_per_s for done in self._fitting)
            if unfit := self._why_not_try(larger) or self._try(larger).unfit:
                return batch, None if slow else larger, f"not {larger}: {unfit}"
            batch = larger
            # one batch may meet a slow kernel: only two that gain nothing end the search
            slow = slow + 1 if self._tries[larger].items_per_s < (1 + LEAST_GAIN) * best else 0
            if slow == 2:
                return batch, None, ""

    def close_in(self, fits: int, unfit: int) -> str:
        """Halves what lies between a batch that fits and one that does not; returns what stopped the last one."""
        reason = self._tries[unfit].unfit if unfit in self._tries else self._why_not_try(unfit)
        while unfit - fits > max(1, fits // CLOSE):
            middle = (fits + unfit) // 2
            if unfit - fits > 2 * CLOSE:
                middle -= middle % CLOSE
            if why_not := self._why_not_try(middle) or self._try(middle).unfit:
                unfit, reason = middle, why_not
            else:
                fits = middle
        return f"not {unfit}: {reason}"

    def found(self, reason: str) -> FillResult:
        best = max(done.items_per_s for done in self._fitting)
        chosen = min(done.batch for done in self._fitting if (1 + LEAST_GAIN) * done.items_per_s >= best)
        if chosen < max(done.batch for done in self._fitting):
            reason = f"larger ones are not faster by more than {100 * LEAST_GAIN:.0f} %"
        curve = tuple(self._tries[batch] for batch in sorted(self._tries))
        return FillResult(batch_per_device=chosen, reason=reason, curve=curve, took_s=self._now_s() - self._began_s)

    @property
    def _fitting(self) -> list[Try]:
        return [done for done in self._tries.values() if not done.unfit]

    def _try(self, batch: int) -> Try:
        done = self._attempt(batch, self._step_s(batch))
        if not done.unfit and done.step_s > self._bounds.longest_step_s:
            done = replace(done, unfit=self._too_long(done.step_s))
        self._tries[batch] = done
        return done

    def _why_not_try(self, batch: int) -> str:
        """Why a batch need not be tried, or nothing."""
        if self._now_s() - self._began_s > self._bounds.all_s:
            return f"the {self._bounds.all_s:.0f} s for the search were over"
        most = max((done.most for done in self._fitting if done.most is not None), default=batch)
        if batch > most:
            return "the training set has too few samples for it"
        step_s = self._step_s(batch)
        return self._too_long(step_s) if step_s is not None and step_s > self._bounds.longest_step_s else ""

    def _step_s(self, batch: int) -> float | None:
        """What a step will take, by the largest batch that was timed."""
        timed = max(self._fitting, key=lambda done: done.batch, default=None)
        return None if timed is None else timed.step_s * batch / timed.batch

    def _too_long(self, step_s: float) -> str:
        return f"a step takes {step_s:.1f} s, longer than {self._bounds.longest_step_s:g} s"
