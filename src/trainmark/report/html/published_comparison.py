"""Your machine beside published ones: throughput of one device each, on one logarithmic scale a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.analysis.peaks import flops_per_item, mfu
from trainmark.report.html import axis
from trainmark.report.html.bars import Dot, dots, ruler
from trainmark.report.html.element import Child, Markup, el
from trainmark.spec.format import device_name, number
from trainmark.spec.language import Say
from trainmark.spec.published_row import PublishedRow
from trainmark.spec.record import Record
from trainmark.spec.topology import Topology
from trainmark.workloads import title

_MOST_OWN = 12
_SAME_WITHIN = 0.1
"""Published counts of FLOPs are rounded, and differ in what small layers they leave out."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One machine's speed, by one device."""

    name: str
    facts: str
    rate: float
    metric: str
    spread: tuple[float, float] | None = None
    own: bool = False
    doubts: tuple[str, ...] = ()
    source: str = ""


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """A table of dots for each workload that was both run and published."""
    figures = [_figure(workload, records, rows, say) for workload in dict.fromkeys(r.plan.workload for r in records)]
    if not any(figures):
        return None
    return el(
        "section",
        el("h2", say("Your machine beside published ones")),
        el(
            "p",
            say(
                "Throughput of one device. Published rows are as their pages label them; they have no intervals, and "
                "other recipes, data and software stand behind them."
            ),
            class_="note",
        ),
        figures,
        class_="beside",
    )


def _figure(workload: str, records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    alike = [record for record in records if record.plan.workload == workload and same_network(record)]
    own = [place for record in alike if (place := _of_record(record, say))]
    others = [place for row in rows if row.workload == workload if (place := _of_row(row, say))]
    if not own or not others:
        return None
    places = sorted([*own[:_MOST_OWN], *others], key=lambda place: -place.rate)
    rates = axis.logarithmic([place.rate for place in places])
    item = next(record.item for record in records if record.plan.workload == workload)
    unit = say("{item}/s a device").format(item=item)
    doubtful = any(place.doubts for place in places if not place.own)
    left_out = sum(record.plan.workload == workload for record in records) - len(own[:_MOST_OWN])
    return el(
        "figure",
        el("figcaption", el("b", title(workload)), el("span", unit, class_="unit")),
        el(
            "table",
            el(
                "thead",
                el(
                    "tr",
                    el("th", say("Machine"), scope="col"),
                    el("td", ruler(rates), class_="room"),
                    el("th", say("Throughput"), scope="col", class_="number"),
                ),
            ),
            el("tbody", [_row(place, rates, unit, say) for place in places]),
            class_="strips places",
        ),
        el("p", _key("own", say("measured by trainmark")), _key("other", say("published")),
           _key("doubted", say("published, and more than the labelled precision's peak")) if doubtful else None,
           class_="keys"),
        el("p", say("{count} runs are not in it: another network, not valid, or one of many.").format(count=left_out),
           class_="note") if left_out else None,
    )  # fmt: skip


def same_network(record: Record) -> bool:
    """Whether an item cost what it costs the published network: a small one for a quick look would seem very fast."""
    flops = record.environment.flops
    published = flops_per_item(record.plan.workload)
    if flops is None or published is None:
        return False
    return abs(flops.per_item / published - 1) < _SAME_WITHIN


def _row(place: _Place, axis: axis.Axis, unit: str, say: Say) -> Markup:
    parts = [f"{place.name}, {place.facts}: {number(place.rate)} {unit} ({place.metric})", *place.doubts]
    if place.source:
        parts.append(place.source)
    dot = Dot(
        at=place.rate,
        spread=place.spread,
        own=place.own,
        doubted=bool(place.doubts) and not place.own,
        tip=". ".join(parts),
    )
    marks: list[Child] = [el("small", doubt, class_="doubt") for doubt in place.doubts]
    return el(
        "tr",
        el("th", place.name, el("small", place.facts), marks, scope="row"),
        el("td", dots([dot], axis), class_="room"),
        el("td", number(place.rate), class_="number"),
        class_="own" if place.own else None,
    )


def _key(kind: str, word: str) -> Markup:
    mark = el("svg", el("circle", cx=7, cy=7, r=5, class_=kind), class_="swatch dots", aria_hidden="true")
    return el("span", mark, word)


def _of_record(record: Record, say: Say) -> _Place | None:
    quantity = record.metrics.get("p_core")
    if record.status != "valid" or quantity is None or not quantity.value:
        return None
    devices = Topology.parse(record.plan.topology).devices
    low_high = quantity.interval
    used = record.metrics.get("mfu")
    return _Place(
        name=device_name(record),
        facts=f"{record.plan.topology} · {record.precision}",
        rate=quantity.value / devices,
        metric="p_core",
        spread=None if low_high is None else (low_high[0] / devices, low_high[1] / devices),
        own=True,
        doubts=_above_peak(used.value if used else None, record.precision, say),
    )


def _of_row(row: PublishedRow, say: Say) -> _Place | None:
    for metric in ("p_core", "p_train", "p_whole"):
        rate = getattr(row, metric)
        if rate:
            break
    else:
        return None
    batch = f" · bs={row.batch_per_device}" if row.batch_per_device is not None else ""
    return _Place(
        name=row.device,
        facts=f"{row.topology} · {row.precision}{batch}",
        rate=rate / Topology.parse(row.topology).devices,
        metric=metric,
        doubts=_above_peak(mfu(row), row.precision, say),
        source=row.source.title,
    )


def _above_peak(used: float | None, precision: str, say: Say) -> tuple[str, ...]:
    if used is None or used <= 100:
        return ()
    return (say("mfu {share} %: more than the {precision} peak").format(share=number(used), precision=precision),)
