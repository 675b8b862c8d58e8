"""What a run found out about itself: the arithmetic of its first step, the batches it tried, its links, its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmark.report import precision_text
from trainmark.report.html import axis, line_chart
from trainmark.report.html.element import Child, Markup, el
from trainmark.spec import links
from trainmark.spec.format import NOTHING, half_width_percent, number
from trainmark.spec.language import Say
from trainmark.spec.metrics import METRICS
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology


def precision(record: Record, say: Say) -> Markup | None:
    """What the watched step was really computed in."""
    pairs = precision_text.precision(record.environment.precision)
    if not pairs:
        return None
    names = {
        "ran": say("ran"),
        "products": say("products"),
        "weights": say("weights"),
        "autocast": say("autocast"),
        "tf32": say("tf32"),
        "loss scale": say("loss scale"),
    }
    return el(
        "section",
        el("h3", say("Precision, as the first step was really computed")),
        _pairs((names.get(name, name), value) for name, value in pairs),
        class_="card",
    )


def fill(record: Record, say: Say) -> Markup | None:
    """The batches that were tried, as a curve."""
    found = record.environment.fill
    tries = found.curve if found else ()
    fitting = [entry for entry in tries if entry.items_per_s and not entry.unfit]
    if found is None or not fitting:
        return None
    said = say("{batch} per device was chosen; {reason}").format(batch=found.batch_per_device, reason=found.reason)
    rates = [entry.items_per_s for entry in fitting]
    unit = f"{record.item}/s"
    rows = []
    for entry in tries:
        memory = NOTHING if entry.memory_bytes is None else number(entry.memory_bytes / 2**30)
        rate = number(entry.items_per_s) if entry.items_per_s else NOTHING
        rows.append([str(entry.batch), rate, memory, str(entry.unfit)])
    return line_chart.draw(
        line_chart.Chart(
            title=say("Largest useful batch"),
            said=said,
            x=axis.doubling([entry.batch for entry in fitting]),
            y=axis.linear(rates, zero=True),
            x_name=say("batch per device"),
            y_name=unit,
            y_unit=unit,
            lines=[
                line_chart.Line(
                    name=unit,
                    points=[(entry.batch, entry.items_per_s) for entry in fitting],
                    color=4,
                    dots=True,
                )
            ],
            data=line_chart.Data(heads=[say("batch"), unit, say("memory GiB"), say("why not")], rows=rows),
            note=said,
            whole_x=True,
        ),
        say,
    )


def metrics(record: Record, say: Say) -> Markup:
    """Every number of the record with its interval and formula, or why it is missing."""
    rows = []
    for alias in [*METRICS, *(alias for alias in record.metrics if alias not in METRICS)]:
        if (quantity := record.metrics.get(alias)) is None:
            continue
        known = quantity.value is not None
        half = half_width_percent(quantity)
        formula = METRICS[alias].formula if alias in METRICS and known else quantity.unavailable or ""
        rows.append(
            el(
                "tr",
                el("th", alias, scope="row"),
                el("td", number(quantity.value, 4) if quantity.value is not None else NOTHING, class_="number"),
                el("td", quantity.unit if known else ""),
                el("td", "" if half is None else f"±{number(half, 2)} %", class_="number"),
                el("td", say(formula)),
            )
        )
    heads = (say("Metric"), say("Value"), say("Unit"), say("95 % interval"), say("Formula, or why it is missing"))
    return el(
        "details",
        el("summary", say("All metrics")),
        el("p", say("Throughputs cover {coverage}.").format(coverage=record.coverage), class_="note"),
        el(
            "div",
            el(
                "table",
                el("thead", el("tr", [el("th", head, scope="col") for head in heads])),
                el("tbody", rows),
            ),
            class_="scroll",
        ),
        class_="fold",
    )


def plan(record: Record, say: Say) -> Markup:
    """What was asked for, and what differs from the reference recipe."""
    asked = record.plan
    data = asked.data.name + (f", {say('synthetic data')}" if asked.data.synthetic else "")
    pairs: list[tuple[str, Child]] = [
        (say("workload"), asked.workload),
        *([(say("workload from"), str(asked.workload_source))] if asked.workload_source else []),
        (say("recipe"), asked.recipe_name),
        (say("topology"), asked.topology),
        (say("precision asked for"), asked.precision),
        (say("platform"), asked.platform),
        (say("data"), data),
        (say("runs until"), str(asked.limits)),
        (say("fingerprint"), el("code", asked.fingerprint[:16])),
    ]
    pairs += [
        (change.name, say("{actual}; the reference has {reference}").format(**_sides(change.actual, change.reference)))
        for change in asked.deviations
    ]
    return el("details", el("summary", say("Plan")), _pairs(pairs), class_="fold")


def environment(record: Record, say: Say) -> Markup | None:
    """The machine and its software, as they were found."""
    plain = record.environment.to_json()
    rest = {
        name: value for name, value in plain.items() if name not in ("link", "precision", "fill")
    }  # those have places of their own
    shown: list[Child] = []
    if measured := record.environment.link:
        topology = Topology.parse(record.plan.topology)
        said = links.summary(measured, ranks=topology.devices, hosts=topology.nodes)
        shown.append(el("p", said, class_="note"))
    if rest:
        shown.append(_nested(rest))
    return el("details", el("summary", say("Environment")), shown, class_="fold") if shown else None


def _sides(actual: object, reference: object) -> dict[str, str]:
    return {"actual": _plain(actual), "reference": _plain(reference)}


def _pairs(pairs: Iterable[tuple[str, Child]]) -> Markup:
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="pairs")


def _nested(value: Mapping[str, Any]) -> Markup:
    return _pairs(
        (str(name), _nested(entry) if isinstance(entry, Mapping) else _plain(entry)) for name, entry in value.items()
    )


def _plain(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(entry) for entry in value) or NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)
