"""Shows the progress of a run: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trainmark import workloads
from trainmark.cli.terminal import open_console, print_status
from trainmark.record import workload_facts
from trainmark.record.format import number
from trainmark.record.plan import Topology
from trainmark.record.time_left import time_left_s

if TYPE_CHECKING:
    from trainmark.launch.launcher import Watcher
    from trainmark.record.plan import Plan
    from trainmark.record.run_folder import RankLog

PLAIN_LINE_EVERY_S = 10.0
RECENT_STEPS = 20


class ProgressLine:
    """Draws what the ranks have written so far; knows nothing of processes."""

    def __init__(self, plan: Plan, item: str, quality: str) -> None:
        """`quality` names the evaluated value to show."""
        self._plan = plan
        self._item = item
        self._quality = quality
        known = workloads.facts(plan.workload)
        self._band = workload_facts.find_band(plan, known.bands) if known else None
        self._live: Any = None
        self._task: Any = None
        self._printed_at_s = 0.0
        self._seen: set[str] = set()
        self._evaluations = 0
        self._began_s = time.monotonic()

    def __enter__(self) -> ProgressLine:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress as Live, SpinnerColumn, TextColumn

            self._live = Live(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[facts]}"),
                TextColumn("left"),
                TextColumn("{task.fields[left]}"),
                console=open_console(stderr=True),
                transient=True,
            )
            self._task = self._live.add_task(f"{self._plan.workload} starting", total=None, facts="", left="-:--:--")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, ranks: list[RankLog]) -> None:
        """Called whenever new events were read."""
        log = ranks[0]
        facts = self._facts(ranks)
        planned, done = self._length(log)
        if self._live:
            self._live.update(
                self._task,
                description=f"{self._plan.workload} {log.phase}",
                total=planned,
                completed=done,
                facts=facts,
                left=self._left(log),
            )
        now = time.monotonic()
        news = log.phase not in self._seen or len(log.evaluations) > self._evaluations
        if not self._live and (news or now - self._printed_at_s >= PLAIN_LINE_EVERY_S):
            self._printed_at_s = now
            print_status(f"{self._plan.workload} [{now - self._began_s:5.0f} s] {log.phase:8} {facts}")
        self._seen.add(log.phase)
        self._evaluations = len(log.evaluations)

    def _facts(self, ranks: list[RankLog]) -> str:
        log = ranks[0]
        parts = []
        if log.compute_ns:
            parts.append(f"step {log.step}")
            recent = slice(-RECENT_STEPS, None)
            seconds = (sum(log.wait_ns[recent]) + sum(log.compute_ns[recent])) / 1e9
            # a node sees only its own ranks; the others do as much
            own = sum(sum(rank.items[recent]) for rank in ranks)
            items = own * Topology.parse(self._plan.topology).devices / len(ranks)
            if log.loss[-1] is not None:
                parts.append(f"loss {log.loss[-1]:.4f}")
            if seconds > 0:
                parts.append(f"{items / seconds:,.1f} {self._item}/s")
        if log.evaluations and (value := log.evaluations[-1].values.get(self._quality)) is not None:
            parts.append(f"{self._quality} {number(value, 4)}")
            if self._band and (found := [*workload_facts.compare_to_band(self._band, log.evaluations[-1:])]):
                parts.append(f"{found[0].place} of public runs")
        return "  ".join(parts)

    def _left(self, log: RankLog) -> str:
        """The time left, evaluations and checkpoints included."""
        found = time_left_s(self._plan, log, step=log.step, elapsed_s=time.monotonic() - self._began_s)
        return "-:--:--" if found is None else str(timedelta(seconds=round(found)))

    def _length(self, log: RankLog) -> tuple[float | None, float]:
        """Total and done of the bar: seconds where these limit the run, else steps."""
        limits = self._plan.limits
        if limits.wall_s is not None and limits.steps is None and limits.items is None:
            return limits.wall_s, min(limits.wall_s, time.monotonic() - self._began_s)
        done = float(log.step - log.first_step)
        last = self._plan.last_step(
            first_step=log.first_step, steps_per_epoch=log.steps_per_epoch, items_per_step=log.items_per_step
        )
        if limits.steps is None and limits.items is None and limits.seconds is not None:
            spent = log.busy_ns / 1e9
            return limits.seconds, spent
        return None if last is None else last - log.first_step, done


@contextmanager
def show_progress(plan: Plan) -> Iterator[Watcher]:
    """Shows a plan while it runs; yields the callback for new events."""
    workload = workloads.of_plan(plan)
    with ProgressLine(plan, workload.item, workload.target.name) as progress:
        yield progress.show
