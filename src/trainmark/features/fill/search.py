"""Searches the largest useful batch of a device: doubles until memory or throughput is exhausted, then bisects."""

from __future__ import annotations

import json
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
TRAIN_S, MAX_STEPS = 4.0, 21
"""A trial ends after so long or so many steps, whichever is first; its first step does not count."""
POLL_S = 0.05
MIN_GAIN = 0.03
"""A larger batch is useful if it is faster than all smaller ones by this share."""
CLOSE = 8
"""The search ends when the largest fitting batch and the smallest other are 1/8 apart."""


def find_batch(plan: Plan, *, say: Callable[[str], None]) -> FillSearch:
    """Searches on the first device of this machine, with one rank: the batch is per device."""
    trial = Trial(plan)
    all_s = 120.0 if trial.on_host else 600.0
    say(f"{plan.workload}: looking for the largest useful batch, for {all_s:.0f} s at most")

    def try_and_report(batch: int) -> BatchTry:
        done = trial(batch)
        memory = "" if done.memory_bytes is None else f", {done.memory_bytes / 2**30:.2f} GiB"
        say(f"  batch {batch}: {done.unfit or f'{done.items_per_s:.3g} {trial.item}/s{memory}'}")
        return done

    start = max(1, int(plan.recipe["batch_per_device"]) // (32 if trial.on_host else 8))
    found = search(try_and_report, start=start, all_s=all_s, find_max_batch=lambda: trial.max_batch)
    say(f"{plan.workload}: batch_per_device={found.batch_per_device}; {found.reason}")
    return found


def search(
    attempt: Callable[[int], BatchTry],
    *,
    start: int,
    all_s: float,
    find_max_batch: Callable[[], int | None] = lambda: None,
    now_s: Callable[[], float] = time.monotonic,
) -> FillSearch:
    """The smallest batch that no other is faster than by more than 3 %; none is tried after `all_s`, nor above the
    largest that the training set can fill, which is known after a try."""
    began_s, tries = now_s(), dict[int, BatchTry]()

    def list_fitting() -> list[BatchTry]:
        return [done for done in tries.values() if not done.unfit]

    def explain_unfit(batch: int) -> str:
        """Why a batch cannot be used; empty where it was tried and can."""
        if list_fitting() and now_s() - began_s > all_s:
            return f"the {all_s:.0f} s for the search were over"
        if batch > (find_max_batch() or batch):
            return "the training set has too few samples for it"
        tries[batch] = attempt(batch)
        return tries[batch].unfit

    fits, unfit, reason = start, 0, ""
    while why := explain_unfit(fits):
        if fits == 1:
            raise WorkloadError(f"no batch fits this device, not even of 1: {why}")
        fits, unfit, reason = fits // 2, fits, why
    slow = 0
    while not unfit and slow < 2:  # one batch may hit a slow kernel: only two without a gain end the search
        best = max(done.items_per_s for done in list_fitting())
        if reason := explain_unfit(2 * fits):
            unfit = 2 * fits
        else:
            fits *= 2
            slow = slow + 1 if tries[fits].items_per_s < (1 + MIN_GAIN) * best else 0
    while unfit and not slow and unfit - fits > max(1, fits // CLOSE):
        middle = (fits + unfit) // 2
        if unfit - fits > 2 * CLOSE:
            middle -= middle % CLOSE
        if why := explain_unfit(middle):
            unfit, reason = middle, why
        else:
            fits = middle
    best = max(done.items_per_s for done in list_fitting())
    chosen = min(done.batch for done in list_fitting() if (1 + MIN_GAIN) * done.items_per_s >= best)
    is_largest = chosen == max(done.batch for done in list_fitting())
    return FillSearch(
        batch_per_device=chosen,
        reason=f"not {unfit}: {reason}"
        if is_largest
        else f"larger ones are not faster by more than {100 * MIN_GAIN:.0f} %",
        took_s=round(now_s() - began_s, 1),
        curve=tuple(tries[batch] for batch in sorted(tries)),
    )


class Trial:
    """Trains a plan for a few steps with another batch: same data, device and arithmetic, one rank."""

    def __init__(self, plan: Plan, *, memory_bytes: int | None = None, try_s: float | None = None) -> None:
        """Defaults depend on the platform. `memory_bytes` limits the host memory of a rank, on a CPU only."""
        self._plan, self.item = plan, workloads.of_plan(plan).item
        topology = Topology.parse(plan.topology)
        self._ranks, self._devices = topology.devices_per_node, topology.devices
        self.on_host = files.load(plan.platform).device_type == "cpu"
        self._memory_bytes = (memory_bytes or _compute_host_share(self._ranks)) if self.on_host else None
        self._try_s = try_s or (60.0 if self.on_host else 180.0)
        self._worked = False
        self.max_batch: int | None = None
        """The largest batch that the training set can fill on all devices; None for a stream, or before a trial."""

    def __call__(self, batch: int) -> BatchTry:
        with tempfile.TemporaryDirectory(prefix="trainmark-fill-") as name:
            plan = self._plan_for(batch)
            # one rank that shares the machine as the ranks of the run will
            env = ClusterEnv(is_rank=True, local_ranks=self._ranks)
            (Path(name) / plan_file_name(env)).write_text(json.dumps(plan.to_json()), encoding="utf-8")
            workers = WorkerProcesses(plan, env, Path(name), task="trial")
            workers.start()
            try:
                ended = self._watch(workers)
                return self._result(batch, workers, ended=ended)
            finally:
                workers.end()

    def _plan_for(self, batch: int) -> Plan:
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
        limits = Limits(steps=MAX_STEPS, seconds=TRAIN_S)
        return replace(self._plan, recipe=to_values(recipe), topology="1x1", limits=limits, max_restarts=0, profile=0)

    def _watch(self, workers: WorkerProcesses) -> bool:
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
            if ended or log.failed or _is_done(log):
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

    def _result(self, batch: int, workers: WorkerProcesses, *, ended: bool) -> BatchTry:
        [log] = workers.ranks
        if log.failed:
            if log.failed.out_of_memory:
                return BatchTry(batch=batch, unfit="out of memory")
            return self._handle_failure(batch, log.failed.exit_code, log.failed.sentence)
        if not _is_done(log):
            if not ended:
                return BatchTry(batch=batch, unfit=f"its first steps were not done after {self._try_s:.0f} s")
            death = next(iter(workers.deaths), Death(rank=0, code=0))  # none where it was done before its steps were
            if death.code == -signal.SIGKILL:
                return BatchTry(batch=batch, unfit="out of memory: the kernel killed it")
            return self._handle_failure(batch, 4, f"the try {death.how}: {workers.last_lines(0, 1)}")
        self._worked = True
        if log.steps_per_epoch is not None:  # full ones
            micro_batches = int(self._plan.recipe["accumulate"])
            samples = (log.steps_per_epoch - 1) * batch * micro_batches + 1
            self.max_batch = max(self.max_batch or 1, samples // (micro_batches * self._devices))
        compute_s = [ns / 1e9 for ns in log.compute_ns[1:]]
        return BatchTry(
            batch=batch,
            items_per_s=sum(log.items[1:]) / max(sum(compute_s), 1e-9),
            step_s=statistics.median(compute_s),
            memory_bytes=log.memory_peak_bytes,
            unfit=self._explain_memory(log),
        )

    def _handle_failure(self, batch: int, exit_code: int, sentence: str) -> BatchTry:
        """A batch that fails after smaller ones worked is too large; if none worked yet, the batch is not the cause."""
        if self._worked:
            return BatchTry(batch=batch, unfit=sentence)
        kind = exit_code if exit_code in (UsageError.exit_code, NotReadyError.exit_code) else WorkloadError.exit_code
        raise error_from_exit_code(kind, f"no batch could be tried; with batch_per_device={batch}: {sentence}")

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


def _is_done(log: RankLog) -> bool:
    return bool(log.phases_ns) and len(log.compute_ns) > 1


def _compute_host_share(ranks: int) -> int:
    memory = psutil.virtual_memory()
    return int(MAX_OF_HOST * min(memory.total, memory.available) / ranks)
