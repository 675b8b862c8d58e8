"""Decides whether failed ranks are restarted; with several launchers all of them restart, or none."""

from __future__ import annotations

import time

from trainmark.launch.coordinator import Coordinator, Heartbeat
from trainmark.launch.workers import WorkerProcesses

NEWS_TIMEOUT_S = 3.0
"""How long a launcher whose ranks only lost peers waits for the report of another."""
POLL_S = 0.05


class Restarts:
    """The restarts of one run, as often as its plan allows."""

    def __init__(
        self, workers: WorkerProcesses, coordinator: Coordinator | None = None, heartbeat: Heartbeat | None = None
    ) -> None:
        self._workers = workers
        self._coordinator, self._heartbeat = coordinator, heartbeat
        self._stopped = not workers.plan.max_restarts

    def is_due(self, *, ended: bool) -> bool:
        """Whether to restart the ranks now; `ended` is whether all local ranks have ended."""
        workers = self._workers
        if self._stopped:
            return False
        if self._coordinator is None or self._heartbeat is None:
            return workers.failed and workers.may_restart
        if self._heartbeat.restarts > workers.restarts:
            return True
        if not workers.failed and not ended:
            return False
        useful = workers.failed and workers.may_restart
        if useful and not workers.deaths and all(failed.consequence for _, failed in workers.failures):
            self._wait_for_news(self._heartbeat)
        # the first launcher decides for all: ranks cannot restart once others have finished
        decision = self._coordinator.decide_restart(workers.restarts, "restart" if useful else "stop")
        self._stopped = decision == "stop"
        return not self._stopped

    def _wait_for_news(self, heartbeat: Heartbeat) -> None:
        """Another launcher knows better whether a restart could help."""
        deadline_s = time.monotonic() + NEWS_TIMEOUT_S
        while heartbeat.restarts == self._workers.restarts and not heartbeat.fault and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
