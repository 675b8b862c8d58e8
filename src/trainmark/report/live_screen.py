"""Draws a run that goes on: a frame for a terminal, a line for a log, a document for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from trainmark.report.live import Live, phase, thinned
from trainmark.report.terminal import TerminalWriter
from trainmark.spec import escape
from trainmark.spec.format import goal, number, plus_minus, with_unit
from trainmark.workloads import quality_word

if TYPE_CHECKING:
    from trainmark.spec.events import DeviceReading
    from trainmark.spec.record import Quality, Record
    from trainmark.spec.run_folder import NodeSamples

ASKED = ("workload", "recipe_name", "platform", "topology", "precision")
MOST_RANKS = 6
MOST_DEVICES = 8
SILENT_S = 15.0
"""Ranks write about twice a second, or once a step: a longer silence is worth a word."""
SILENT_STEPS = 3
_GIB = 2.0**30
_READINGS = {"power_w": ("W", 1.0), "temperature_c": ("°C", 1.0), "memory_used_bytes": ("GiB", _GIB)}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a look at a run found."""

    live: Live
    silent_s: float | None = None
    """How long no rank has written; None where the run's folder cannot tell."""
    gone: bool = False
    """None of the run's processes is there any more, and no record."""

    @property
    def note(self) -> str | None:
        """What is not as it should be, in words."""
        if self.live.failure:
            return self.live.failure
        if self.gone:
            return "its processes are gone, and it has left no record"
        if self.silent_s is None or self.live.over:
            return None
        silent = self.silent_s >= max(SILENT_S, SILENT_STEPS * self.live.usual_s)
        return f"no event for {duration(self.silent_s)}" if silent else None


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def line(frame: Frame) -> str:
    """All that matters in one line, for a log; safe to print."""
    live = frame.live
    parts = [f"step {_step(live)}"] if live.first.compute_ns else []
    if live.loss is not None:
        parts.append(f"loss {live.loss:.4f}")
    parts += [said for said in (_speed(live), _quality(live), frame.note) if said]
    elapsed = "" if live.elapsed_s is None else f" [{live.elapsed_s:5.0f} s]"
    if live.left_s is not None:
        parts.append(f"{_left(live)} left")
    what = live.plan.workload if live.plan else live.run_id
    return escape.terminal(f"{what}{elapsed} {live.phase:8} {'  '.join(parts)}".rstrip())


def draw(frame: Frame, *, width: int, color: bool, encoding: str) -> str:
    """The whole picture, a fact a line."""
    from trainmark.report.describe import PLAIN_SPARKS, SPARKS, spark

    live = frame.live
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    asked = [str(getattr(live.plan, name)) for name in ASKED] if live.plan else ["a run that begins"]
    writer.put(writer.text(" · ".join(asked), "bold"))
    writer.put(writer.text(live.run_id, "dim"))
    pairs = [("phase", _phase(live)), ("step", _step(live))]
    if said := _speed(live):
        pairs.append(("speed", said))
    if live.loss is not None:
        heights = SPARKS if escape.carries(encoding, SPARKS) else PLAIN_SPARKS
        curve = spark(thinned(live.first.loss), max(8, min(48, width - 30)), heights)
        pairs.append(("loss", f"{number(live.loss, 4)}  {curve}"))
    if said := _quality(live):
        pairs.append(("quality", said))
    if len(live.ranks) > 1 and live.first.compute_ns:
        pairs.append(("ranks", _ranks(live)))
    pairs += [("device" if index == 0 else "", said) for index, said in enumerate(_devices(live))]
    if live.elapsed_s is not None:
        pairs.append(("elapsed", duration(live.elapsed_s)))
    if live.left_s is not None:
        pairs.append(("left", _left(live)))
    writer.put_pairs(pairs, indent=0, folds=False)
    if frame.note:
        writer.put(writer.text(frame.note, "bold red" if live.failure or frame.gone else "yellow"))
    return writer.drawn()


def result(record: Record) -> str:
    """How a run came out, in one line; safe to print."""
    from trainmark.spec.format import device_name, shown_quality, verdict

    plan = record.plan
    parts = [f"{record.status}: {record.ended}"]
    p_core = record.metrics.get("p_core")
    if p_core is not None and p_core.value is not None:
        parts.append(f"p_core {number(p_core.value)} {p_core.unit} {plus_minus(p_core.interval)}".rstrip())
    if record.quality.value is not None:
        name = quality_word(record.quality.name)
        parts.append(f"{name} {shown_quality(record.quality)}, target {goal(record.quality)}: {verdict(record)}")
    parts.append(f"{len(record.doubts)} doubts")
    what = f"{plan.workload} {plan.recipe_name} {device_name(record)} {plan.topology} {record.precision}"
    return escape.terminal(f"{what}: {'; '.join(parts)}")


