"""What is known of a run while it goes on, from the events its ranks and samplers have written so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from trainmark.spec.topology import Topology

RECENT_STEPS = 200
"""What is said about speed is about so many steps at most, the last ones."""
MOST_POINTS = 256


class Step(NamedTuple):
    number: int
    wait_ns: int
    compute_ns: int
    exchange_ns: int
    items: int
    loss: float | None

    @classmethod
    def read(cls, number: int, wait_ns: Any, compute_ns: Any, exchange_ns: Any, items: Any, loss: Any) -> Step:
        """From what a file says; TypeError or ValueError where that is no number."""
        counts = [max(0, int(value)) for value in (wait_ns, compute_ns, exchange_ns, items)]
        return cls(number, counts[0], counts[1], counts[2], counts[3], None if loss is None else float(loss))

    @property
    def whole_s(self) -> float:
        return (self.wait_ns + self.compute_ns) / 1e9


class Speed(NamedTuple):
    """Throughput over the last steps, their wait for data included."""

    items_per_s: float
    half_width: float | None
    """Half the 95 % interval as a part of it; None with too few steps."""
    steps: int


class Late(NamedTuple):
    """How far a rank is behind the others."""

    rank: int
    steps: int
    """Behind the rank that has written most."""
    percent: float | None
    """Longer than the fastest rank's own computing; None where nothing can be compared yet."""


