"""Where a run's time went, phase by phase, and what its evaluations found: lists for every view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say
from trainmark.record.record import Record

TAKEN = (
    ("e2e_time", ("startup", "init", "warmup", "restart")),
    ("p_whole", ("evaluate", "checkpoint")),
    ("p_train", ("data_wait", "other")),
    ("p_core", ()),
)
"""Each number, and the phases that leave its time before the next number's."""


@dataclass(frozen=True, kw_only=True)
class TimeStep:
    """One line on the way from all time to computing, in nanoseconds, so that it sums."""

    name: str
    ns: int
    start_ns: int = 0
    """Where its bar begins."""
    kind: Literal["total", "phase", "part"] = "phase"
    """A number's time, a phase that is taken off, or a part of the last number's."""


def split_time(record: Record) -> list[TimeStep]:
    """From all time to computing, as the slowest rank saw it, then exchange and computing where these are known. Phases
    that took nothing are left out; those we do not know go first."""
    if not record.timeline.ranks:
        return []
    phases = dict(record.timeline.phases_ns)
    known = {phase for _, taken in TAKEN for phase in taken} | {"compute"}
    left = sum(phases.values())
    found: list[TimeStep] = []
    for name, taken in TAKEN:
        found.append(TimeStep(name=name, ns=left, kind="total"))
        others = tuple(phase for phase in phases if phase not in known) if name == "e2e_time" else ()
        for phase in (*taken, *others):
            if phases.get(phase, 0):
                left -= phases[phase]
                found.append(TimeStep(name=phase, ns=phases[phase], start_ns=left))
    if (exchanged := exchange_ns(record)) is not None:
        own = left - exchanged
        found.append(TimeStep(name="exchange", ns=exchanged, start_ns=own, kind="part"))
        found.append(TimeStep(name="computing", ns=own, kind="part"))
    return found


def exchange_ns(record: Record) -> int | None:
    """What of computing only exchanged with other ranks, on the slowest rank; None where it was not measured."""
    timeline = record.timeline
    if len(timeline.ranks) < 2 or not timeline.exchange_known:
        return None
    return timeline.sum_counted(timeline.slowest).exchange_ns


def name_time_step(step: TimeStep, say: Say) -> str:
    """What a line of it is called."""
    words = {
        "startup": say("start-up"),
        "init": say("set-up"),
        "warmup": say("warm-up"),
        "data_wait": say("data wait"),
        "compute": say("computing"),
        "evaluate": say("evaluation"),
        "checkpoint": say("checkpoints"),
        "restart": say("restarts"),
        "other": say("other"),
    }
    parts = {"exchange": say("of it exchange"), "computing": say("of it computing")}
    if step.kind == "part":
        return parts[step.name]
    return step.name if step.kind == "total" else f"− {words.get(step.name, step.name)}"


def format_rate(step: TimeStep, record: Record) -> str:
    """The throughput that divides by a total; empty for the others, and where it is not known."""
    quantity = record.metrics.get(step.name) if step.kind == "total" and step.name != "e2e_time" else None
    return f"{number(quantity.value)} {quantity.unit}" if quantity is not None and quantity.value is not None else ""


def list_evaluations(record: Record, say: Say) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads and rows of every evaluation, oldest first, with all it measured."""
    history = record.quality.history
    names = list(dict.fromkeys(name for evaluation in history for name in evaluation.values))
    rows = [
        (
            str(evaluation.step),
            NOTHING if evaluation.epoch is None else number(evaluation.epoch),
            *(number(evaluation.values[name], 4) if name in evaluation.values else NOTHING for name in names),
            number(evaluation.samples, 6),
        )
        for evaluation in history
    ]
    return [say("step"), say("epoch"), *names, say("samples")], rows
