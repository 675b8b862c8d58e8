"""Renders a running training: a frame for a terminal, a line for a log, a document for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from trainmark.record import escape, statistics
from trainmark.record.format import device_name, format_goal, format_interval, format_quality, number, with_unit
from trainmark.record.numbers import digits_to_tell_apart, meets_goal
from trainmark.record.plan import Plan, Topology
from trainmark.record.record import Quality
from trainmark.record.run_folder import RankLog, RunFolder
from trainmark.record.time_left import RECENT_STEPS, time_left_s
from trainmark.view.describe import PLAIN_SPARKS, SPARKS, draw_spark
from trainmark.view.terminal import TerminalWriter
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.record.events import DeviceReading, Evaluated
    from trainmark.record.record import Record

PLAN_FIELDS = ("workload", "recipe_name", "platform", "topology", "precision")
MAX_RANKS = 6
MAX_DEVICES = 8
SILENT_S = 15.0
"""Ranks write about twice per second, or once per step: a longer silence is reported."""
SILENT_STEPS = 3
_READINGS = {
    "power_w": ("W", 1.0),
    "temperature_c": ("°C", 1.0),
    "memory_used_bytes": ("GiB", 2.0**30),
    "utilisation_percent": ("% busy", 1.0),
}


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
    """More compute time than the fastest rank; None where nothing can be compared yet."""


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run so far."""

    folder: RunFolder
    silent_s: float | None = None
    """How long no rank has written; None where that is unknown."""
    gone: bool = False
    """The run's processes have ended without a record."""

    @property
    def note(self) -> str | None:
        """What is wrong, as a sentence."""
        if self.failure:
            return self.failure
        if self.gone:
            return "its processes are gone, and it has left no record"
        if self.silent_s is None or self.over:
            return None
        silent = self.silent_s >= max(SILENT_S, SILENT_STEPS * self.usual_s)
        return f"no event for {format_duration(self.silent_s)}" if silent else None

    @property
    def run_id(self) -> str:
        return self.folder.run_id

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
    def evaluation(self) -> Evaluated | None:
        """The last one."""
        return self.first.evaluations[-1] if self.first.evaluations else None

    @property
    def phase(self) -> str:
        """Phase of the first rank, or `failed` if any rank failed."""
        return "failed" if any(rank.failed for rank in self.ranks) else phase(self.first)

    @property
    def over(self) -> bool:
        """Every known rank has ended."""
        return bool(self.ranks) and all(rank.end or rank.failed for rank in self.ranks)

    @property
    def failure(self) -> str | None:
        if self.folder.fault:
            return self.folder.fault.sentence
        return next((f"rank {rank.rank}: {rank.failed.sentence}" for rank in self.ranks if rank.failed), None)

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
    def usual_s(self) -> float:
        """Duration of the longest recent step."""
        recent, log = slice(-RECENT_STEPS, None), self.first
        taken = zip(log.wait_ns[recent], log.compute_ns[recent], strict=True)
        return max((wait + compute for wait, compute in taken), default=0) / 1e9

    @property
    def left_s(self) -> float | None:
        """Estimated time left; None where that is unknown."""
        if self.plan is None or self.phase not in ("train", "evaluate"):
            return None
        return time_left_s(self.plan, self.first, step=self.step, elapsed_s=self.elapsed_s)

    @property
    def loss(self) -> float | None:
        """Mean over ranks of the last step that all have finished."""
        if not (common := self._common()):
            return None
        last = [rank.loss[part][-1] for rank, part in common]
        known = [loss for loss in last if loss is not None and math.isfinite(loss)]
        return sum(known) / len(known) if len(known) == len(last) else None

    def speed(self) -> Speed | None:
        """Over the steady part of recent steps; ranks on other machines that are not visible count like these."""
        if not (common := self._common()):
            return None
        whole_s = [(np.array(rank.wait_ns[part]) + np.array(rank.compute_ns[part])) / 1e9 for rank, part in common]
        step_s = max(whole_s, key=lambda taken: float(taken.sum()))
        items = np.sum([rank.items[part] for rank, part in common], axis=0) * (self.devices / len(common))
        start = statistics.find_steady_start(step_s, items)
        step_s, items = step_s[start:], items[start:]
        if step_s.sum() <= 0:
            return None
        found = statistics.mean_interval(step_s, items)
        rate = float(items.sum() / step_s.sum())
        return Speed(rate, (found.low, found.high) if found else None, int(step_s.size))

    def lateness(self) -> list[Late]:
        """The lateness of every rank, the latest first."""
        furthest = max((rank.step for rank in self.ranks), default=0)
        # all steps take equally long, as fast ranks wait in the exchange: compare what is left without it
        own = [sum(rank.compute_ns[part]) - sum(rank.exchange_ns[part]) for rank, part in self._common()]
        fastest = min(own, default=0)
        found = [
            Late(rank.rank, furthest - rank.step, 100 * (spent / fastest - 1) if fastest > 0 and len(own) > 1 else None)
            for rank, spent in zip(self.ranks, own or [0] * len(self.ranks), strict=True)
        ]
        return sorted(found, key=lambda late: (-late.steps, -(late.percent or 0.0), late.rank))

    def _common(self) -> list[tuple[RankLog, slice]]:
        """Per rank, the recent steps that all ranks have finished; empty where there are none."""
        ranks = self.ranks
        high = min((rank.step for rank in ranks), default=0)
        low = max((max(rank.kept_from, rank.step - RECENT_STEPS) for rank in ranks), default=0)
        if low >= high:
            return []
        return [(rank, slice(low - rank.kept_from, high - rank.kept_from)) for rank in ranks]


