"""One batch size, tried on this machine by a worker of its own: how fast it is and what memory it takes."""

from __future__ import annotations

import json
import resource
import signal
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil

from trainmark import workloads
from trainmark.launch.cluster_env import ClusterEnv
from trainmark.launch.coordinator import plan_file
from trainmark.launch.fill import Bounds, Try
from trainmark.launch.workers import Death, WorkerProcesses
from trainmark.platforms import files
from trainmark.record.errors import NotReadyError, UsageError, WorkloadError, of_exit_code
from trainmark.record.plan import Plan
from trainmark.record.rank_log import RankLog
from trainmark.record.recipe import Limits, from_values, to_values
from trainmark.record.topology import Topology

MOST_OF_DEVICE = 0.9
"""Share of a device's memory a batch may take: evaluation and the exchange of gradients need some too."""
MOST_OF_HOST = 0.6
"""Share of the machine's memory that all ranks on a CPU may take together."""
TRAIN_S = 4.0
"""About how long the counted steps of a try are to take."""
FEWEST_STEPS, MOST_STEPS = 2, 20
POLL_S = 0.05


class Trial:
    """Runs a plan's training for a few steps with other batches: same data, device and arithmetic, one rank."""

    def __init__(
        self, plan: Plan, *, memory_bytes: int | None = None, bounds: Bounds | None = None, try_s: float | None = None
    ) -> None:
        """What is not given is decided by the platform. `memory_bytes` is what a rank may take of the host's memory,
        and is only held against platforms that compute there."""
        workload = workloads.of_plan(plan)
        self.item = workload.item
        self._plan = plan
        self._ranks = Topology.parse(plan.topology).devices_per_node
        self._devices = Topology.parse(plan.topology).devices
        self._worked = False
        on_host = files.load(plan.platform).device_type == "cpu"
        self._memory_bytes = (memory_bytes or _host_share(self._ranks)) if on_host else None
        self._try_s = try_s or (60.0 if on_host else 180.0)
        batch = int(plan.recipe["batch_per_device"])
        self.bounds = bounds or (
            Bounds(start=max(1, batch // 32), all_s=120.0, longest_step_s=10.0)
            if on_host
            else Bounds(start=max(1, batch // 8), all_s=600.0)
        )

    def __call__(self, batch: int, step_s: float | None) -> Try:
        counted = MOST_STEPS if step_s == 0 else FEWEST_STEPS if step_s is None else round(TRAIN_S / step_s)
        steps = 1 + min(max(FEWEST_STEPS, counted), MOST_STEPS)
        with tempfile.TemporaryDirectory(prefix="trainmark-fill-") as name:
            plan = self._plan_for(batch, steps)
            # one rank that shares the machine as the ranks of the run will
            env = ClusterEnv(is_rank=True, local_ranks=self._ranks)
            (Path(name) / plan_file(env)).write_text(json.dumps(plan.to_json()), encoding="utf-8")
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
        """Until the steps are done, or it failed, or its time is over; True where the process has ended by itself."""
        [log] = workers.ranks
        deadline_s = time.monotonic() + self._try_s
        limited = False
        while time.monotonic() < deadline_s:
            ended = workers.wait(POLL_S)
            workers.read()
            if log.pid is not None and not limited:  # it has said its first word, and taken no memory yet
                self._limit_memory(log.pid)
                limited = True
            if ended or log.failed or _done(log, steps):
                return ended
        return False

    def _limit_memory(self, pid: int) -> None:
        """A host without room would look for somebody to kill, so the try is refused memory before that."""
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
            return self._failed(batch, log.failed.exit_code, log.failed.sentence)
        if not _done(log, steps):
            if not ended:
                return Try(batch=batch, unfit=f"its first {steps} steps were not done after {self._try_s:.0f} s")
            death = next(iter(workers.deaths), Death(rank=0, code=0))  # none where it was done before its steps were
            if death.code == -signal.SIGKILL:
                return Try(batch=batch, unfit="out of memory: the kernel killed it")
            return self._failed(batch, 4, f"the try {death.how}: {workers.last_lines(0, 1)}")
        compute_s = [ns / 1e9 for ns in log.compute_ns[1:]]
        done = Try(
            batch=batch,
            items_per_s=sum(log.items[1:]) / max(sum(compute_s), 1e-9),
            step_s=statistics.median(compute_s),
            memory_bytes=log.memory_peak_bytes,
            most=self._most(batch, log.steps_per_epoch),
        )
        self._worked = True
        return replace(done, unfit=self._too_full(log))

    def _failed(self, batch: int, exit_code: int, sentence: str) -> Try:
        """A batch that fails after smaller ones worked is too large; if nothing worked yet, it is not the batch."""
        if self._worked:
            return Try(batch=batch, unfit=sentence)
        kind = exit_code if exit_code in (UsageError.exit_code, NotReadyError.exit_code) else WorkloadError.exit_code
        raise of_exit_code(kind, f"no batch could be tried; with batch_per_device={batch}: {sentence}")

    def _most(self, batch: int, steps_per_epoch: int | None) -> int | None:
        """What all but the last step of an epoch, which may be short, show of the set's size; a stream has none."""
        if steps_per_epoch is None:
            return None
        micro_batches = int(self._plan.recipe["accumulate"])
        samples = (steps_per_epoch - 1) * batch * micro_batches + 1
        return samples // (micro_batches * self._devices)

    def _too_full(self, log: RankLog) -> str:
        used = log.memory_peak_bytes
        if self._memory_bytes is not None:
            most, share = self._memory_bytes, "what a rank may take of this machine"
        else:
            most = int(MOST_OF_DEVICE * ((log.environment and log.environment.device.memory_bytes) or 0))
            share = f"{100 * MOST_OF_DEVICE:.0f} % of the device's memory"
        if not used or not most or used <= most:
            return ""
        return f"it takes {used / 2**30:.2f} GiB, more than {share} ({most / 2**30:.2f} GiB)"


def _done(log: RankLog, steps: int) -> bool:
    return bool(log.phases_ns) and len(log.compute_ns) >= steps


def _host_share(ranks: int) -> int:
    memory = psutil.virtual_memory()
    return int(MOST_OF_HOST * min(memory.total, memory.available) / ranks)