def document(frame: Frame) -> dict[str, Any]:
    """The same for programs; what is not known is null."""
    live, speed, head = frame.live, frame.live.speed(), frame.live.folder.head
    late = {entry.rank: entry for entry in live.lateness()}
    found = {
        "kind": "trainmark watch",
        "run_id": live.run_id,
        **{name: getattr(live.plan, name, None) for name in ASKED},
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
        "silent_s": frame.silent_s,
        "note": frame.note,
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
    return {name: _finite(value) for name, value in found.items()}


def _phase(live: Live) -> str:
    said = live.phase
    if said == "evaluate" and live.first.samples:
        said += f", {live.first.samples} samples seen by rank {live.first.rank}"
    if len(live.ranks) < live.devices:
        said += f"; {len(live.ranks)} of {live.devices} ranks are heard here"
    restarts = max((rank.restart for rank in live.ranks), default=0)
    return f"{said}; started again {restarts} times" if restarts else said


def _step(live: Live) -> str:
    return f"{live.step}" if live.planned is None else f"{live.step} of {live.planned}"


def _speed(live: Live) -> str | None:
    speed = live.speed()
    if speed is None:
        return None
    shown = f"{number(speed.items_per_s)} {live.item or 'items'}/s {plus_minus(speed.interval)}".rstrip()
    return f"{shown} over {speed.steps} steps"


def _quality(live: Live) -> str | None:
    evaluation = live.evaluation
    quality = _target(live)
    if evaluation is None or quality is None or quality.name not in evaluation.values:
        return None
    from trainmark.spec.target import reached, telling_digits

    value = evaluation.values[quality.name]
    if value is None or not math.isfinite(value):
        return f"{quality_word(quality.name)} is not finite at step {evaluation.step}"
    shown = with_unit(value, quality.unit, telling_digits(value, quality.goal, quality.better))
    verdict = "reached" if reached(value, quality.goal, quality.better) else "not yet"
    at = f"at step {evaluation.step}"
    return f"{quality_word(quality.name)} {shown} {at}, target {goal(quality)}: {verdict}"


def _target(live: Live) -> Quality | None:
    from trainmark.spec.record import Quality

    if live.plan is None or live.folder.head is None:
        return None
    target = live.folder.head.target
    return Quality(name=target.name, unit=target.unit, goal=float(live.plan.recipe["target"]), better=target.better)


def _ranks(live: Live) -> str:
    found = live.lateness()
    said = []
    for late in found[:MOST_RANKS]:
        percent = "" if late.percent is None else f" +{late.percent:.1f} %"
        steps = f" {late.steps} steps behind" if late.steps else ""
        said.append(f"{late.rank}{percent}{steps}")
    more = f" and {len(found) - MOST_RANKS} more" if len(found) > MOST_RANKS else ""
    return f"{', '.join(said)}{more} (own computing, beside the fastest)"


def _left(live: Live) -> str:
    # a target may end a full run sooner
    about = "at most about" if live.plan and live.plan.limits.full else "about"
    return f"{about} {duration(live.left_s or 0.0)}"


def _devices(live: Live) -> Iterator[str]:
    nodes = live.folder.nodes
    several = sum(len(node.last) for node in nodes) > 1
    shown = 0
    for node in nodes:
        for reading in sorted(node.last, key=lambda reading: reading.device):
            shown += 1
            if shown <= MOST_DEVICES and (said := _reading(reading)):
                where = f"{node.begin.host} " if len(nodes) > 1 and node.begin else ""
                yield f"{where}{reading.device}: {said}" if several else said
        if not node.last and (missing := _missing(node)):
            yield missing
    if shown > MOST_DEVICES:
        yield f"and {shown - MOST_DEVICES} more"


def _reading(reading: DeviceReading) -> str:
    found = [
        f"{number(value / scale)} {unit}"
        for name, (unit, scale) in _READINGS.items()
        if (value := getattr(reading, name)) is not None
    ]
    if reading.utilisation_percent is not None:
        found.append(f"{number(reading.utilisation_percent)} % busy")
    return ", ".join(found)


def _missing(node: NodeSamples) -> str | None:
    reasons = sorted(set(node.unavailable.values()))
    return f"unavailable: {'; '.join(reasons)}" if reasons else None


def _finite(value: Any) -> Any:
    """As JSON can carry it: what is not finite is null, and the word that says which event this was is not shown."""
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items() if name != "event"}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
