"""Renders a running training: a frame for a terminal, a line for a log, a document for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from trainmark.record import escape, statistics
from trainmark.record.events import DeviceReading
from trainmark.record.format import format_interval, number, with_unit
from trainmark.record.numbers import Bounds
from trainmark.record.plan import Plan, Topology
from trainmark.record.run_folder import RankLog, RunFolder
from trainmark.record.time_left import RECENT_STEPS, time_left_s
from trainmark.view.describe import PLAIN_SPARKS, SPARKS, draw_spark
from trainmark.view.terminal import TerminalWriter
from trainmark.workloads import quality_word

PLAN_FIELDS = ("workload", "recipe_name", "platform", "topology", "precision")
MAX_DEVICES = 8
SILENT_S = 15.0
"""Ranks write about twice per second, or once per step: a longer silence is reported."""
SILENT_STEPS = 3
RECENT = slice(-RECENT_STEPS, None)
_READINGS = {
    "power_w": ("W", 1.0),
    "temperature_c": ("°C", 1.0),
    "memory_used_bytes": ("GiB", 2.0**30),
    "utilisation_percent": ("% busy", 1.0),
}


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run so far."""

    folder: RunFolder
    silent_s: float = 0.0
    """How long no rank has written."""
    gone: bool = False
    """The run's processes have ended without a record."""

    @property
    def plan(self) -> Plan | None:
        """None until it is readable."""
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
    def failure(self) -> str | None:
        if self.folder.fault:
            return self.folder.fault.sentence
        return next((f"rank {rank.rank}: {rank.failed.sentence}" for rank in self.ranks if rank.failed), None)

    @property
    def note(self) -> str | None:
        """What is wrong, as a sentence."""
        if self.failure:
            return self.failure
        if self.gone:
            return "its processes are gone, and it has left no record"
        over = bool(self.ranks) and all(rank.end or rank.failed for rank in self.ranks)
        longest_s = max((wait + compute for wait, compute in self._recent_ns()), default=0) / 1e9
        silent = not over and self.silent_s >= max(SILENT_S, SILENT_STEPS * longest_s)
        return f"no event for {format_duration(self.silent_s)}" if silent else None

    @property
    def phase(self) -> str:
        """Phase of the first rank, or `failed` if any rank failed."""
        if any(rank.failed for rank in self.ranks):
            return "failed"
        return "finish" if self.first.phases_ns and self.first.phase == "train" else self.first.phase

    @property
    def step(self) -> int:
        """Steps finished by every rank."""
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
    def left_s(self) -> float | None:
        """Estimated time left; None where that is unknown."""
        if self.plan is None or self.phase not in ("train", "evaluate"):
            return None
        return time_left_s(self.plan, self.first, step=self.step, elapsed_s=self.elapsed_s)

    @property
    def loss(self) -> float | None:
        """Of the first rank's last step."""
        last = self.first.loss[-1] if self.first.loss else None
        return last if last is not None and math.isfinite(last) else None

    def speed(self) -> tuple[float, Bounds | None] | None:
        """Items per second over the steady part of recent steps, with a 95 % interval: all devices do as the first."""
        step_s = np.array([wait + compute for wait, compute in self._recent_ns()]) / 1e9
        items = np.array(self.first.items[RECENT], dtype=np.float64) * self.devices
        start = statistics.find_steady_start(step_s, items)
        step_s, items = step_s[start:], items[start:]
        if step_s.sum() <= 0:
            return None
        found = statistics.mean_interval(step_s, items)
        return float(items.sum() / step_s.sum()), (found.low, found.high) if found else None

    def slower_percent(self) -> dict[int, float]:
        """By rank, how much longer it computes than the fastest; without the exchange, in which fast ranks wait."""
        own = {
            rank.rank: fmean(rank.compute_ns[RECENT]) - fmean(rank.exchange_ns[RECENT])
            for rank in self.ranks
            if rank.compute_ns and rank.exchange_ns
        }
        fastest = min(own.values(), default=0)
        return {rank: 100 * (spent / fastest - 1) for rank, spent in own.items()} if fastest > 0 else {}

    def _recent_ns(self) -> Iterator[tuple[int, int]]:
        return zip(self.first.wait_ns[RECENT], self.first.compute_ns[RECENT], strict=True)


def format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_line(live: Live) -> str:
    """All that matters in one line, for a log; safe to print."""
    facts = dict(_facts(live))
    what = live.plan.workload if live.plan else live.folder.run_id
    parts = [f"{name} {facts[name]}" for name in ("step", "loss", "speed", "quality", "left") if name in facts]
    return escape.terminal("  ".join([what, live.phase, *parts, live.note or ""]).rstrip())


