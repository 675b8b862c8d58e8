"""Leads from the end-to-end time to the time p_core divides by, phase by phase; in nanoseconds, so that it sums."""

from __future__ import annotations

from dataclasses import dataclass

from trainmark.report.html.bars import Bar, bars
from trainmark.report.html.element import Markup, el
from trainmark.spec.format import number
from trainmark.spec.language import Say
from trainmark.spec.record import Record

TAKEN = (
    ("e2e_time", ("startup", "init", "warmup", "restart")),
    ("p_whole", ("evaluate", "checkpoint")),
    ("p_train", ("data_wait", "other")),
    ("p_core", ()),
)
"""Each number, and the phases that leave its time before the next number's."""


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    ns: int
    start_ns: int = 0
    """Where its bar begins."""
    total: bool = False
    """A number's time, not a phase that is taken off."""


def steps(record: Record) -> list[Step]:
    """From all time to computing. Phases that took nothing are left out; those we do not know go first."""
    phases = dict(record.timeline.phases_ns)
    known = {phase for _, taken in TAKEN for phase in taken} | {"compute"}
    left = sum(phases.values())
    found: list[Step] = []
    for name, taken in TAKEN:
        found.append(Step(name=name, ns=left, total=True))
        others = tuple(phase for phase in phases if phase not in known) if name == "e2e_time" else ()
        for phase in (*taken, *others):
            if phases.get(phase, 0):
                left -= phases[phase]
                found.append(Step(name=phase, ns=phases[phase], start_ns=left))
    return found


def exchange_ns(record: Record) -> int | None:
    """What of computing only exchanged with other ranks, on the slowest rank; None where it was not measured."""
    timeline = record.timeline
    if len(timeline.ranks) < 2 or not timeline.exchange_known:
        return None
    return timeline.counted(timeline.slowest).exchange_ns


def draw(record: Record, say: Say) -> Markup | None:
    if not record.timeline.ranks:
        return None
    found = steps(record)
    whole = found[0].ns or 1
    rows = [_row(step, whole, record, say) for step in found]
    exchanged = exchange_ns(record)
    if exchanged is not None:
        compute = found[-1].ns
        for name, start, length, color in (
            ("exchange", compute - exchanged, exchanged, 2),
            ("computing", 0, compute - exchanged, 0),
        ):
            rows.append(_part(name, start, length, color, whole, say))
    table = el(
        "table",
        el("caption", say("As the slowest rank saw it; every step is exact to the nanosecond"), class_="note"),
        el(
            "thead",
            el(
                "tr",
                el("th", say("Phase"), scope="col"),
                el("td", class_="room"),
                el("th", say("Time"), scope="col", class_="number"),
                el("th", say("Share"), scope="col", class_="number"),
            ),
        ),
        el("tbody", rows),
        class_="strips waterfall",
    )
    return el("figure", el("figcaption", el("b", say("Where the time went"))), table)


def _row(step: Step, whole: int, record: Record, say: Say) -> Markup:
    bar = Bar(start=step.start_ns / whole, length=step.ns / whole, color=_color(step))
    remark = None
    if step.total and step.name != "e2e_time":
        quantity = record.metrics.get(step.name)
        if quantity is not None and quantity.value is not None:
            remark = el("small", f"{number(quantity.value)} {quantity.unit}")
    name = step.name if step.total else phase_word(step.name, say)
    return el(
        "tr",
        el("th", name if step.total else f"− {name}", remark, scope="row"),
        el("td", bars([bar]), class_="room"),
        el("td", f"{number(step.ns / 1e9)} s", class_="number"),
        el("td", f"{100 * step.ns / whole:.1f} %", class_="number"),
        class_="total" if step.total else None,
        data_ns=step.ns,
        data_kind="total" if step.total else "phase",
        data_name=step.name,
    )


def _color(step: Step) -> int:
    """What is taken off stands out, and so does what is left in the end."""
    if not step.total:
        return 1
    return 0 if step.name == "p_core" else 5


def _part(name: str, start: int, length: int, color: int, whole: int, say: Say) -> Markup:
    words = {"exchange": say("of it exchange"), "computing": say("of it computing")}
    return el(
        "tr",
        el("th", words[name], scope="row"),
        el("td", bars([Bar(start=start / whole, length=length / whole, color=color)]), class_="room"),
        el("td", f"{number(length / 1e9)} s", class_="number"),
        el("td", f"{100 * length / whole:.1f} %", class_="number"),
        class_="part",
        data_ns=length,
        data_kind="part",
        data_name=name,
    )


def phase_word(phase: str, say: Say) -> str:
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
    return words.get(phase, phase)
