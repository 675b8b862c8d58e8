"""Searches the largest useful batch of a device: doubles until memory or throughput is exhausted, then bisects."""

from __future__ import annotations

import json
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from trainmark import workloads
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.coordinator import plan_file_name
from trainmark.launch.workers import Death, WorkerProcesses
from trainmark.platforms import files
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError, error_from_exit_code
from trainmark.record.machine import BatchTry, FillSearch
from trainmark.record.plan import Plan, Topology
from trainmark.record.recipe import Limits, from_values, to_values
from trainmark.record.run_folder import RankLog

MAX_OF_DEVICE = 0.9
"""Share of device memory that a batch may take: evaluation and collectives need some too."""
MAX_OF_HOST = 0.6
"""Share of host memory that all ranks on a CPU may take together."""
TRAIN_S = 4.0
"""About how long the counted steps of a trial take."""
MIN_STEPS, MAX_STEPS = 2, 20
POLL_S = 0.05


class Trial:
    """Trains a plan for a few steps with another batch: same data, device and arithmetic, one rank."""

    def __init__(
        self, plan: Plan, *, memory_bytes: int | None = None, bounds: Bounds | None = None, try_s: float | None = None
    ) -> None:
        """Defaults depend on the platform. `memory_bytes` limits the host memory of a rank, on a CPU only."""
        workload = workloads.of_plan(plan)
        self.item = workload.item
        self._plan = plan
        self._ranks = Topology.parse(plan.topology).devices_per_node
        self._devices = Topology.parse(plan.topology).devices
        self._worked = False
        on_host = files.load(plan.platform).device_type == "cpu"
        self._memory_bytes = (memory_bytes or _compute_host_share(self._ranks)) if on_host else None
        self._try_s = try_s or (60.0 if on_host else 180.0)
        batch = int(plan.recipe["batch_per_device"])
        self.bounds = bounds or (
            Bounds(start=max(1, batch // 32), all_s=120.0, longest_step_s=10.0)
            if on_host
            else Bounds(start=max(1, batch // 8), all_s=600.0)
        )

    def __call__(self, batch: int, step_s: float | None) -> Try:
        counted = MAX_STEPS if step_s == 0 else MIN_STEPS if step_s is None else round(TRAIN_S / step_s)
        steps = 1 + min(max(MIN_STEPS, counted), MAX_STEPS)
        with tempfile.TemporaryDirectory(prefix="trainmark-fill-") as name:
            plan = self._plan_for(batch, steps)
            # one rank that shares the machine as the ranks of the run will
            env = ClusterEnv(is_rank=True, local_ranks=self._ranks)
            (Path(name) / plan_file_name(env)).write_text(json.dumps(plan.to_json()), encoding="utf-8")
            workers = WorkerProcesses(plan, env, Path(name), task="trial")
            workers.start()
            try:
                ended = self._watch(workers, steps)
                return self._result(batch, steps, workers, ended=ended)
            finally:
                workers.end()

    def _plan_for(self, batch: int, steps: int) -> Plan:
        workload = workloads.of_plan(self._plan)
        recipe = from_values(type(workload.recipes["reference"]), self._plan.recipe)
        recipe = replace(
            recipe,
            batch_per_device=batch,
            learning_rate=workload.scaled_learning_rate(recipe, batch),
            evaluate_first=False,
            evaluate_every="end",
            evaluate_after_limit=False,
            checkpoint_every="never",
        )
        return replace(
            self._plan, recipe=to_values(recipe), topology="1x1", limits=Limits(steps=steps), max_restarts=0, profile=0
        )

    def _watch(self, workers: WorkerProcesses, steps: int) -> bool:
        """Until the steps are done, it failed, or it timed out; True where the process has ended by itself."""
        [log] = workers.ranks
        deadline_s = time.monotonic() + self._try_s
        limited = False
        while time.monotonic() < deadline_s:
            ended = workers.wait(POLL_S)
            workers.read()
            if log.pid is not None and not limited:  # it has started, and taken no memory yet
                self._limit_memory(log.pid)
                limited = True
            if ended or log.failed or _is_done(log, steps):
                return ended
        return False

    def _limit_memory(self, pid: int) -> None:
        """Limits the memory of the trial, before the OOM killer of the host strikes."""
        if self._memory_bytes is None or not hasattr(resource, "prlimit"):
            return
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
            most = self._memory_bytes if hard == resource.RLIM_INFINITY else min(self._memory_bytes, hard)
            resource.prlimit(pid, resource.RLIMIT_DATA, (most, hard))
        except ProcessLookupError:
            return

    def _result(self, batch: int, steps: int, workers: WorkerProcesses, *, ended: bool) -> Try:
        [log] = workers.ranks
        if log.failed:
            if log.failed.out_of_memory:
                return Try(batch=batch, unfit="out of memory")
            return self._handle_failure(batch, log.failed.exit_code, log.failed.sentence)
        if not _is_done(log, steps):
            if not ended:
                return Try(batch=batch, unfit=f"its first {steps} steps were not done after {self._try_s:.0f} s")
            death = next(iter(workers.deaths), Death(rank=0, code=0))  # none where it was done before its steps were
            if death.code == -signal.SIGKILL:
                return Try(batch=batch, unfit="out of memory: the kernel killed it")
            return self._handle_failure(batch, 4, f"the try {death.how}: {workers.last_lines(0, 1)}")
        compute_s = [ns / 1e9 for ns in log.compute_ns[1:]]
        done = Try(
            batch=batch,
            items_per_s=sum(log.items[1:]) / max(sum(compute_s), 1e-9),
            step_s=statistics.median(compute_s),
            memory_bytes=log.memory_peak_bytes,
            most=self._find_max_batch(batch, log.steps_per_epoch),
        )
        self._worked = True
        return replace(done, unfit=self._explain_memory(log))

    def _handle_failure(self, batch: int, exit_code: int, sentence: str) -> Try:
        """A batch that fails after smaller ones worked is too large; if none worked yet, the batch is not the cause."""
        if self._worked:
            return Try(batch=batch, unfit=sentence)
        kind = exit_code if exit_code in (UsageError.exit_code, NotReadyError.exit_code) else WorkloadError.exit_code
        raise error_from_exit_code(kind, f"no batch could be tried; with batch_per_device={batch}: {sentence}")

    def _find_max_batch(self, batch: int, steps_per_epoch: int | None) -> int | None:
        """The largest batch that the training set can fill, by its full steps per epoch; None for a stream."""
        if steps_per_epoch is None:
            return None
        micro_batches = int(self._plan.recipe["accumulate"])
        samples = (steps_per_epoch - 1) * batch * micro_batches + 1
        return samples // (micro_batches * self._devices)

    def _explain_memory(self, log: RankLog) -> str:
        used = log.memory_peak_bytes
        if self._memory_bytes is not None:
            most, share = self._memory_bytes, "what a rank may take of this machine"
        else:
            most = int(MAX_OF_DEVICE * ((log.environment and log.environment.device.memory_bytes) or 0))
            share = f"{100 * MAX_OF_DEVICE:.0f} % of the device's memory"
        if not used or not most or used <= most:
            return ""
        return f"it takes {used / 2**30:.2f} GiB, more than {share} ({most / 2**30:.2f} GiB)"


def _is_done(log: RankLog, steps: int) -> bool:
    return bool(log.phases_ns) and len(log.compute_ns) >= steps


def _compute_host_share(ranks: int) -> int:
    memory = psutil.virtual_memory()
    return int(MAX_OF_HOST * min(memory.total, memory.available) / ranks)


MIN_GAIN = 0.03
"""A larger batch is useful if it is faster than all smaller ones by this share."""
CLOSE = 8
"""The search ends when the largest fitting batch and the smallest other are 1/8 apart."""


@dataclass(frozen=True, kw_only=True)
class Try:
    """The result of one batch."""

    batch: int
    items_per_s: float = 0.0
    step_s: float = 0.0
    memory_bytes: int | None = None
    unfit: str = ""
    """Why this batch cannot be used; empty where it can."""
    most: int | None = None
    """The largest batch that the training set can fill on all devices."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The start and the limits of a search."""

    start: int
    all_s: float
    """No further batch is tried after so long."""
    longest_step_s: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class FillResult:
    batch_per_device: int
    reason: str
    curve: tuple[Try, ...]
    """Every batch that was tried, by size."""
    took_s: float = 0.0

    def facts(self) -> FillSearch:
        """As the record keeps it."""
        curve = msgspec.convert(self.curve, tuple[BatchTry, ...], from_attributes=True)
        took_s = round(self.took_s, 1)
        return FillSearch(batch_per_device=self.batch_per_device, reason=self.reason, took_s=took_s, curve=curve)


Attempt = Callable[[int, float | None], Try]
"""Trains a few steps with a batch, given the expected time of a step where known."""


def find_batch(plan: Plan, *, say: Callable[[str], None] = lambda sentence: None) -> FillResult:
    """Searches on the first device of this machine, with one rank: the batch is per device."""
    trial = Trial(plan)
    say(f"{plan.workload}: looking for the largest useful batch, for {trial.bounds.all_s:.0f} s at most")

    def try_and_report(batch: int, step_s: float | None) -> Try:
        done = trial(batch, step_s)
        memory = "" if done.memory_bytes is None else f", {done.memory_bytes / 2**30:.2f} GiB"
        say(f"  batch {batch}: {done.unfit or f'{done.items_per_s:.3g} {trial.item}/s{memory}'}")
        return done

    found = search(try_and_report, trial.bounds)
    say(f"{plan.workload}: batch_per_device={found.batch_per_device}; {found.reason}")
    return found


def search(attempt: Attempt, bounds: Bounds, now_s: Callable[[], float] = time.monotonic) -> FillResult:
    """The smallest batch that no other is faster than by more than 3 %."""
    search = _Search(attempt, bounds, now_s)
    fits, unfit = search.find_start()
    reason = ""
    if unfit is None:
        fits, unfit, reason = search.grow(fits)
    if unfit is not None:
        reason = search.bisect(fits, unfit) or reason
    return search.choose(reason)


class _Search:
    def __init__(self, attempt: Attempt, bounds: Bounds, now_s: Callable[[], float]) -> None:
        self._attempt, self._bounds, self._now_s = attempt, bounds, now_s
        self._began_s = now_s()
        self._tries: dict[int, Try] = {}

    def find_start(self) -> tuple[int, int | None]:
        """A batch that fits, and the one above it that did not if the start was too large."""
        batch, unfit = self._bounds.start, None
        while (done := self._try(batch)).unfit:
            if batch == 1:
                raise WorkloadError(f"no batch fits this device, not even of 1: {done.unfit}")
            batch, unfit = batch // 2, batch
        return batch, unfit

    def grow(self, batch: int) -> tuple[int, int | None, str]:
        """Doubles: the largest batch that fits, the one above it to bisect to if that is unfit, and why it stopped."""
        slow = 0
        while True:
            larger = 2 * batch
            best = max(done.items_per_s for done in self._fitting)
            if unfit := self._explain_skip(larger) or self._try(larger).unfit:
                return batch, None if slow else larger, f"not {larger}: {unfit}"
            batch = larger
            # one batch may hit a slow kernel: only two without a gain end the search
            slow = slow + 1 if self._tries[larger].items_per_s < (1 + MIN_GAIN) * best else 0
            if slow == 2:
                return batch, None, ""

    def bisect(self, fits: int, unfit: int) -> str:
        """Bisects between a batch that fits and one that does not; returns why the last one did not."""
        reason = self._tries[unfit].unfit if unfit in self._tries else self._explain_skip(unfit)
        while unfit - fits > max(1, fits // CLOSE):
            middle = (fits + unfit) // 2
            if unfit - fits > 2 * CLOSE:
                middle -= middle % CLOSE
            if why_not := self._explain_skip(middle) or self._try(middle).unfit:
                unfit, reason = middle, why_not
            else:
                fits = middle
        return f"not {unfit}: {reason}"

    def choose(self, reason: str) -> FillResult:
        best = max(done.items_per_s for done in self._fitting)
        chosen = min(done.batch for done in self._fitting if (1 + MIN_GAIN) * done.items_per_s >= best)
        if chosen < max(done.batch for done in self._fitting):
            reason = f"larger ones are not faster by more than {100 * MIN_GAIN:.0f} %"
        curve = tuple(self._tries[batch] for batch in sorted(self._tries))
        return FillResult(batch_per_device=chosen, reason=reason, curve=curve, took_s=self._now_s() - self._began_s)

    @property
    def _fitting(self) -> list[Try]:
        return [done for done in self._tries.values() if not done.unfit]

    def _try(self, batch: int) -> Try:
        done = self._attempt(batch, self._step_s(batch))
        if not done.unfit and done.step_s > self._bounds.longest_step_s:
            done = replace(done, unfit=self._explain_long_step(done.step_s))
        self._tries[batch] = done
        return done

    def _explain_skip(self, batch: int) -> str:
        """Why a batch is not tried; empty where it is."""
        if self._now_s() - self._began_s > self._bounds.all_s:
            return f"the {self._bounds.all_s:.0f} s for the search were over"
        most = max((done.most for done in self._fitting if done.most is not None), default=batch)
        if batch > most:
            return "the training set has too few samples for it"
        step_s = self._step_s(batch)
        return self._explain_long_step(step_s) if step_s is not None and step_s > self._bounds.longest_step_s else ""

    def _step_s(self, batch: int) -> float | None:
        """The expected time of a step, by the largest batch that was timed."""
        timed = max(self._fitting, key=lambda done: done.batch, default=None)
        return None if timed is None else timed.step_s * batch / timed.batch

    def _explain_long_step(self, step_s: float) -> str:
        return f"a step takes {step_s:.1f} s, longer than {self._bounds.longest_step_s:g} s"