def draw(live: Live, *, width: int, color: bool, encoding: str) -> str:
    """The whole frame, one fact per line."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    title = [str(getattr(live.plan, name)) for name in PLAN_FIELDS] if live.plan else ["a run that begins"]
    writer.put(writer.text(" · ".join(title), "bold"))
    writer.put(writer.text(live.folder.run_id, "dim"))
    facts = list(_facts(live))
    losses = [loss for loss in live.first.loss if loss is not None and math.isfinite(loss)]
    if losses:
        heights = SPARKS if escape.can_encode(encoding, SPARKS) else PLAIN_SPARKS
        facts.append(("", draw_spark(losses, max(8, min(48, width - 30)), heights)))
    writer.put_pairs(facts, indent=0, folds=False)
    if live.note:
        writer.put(writer.text(live.note, "bold red" if live.failure or live.gone else "yellow"))
    return writer.getvalue()


def _facts(live: Live) -> Iterator[tuple[str, str]]:
    phase = live.phase
    if len(live.ranks) < live.devices:
        phase += f"; {len(live.ranks)} of {live.devices} ranks are visible here"
    restarts = max((rank.restart for rank in live.ranks), default=0)
    yield "phase", f"{phase}; restarted {restarts} times" if restarts else phase
    yield "step", f"{live.step}" if live.planned is None else f"{live.step} of {live.planned}"
    if speed := live.speed():
        yield "speed", f"{number(speed[0])} {live.item or 'items'}/s {format_interval(speed[1])}".rstrip()
    if live.loss is not None:
        yield "loss", number(live.loss, 4)
    if quality := _quality(live):
        yield "quality", quality
    slower = live.slower_percent()
    if len(slower) > 1:
        slowest = max(slower, key=lambda rank: slower[rank])
        yield "ranks", f"rank {slowest} computes {slower[slowest]:.1f} % longer than the fastest"
    for name, reading in _readings(live)[:MAX_DEVICES]:
        values = ((getattr(reading, field), unit, scale) for field, (unit, scale) in _READINGS.items())
        yield name, ", ".join(f"{number(value / scale)} {unit}" for value, unit, scale in values if value is not None)
    if live.elapsed_s is not None:
        yield "elapsed", format_duration(live.elapsed_s)
    if live.left_s is not None:
        # a target may end a full run sooner
        about = "at most about" if live.plan and live.plan.limits.full else "about"
        yield "left", f"{about} {format_duration(live.left_s)}"


def _quality(live: Live) -> str | None:
    evaluation, head = next(reversed(live.first.evaluations), None), live.folder.head
    if evaluation is None or head is None or live.plan is None or head.target.name not in evaluation.values:
        return None
    target, value = head.target, evaluation.values[head.target.name]
    known = value is not None and math.isfinite(value)
    shown = with_unit(value, target.unit, 4) if known and value is not None else "is not finite"
    goal = with_unit(float(live.plan.recipe["target"]), target.unit)
    return f"{quality_word(target.name)} {shown} at step {evaluation.step}, target {goal}"


def _readings(live: Live) -> list[tuple[str, DeviceReading]]:
    """What the sensors of each device read last."""
    nodes = live.folder.nodes
    return [
        (
            f"{node.begin.host} {reading.device}" if len(nodes) > 1 and node.begin else f"device {reading.device}",
            reading,
        )
        for node in nodes
        for reading in sorted(node.last, key=lambda reading: reading.device)
    ]


def to_json(live: Live) -> dict[str, Any]:
    """A document for programs, to be encoded by msgspec; unknown values are null."""
    speed, slower = live.speed(), live.slower_percent()
    evaluation = next(reversed(live.first.evaluations), None)
    return {
        "kind": "trainmark watch",
        "run_id": live.folder.run_id,
        **{name: getattr(live.plan, name, None) for name in PLAN_FIELDS},
        "item": live.item,
        "phase": live.phase,
        "step": live.step,
        "planned_step": live.planned,
        "items_per_s": speed[0] if speed else None,
        "interval": speed[1] if speed else None,
        "loss": live.loss,
        "evaluation": {"step": evaluation.step, "values": evaluation.values} if evaluation else None,
        "elapsed_s": live.elapsed_s,
        "left_s": live.left_s,
        "silent_s": live.silent_s,
        "note": live.note,
        "ranks": [
            {"rank": rank.rank, "host": rank.host, "step": rank.step, "slower_percent": slower.get(rank.rank)}
            for rank in live.ranks
        ],
        "devices": dict(_readings(live)),
    }