class Curve:
    """A series of any length in a few hundred points, each the mean of equally many neighbours."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._width = 1
        self._open: list[float] = []

    def add(self, value: float) -> None:
        self._open.append(value)
        if len(self._open) < self._width:
            return
        self.points.append(sum(self._open) / len(self._open))
        self._open = []
        if len(self.points) >= MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points, self._width = [(first + second) / 2 for first, second in pairs], 2 * self._width


@dataclass(kw_only=True)
class Rank:
    """One rank's part in the run."""

    rank: int
    host: str = ""
    pid: int | None = None
    phase: str = "startup"
    samples: int = 0
    """Of the evaluation that goes on: how many this rank has seen."""
    first_step: int | None = None
    """Where the run began; 0 unless it resumed another."""
    step: int = 0
    steps_per_epoch: int | None = None
    restarts: int = 0
    trained_s: float = 0.0
    recent: deque[Step] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    losses: Curve = field(default_factory=Curve)
    evaluation: Mapping[str, Any] | None = None
    """The last one."""
    ended: str | None = None
    failed: str | None = None

    def hear(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "begin":
            self.host, self.pid, self.phase = str(event["host"]), int(event["pid"]), "init"
            self.restarts, self.ended, self.failed = int(event.get("restart", 0)), None, None
            self.recent.clear()
        elif kind == "ready":
            self.steps_per_epoch, self.phase, self.step = (
                None if event["steps_per_epoch"] is None else int(event["steps_per_epoch"]),
                "train",
                int(event["first_step"]),
            )
            self.first_step = self.step if self.first_step is None else self.first_step
        elif kind == "steps":
            self._take(event)
        elif kind == "alive":
            self.phase, self.samples = str(event["phase"]), int(event["samples"])
        elif kind == "evaluation":
            self.evaluation, self.phase = event, "train"
        elif kind == "saved":
            self.phase = "train"
        elif kind == "phases":
            self.phase = "finish"
        elif kind == "end":
            self.phase, self.ended = "end", str(event["ended"])
        elif kind == "failed":
            self.phase, self.failed = "failed", str(event["sentence"])

    def _take(self, event: Mapping[str, Any]) -> None:
        waits, computes = event["wait_ns"], event["compute_ns"]
        exchanges = event.get("exchange_ns") or [0] * len(waits)
        columns = zip(waits, computes, exchanges, event["items"], event["loss"], strict=True)
        first = int(event["first"])
        steps = [Step.read(first + index, *values) for index, values in enumerate(columns)]
        self.trained_s += sum(step.whole_s for step in steps)
        self.recent.extend(steps)
        for step in steps:
            if step.loss is not None and math.isfinite(step.loss):
                self.losses.add(step.loss)
        self.phase, self.step = "train", first + len(steps)


@dataclass(kw_only=True)
class Machine:
    """The last of what a sampler wrote."""

    host: str = ""
    elapsed_s: float | None = None
    """Since the launch, by the machine's own steady clock."""
    launched_ns: int | None = None
    sample: Mapping[str, Any] = field(default_factory=dict)
    devices: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)

    def hear(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "begin":
            self.host, self.launched_ns = str(event["host"]), int(event["launched_ns"])
        elif kind == "host":
            self.sample = event
        elif kind == "devices":
            self.devices = {int(reading["device"]): reading for reading in event["readings"]}
        elif kind == "unavailable":
            self.unavailable = dict(event["fields"])
        if self.launched_ns is not None and "at_ns" in event:
            self.elapsed_s = (int(event["at_ns"]) - self.launched_ns) / 1e9


@dataclass(kw_only=True)
class Live:
    """A run as far as it has come."""

    run_id: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    """As in plan.json; empty until it could be read."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """As in run.json: item, target."""
    ranks: dict[int, Rank] = field(default_factory=dict)
    machines: dict[int, Machine] = field(default_factory=dict)
    fault: str | None = None
    """What the launcher found to have gone wrong."""
    not_understood: int = 0
    """Events that are not as we know them; a newer trainmark may write more than this one reads."""

    def hear(self, source: str, number: int, event: Mapping[str, Any]) -> None:
        """Takes in one event of the file `rank3`, `telemetry0` or `launcher`."""
        try:
            kind = str(event["event"])
            if source == "rank":
                self.ranks.setdefault(number, Rank(rank=number)).hear(kind, event)
            elif source == "telemetry":
                self.machines.setdefault(number, Machine()).hear(kind, event)
            elif kind == "fault":
                self.fault = str(event["sentence"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self.not_understood += 1

    @property
    def first(self) -> Rank:
        return self.ranks[min(self.ranks)] if self.ranks else Rank(rank=0)

    @property
    def phase(self) -> str:
        """Of the first rank; a failure of any goes before."""
        return "failed" if any(rank.failed for rank in self.ranks.values()) else self.first.phase

    @property
    def over(self) -> bool:
        """Every rank heard has said its last word."""
        return bool(self.ranks) and all(rank.ended or rank.failed for rank in self.ranks.values())

    @property
    def failure(self) -> str | None:
        said = next((f"rank {rank.rank}: {rank.failed}" for rank in self.ranks.values() if rank.failed), None)
        return self.fault or said

    @property
    def step(self) -> int:
        """Steps that every rank has finished."""
        return min((rank.step for rank in self.ranks.values()), default=0)

    @property
    def devices(self) -> int:
        try:
            return Topology.parse(str(self.plan["topology"])).devices
        except (KeyError, ValueError):
            return max(1, len(self.ranks))

    @property
    def limits(self) -> Mapping[str, Any]:
        found = self.plan.get("limits")
        return found if isinstance(found, Mapping) else {}

    @property
    def planned(self) -> int | None:
        """The step at which the run ends at the latest, where that is a step."""
        first = self.first
        if isinstance(steps := self.limits.get("steps"), int):
            return (first.first_step or 0) + steps
        if (
            any(self.limits.get(name) is not None for name in ("items", "seconds", "half_width"))
            or not first.steps_per_epoch
        ):
            return None
        recipe = self.plan.get("recipe")
        caps = [recipe.get("epochs") if isinstance(recipe, Mapping) else None, self.limits.get("epochs")]
        epochs = [cap for cap in caps if isinstance(cap, int) and cap]
        return min(epochs) * first.steps_per_epoch if epochs else None

    @property
    def elapsed_s(self) -> float | None:
        known = [machine.elapsed_s for machine in self.machines.values() if machine.elapsed_s is not None]
        return max(known, default=None)

    @property
    def left_s(self) -> float | None:
        """About how long the training still takes, by its last steps; None where nobody can know."""
        if self.phase not in ("train", "evaluate") or not self.first.recent:
            return None
        if isinstance(seconds := self.limits.get("seconds"), (int, float)):
            return max(0.0, float(seconds) - self.first.trained_s)
        if self.planned is None:
            return None
        return max(0, self.planned - self.step) * median(step.whole_s for step in self.first.recent)

    @property
    def loss(self) -> float | None:
        """Of the last step all ranks have finished, as a mean over them."""
        last = [steps[-1].loss for steps in self._common() if steps]
        known = [loss for loss in last if loss is not None and math.isfinite(loss)]
        return sum(known) / len(known) if known and len(known) == len(last) else None

    def speed(self) -> Speed | None:
        """Over the steady part of the last steps; ranks on other machines that are not heard do as much as these."""
        common = self._common()
        if not common or not common[0]:
            return None
        import numpy as np

        from trainmark.spec import statistics

        slowest = max(common, key=lambda steps: sum(step.whole_s for step in steps))
        step_s = np.array([step.whole_s for step in slowest])
        items = np.sum([[step.items for step in steps] for steps in common], axis=0) * (self.devices / len(common))
        start = statistics.steady_start(step_s, items)
        step_s, items = step_s[start:], items[start:]
        if step_s.sum() <= 0:
            return None
        found = statistics.mean_interval(step_s, items)
        rate = float(items.sum() / step_s.sum())
        return Speed(rate, found.relative_half_width if found else None, int(step_s.size))

    def lateness(self) -> list[Late]:
        """Of every rank, the latest first."""
        furthest = max((rank.step for rank in self.ranks.values()), default=0)
        common = self._common()
        # all ranks take equally long for a step, as the fast ones wait in their exchange: what is left tells them apart
        own = [sum(step.compute_ns - step.exchange_ns for step in steps) for steps in common]
        fastest = min(own, default=0)
        found = [
            Late(rank.rank, furthest - rank.step, 100 * (spent / fastest - 1) if fastest > 0 and len(own) > 1 else None)
            for rank, spent in zip(self._in_order(), own or [0] * len(self.ranks), strict=True)
        ]
        return sorted(found, key=lambda late: (-late.steps, -(late.percent or 0.0), late.rank))

    def _in_order(self) -> list[Rank]:
        return [self.ranks[number] for number in sorted(self.ranks)]

    def _common(self) -> list[Sequence[Step]]:
        """Of each rank those of its last steps that all ranks have finished, in the order of the ranks."""
        ranks = self._in_order()
        if not ranks or not all(rank.recent for rank in ranks):
            return []
        low = max(rank.recent[0].number for rank in ranks)
        high = min(rank.recent[-1].number for rank in ranks)
        found = [[step for step in rank.recent if low <= step.number <= high] for rank in ranks]
        return [] if len({len(steps) for steps in found}) > 1 else [*found]
