"""Says a run in one sentence, and its key figures in a few."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.report.html.element import Markup, el
from trainmark.spec.format import (
    NOTHING,
    device_name,
    goal,
    half_width_percent,
    number,
    shown_quality,
    verdict,
)
from trainmark.spec.language import Say
from trainmark.spec.metrics import Quantity
from trainmark.spec.record import Record
from trainmark.workloads import quality_word, title_of


def trained(record: Record) -> str:
    """The network, and by which recipe unless it is the published one: a smoke run trains a far smaller network."""
    title, recipe = title_of(record), record.plan.recipe_name
    return title if recipe == "reference" else f"{title} ({recipe})"


def sentence(record: Record, say: Say) -> str:
    """The run's main number in words; a run without one says why."""
    words = {"device": device_name(record), "workload": trained(record)}
    p_core = record.metrics.get("p_core")
    if record.status != "valid":
        return say("{device} did not finish {workload} validly: {ended}").format(**words, ended=record.ended)
    if p_core is None or p_core.value is None:
        return say("{device} trained {workload}, but no step was counted").format(**words)
    rate, half = f"{number(p_core.value)} {p_core.unit}", half_width_percent(p_core)
    if half is None:
        return say("{device} trained {workload} at {rate}, with too few steps for an interval").format(
            **words, rate=rate
        )
    return say("{device} trained {workload} at {rate} ±{half} %").format(**words, rate=rate, half=number(half, 2))


def facts(record: Record, say: Say) -> Markup:
    """Where, how and when, in a line of small words."""
    plan = record.plan
    data = say("synthetic data") if plan.data.synthetic else plan.data.name
    words = [
        say("{topology} devices").format(topology=plan.topology),
        record.precision,
        say("recipe {name}").format(name=plan.recipe_name),
        data,
        record.created[:16].replace("T", " "),
    ]
    return el("p", [el("span", word) for word in words], el("code", record.run_id), class_="facts")


def figures(record: Record, say: Say) -> Markup:
    """The numbers most people came for."""
    return el("dl", [_figure(*found) for found in _figures(record, say)], class_="figures")


def shown_verdict(record: Record, say: Say) -> str:
    words = {
        "reached": say("reached"),
        "missed": say("missed"),
        "short run": say("short run"),
        "not finite": say("not finite"),
        "not evaluated": say("not evaluated"),
    }
    return words[verdict(record)]


def shown_status(status: str, say: Say) -> str:
    return {"valid": say("valid"), "invalid": say("invalid"), "incomplete": say("incomplete")}.get(status, status)


def spread(quantity: Quantity) -> str:
    half = half_width_percent(quantity)
    return "" if half is None else f"±{number(half, 2)} %"


def _figures(record: Record, say: Say) -> Iterator[tuple[str, str, str, str]]:
    """Word, number, unit, remark."""
    for alias, remark in (
        ("p_core", say("computing only")),
        ("p_train", say("with data wait")),
        ("p_whole", say("with evaluation")),
    ):
        quantity = record.metrics.get(alias)
        known = quantity is not None and quantity.value is not None
        around = spread(quantity) if quantity is not None and known else ""
        yield alias, *_number(record, alias), f"{remark} {around}".rstrip() if known else _why(record, alias, say)
    reached = f"{shown_verdict(record, say)}, {goal(record.quality)}"
    yield quality_word(record.quality.name), shown_quality(record.quality), "", reached
    yield "e2e_time", *_number(record, "e2e_time"), say("all phases")
    memory, total = _number(record, "mem"), _number(record, "mem_total")
    of_total = say("of {total} GiB").format(total=total[0]) if total[1] else ""
    yield "mem", *memory, of_total if memory[1] else _why(record, "mem", say)
    yield "mfu", *_number(record, "mfu"), say("of the peak") if _known(record, "mfu") else _why(record, "mfu", say)
    mean = say("a device, mean")
    yield "power", *_number(record, "power"), mean if _known(record, "power") else _why(record, "power", say)


def _figure(word: str, value: str, unit: str, remark: str) -> Markup:
    main = "main" if word == "p_core" else None
    shown = el("dd", el("b", value), el("span", unit, class_="unit") if unit else None, class_="value")
    return el("div", el("dt", word), shown, el("dd", remark, class_="remark"), class_=main)


def _known(record: Record, alias: str) -> bool:
    quantity = record.metrics.get(alias)
    return quantity is not None and quantity.value is not None


def _number(record: Record, alias: str) -> tuple[str, str]:
    quantity = record.metrics.get(alias)
    if quantity is None or quantity.value is None:
        return NOTHING, ""
    return number(quantity.value), quantity.unit


def _why(record: Record, alias: str, say: Say) -> str:
    quantity = record.metrics.get(alias)
    reason = quantity.unavailable if quantity else None
    return say(reason) if reason else say("not on the record")