def phase(rank: RankLog) -> str:
    """The phase of a rank; `finish` and `failed` are told from `train` by its events."""
    if rank.failed:
        return "failed"
    return "finish" if rank.phases_ns and rank.phase == "train" else rank.phase


def format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_line(live: Live) -> str:
    """All that matters in one line, for a log; safe to print."""
    parts = [f"step {_step(live)}"] if live.first.compute_ns else []
    if live.loss is not None:
        parts.append(f"loss {live.loss:.4f}")
    parts += [part for part in (_speed(live), _quality(live), live.note) if part]
    elapsed = "" if live.elapsed_s is None else f" [{live.elapsed_s:5.0f} s]"
    if live.left_s is not None:
        parts.append(f"{_format_left(live)} left")
    what = live.plan.workload if live.plan else live.run_id
    return escape.terminal(f"{what}{elapsed} {live.phase:8} {'  '.join(parts)}".rstrip())


def draw(live: Live, *, width: int, color: bool, encoding: str) -> str:
    """The whole frame, one fact per line."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    title = [str(getattr(live.plan, name)) for name in PLAN_FIELDS] if live.plan else ["a run that begins"]
    writer.put(writer.text(" · ".join(title), "bold"))
    writer.put(writer.text(live.run_id, "dim"))
    pairs = [("phase", _phase(live)), ("step", _step(live))]
    if said := _speed(live):
        pairs.append(("speed", said))
    if live.loss is not None:
        heights = SPARKS if escape.can_encode(encoding, SPARKS) else PLAIN_SPARKS
        known = [loss for loss in live.first.loss if loss is not None and math.isfinite(loss)]
        curve = draw_spark(known, max(8, min(48, width - 30)), heights)
        pairs.append(("loss", f"{number(live.loss, 4)}  {curve}"))
    if said := _quality(live):
        pairs.append(("quality", said))
    if len(live.ranks) > 1 and live.first.compute_ns:
        pairs.append(("ranks", _ranks(live)))
    pairs += [("device" if index == 0 else "", said) for index, said in enumerate(_devices(live))]
    if live.elapsed_s is not None:
        pairs.append(("elapsed", format_duration(live.elapsed_s)))
    if live.left_s is not None:
        pairs.append(("left", _format_left(live)))
    writer.put_pairs(pairs, indent=0, folds=False)
    if live.note:
        writer.put(writer.text(live.note, "bold red" if live.failure or live.gone else "yellow"))
    return writer.getvalue()


def format_result(record: Record) -> str:
    """The result of a run in one line; safe to print."""
    from trainmark.record.format import verdict

    plan = record.plan
    parts = [f"{record.status}: {record.ended}"]
    p_core = record.metrics.get("p_core")
    if p_core is not None and p_core.value is not None:
        parts.append(f"p_core {number(p_core.value)} {p_core.unit} {format_interval(p_core.interval)}".rstrip())
    if record.quality.value is not None:
        name = quality_word(record.quality.name)
        parts.append(
            f"{name} {format_quality(record.quality)}, target {format_goal(record.quality)}: {verdict(record)}"
        )
    parts.append(f"{len(record.doubts)} doubts")
    what = f"{plan.workload} {plan.recipe_name} {device_name(record)} {plan.topology} {record.precision}"
    return escape.terminal(f"{what}: {'; '.join(parts)}")


def to_json(live: Live) -> dict[str, Any]:
    """A document for programs; unknown values are null."""
    speed, head = live.speed(), live.folder.head
    late = {entry.rank: entry for entry in live.lateness()}
    found = {
        "kind": "trainmark watch",
        "run_id": live.run_id,
        **{name: getattr(live.plan, name, None) for name in PLAN_FIELDS},
        "item": live.item,
        "phase": live.phase,
        "over": live.over,
        "step": live.step,
        "planned_step": live.planned,
        "items_per_s": speed.items_per_s if speed else None,
        "interval": speed.interval if speed else None,
        "over_steps": speed.steps if speed else 0,
        "loss": live.loss,
        "evaluation": msgspec.to_builtins(live.evaluation),
        "target": {
            **(msgspec.to_builtins(head.target) if head else {}),
            "goal": live.plan.recipe.get("target") if live.plan else None,
        },
        "elapsed_s": live.elapsed_s,
        "left_s": live.left_s,
        "silent_s": live.silent_s,
        "note": live.note,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "phase": phase(rank),
                "step": rank.step,
                "steps_behind": late[rank.rank].steps,
                "slower_percent": late[rank.rank].percent,
                "failed": rank.failed.sentence if rank.failed else None,
            }
            for rank in live.ranks
        ],
        "devices": [
            {"host": node.begin.host if node.begin else "", **msgspec.to_builtins(reading)}
            for node in live.folder.nodes
            for reading in node.last
        ],
    }
    return {name: _replace_nonfinite(value) for name, value in found.items()}


def _phase(live: Live) -> str:
    said = live.phase
    if said == "evaluate" and live.first.samples:
        said += f", {live.first.samples} samples seen by rank {live.first.rank}"
    if len(live.ranks) < live.devices:
        said += f"; {len(live.ranks)} of {live.devices} ranks are visible here"
    restarts = max((rank.restart for rank in live.ranks), default=0)
    return f"{said}; restarted {restarts} times" if restarts else said


def _step(live: Live) -> str:
    return f"{live.step}" if live.planned is None else f"{live.step} of {live.planned}"


def _speed(live: Live) -> str | None:
    speed = live.speed()
    if speed is None:
        return None
    shown = f"{number(speed.items_per_s)} {live.item or 'items'}/s {format_interval(speed.interval)}".rstrip()
    return f"{shown} over {speed.steps} steps"


def _quality(live: Live) -> str | None:
    evaluation, head = live.evaluation, live.folder.head
    if evaluation is None or head is None or live.plan is None or head.target.name not in evaluation.values:
        return None
    target, aim = head.target, float(live.plan.recipe["target"])
    value, name = evaluation.values[target.name], quality_word(target.name)
    if value is None or not math.isfinite(value):
        return f"{name} is not finite at step {evaluation.step}"
    shown = with_unit(value, target.unit, digits_to_tell_apart(value, aim, target.better))
    verdict = "reached" if meets_goal(value, aim, target.better) else "not yet"
    wanted = format_goal(Quality(name=target.name, unit=target.unit, goal=aim, better=target.better))
    return f"{name} {shown} at step {evaluation.step}, target {wanted}: {verdict}"


def _ranks(live: Live) -> str:
    found = live.lateness()
    said = []
    for late in found[:MAX_RANKS]:
        percent = "" if late.percent is None else f" +{late.percent:.1f} %"
        steps = f" {late.steps} steps behind" if late.steps else ""
        said.append(f"{late.rank}{percent}{steps}")
    more = f" and {len(found) - MAX_RANKS} more" if len(found) > MAX_RANKS else ""
    return f"{', '.join(said)}{more} (compute time over the fastest)"


def _format_left(live: Live) -> str:
    # a target may end a full run sooner
    about = "at most about" if live.plan and live.plan.limits.full else "about"
    return f"{about} {format_duration(live.left_s or 0.0)}"


def _devices(live: Live) -> Iterator[str]:
    nodes = live.folder.nodes
    readings = [(node, reading) for node in nodes for reading in sorted(node.last, key=lambda reading: reading.device)]
    for node, reading in readings[:MAX_DEVICES]:
        if said := _reading(reading):
            where = f"{node.begin.host} " if len(nodes) > 1 and node.begin else ""
            yield f"{where}{reading.device}: {said}" if len(readings) > 1 else said
    for node in nodes:
        if not node.last and node.unavailable:
            yield f"unavailable: {'; '.join(sorted(set(node.unavailable.values())))}"
    if len(readings) > MAX_DEVICES:
        yield f"and {len(readings) - MAX_DEVICES} more"


def _reading(reading: DeviceReading) -> str:
    values = ((getattr(reading, name), unit, scale) for name, (unit, scale) in _READINGS.items())
    return ", ".join(f"{number(value / scale)} {unit}" for value, unit, scale in values if value is not None)


def _replace_nonfinite(value: Any) -> Any:
    """Makes a value valid JSON: not finite becomes null, and the event tag is removed."""
    if isinstance(value, Mapping):
        return {str(name): _replace_nonfinite(entry) for name, entry in value.items() if name != "event"}
    if isinstance(value, list):
        return [_replace_nonfinite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
