"""Your machine beside published ones: throughput of one device each, on one logarithmic scale per workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.analysis.beside import (
    PublishedSpeed,
    is_hand_written,
    is_published_network,
    list_speeds,
    rate_per_device,
)
from trainmark.analysis.peaks import estimate_mfu
from trainmark.record.format import NOTHING, device_name, drop_noisy, number
from trainmark.record.language import Say
from trainmark.record.plan import Topology
from trainmark.record.published_row import PublishedRow, Source
from trainmark.record.record import Record
from trainmark.view.chart import Axis, Dot, draw_dots, draw_ruler, log_axis
from trainmark.view.element import Child, Markup, el
from trainmark.view.headline import format_times
from trainmark.workloads import title

_MAX_OWN = 12


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One machine's speed per device."""

    name: str
    facts: str
    rate: float
    metric: str
    """Which throughput: pages give different ones."""
    spread: tuple[float, float] | None = None
    times: float | None = None
    """Ratio to the base run, by the same throughput."""
    own: bool = False
    doubts: tuple[str, ...] = ()
    why: str = ""
    """The audit's findings."""
    source: Source | None = None


ORDER = 1


def draw(records: Sequence[Record], rows: Sequence[PublishedRow], say: Say) -> Markup | None:
    """One table of dots per workload that was both run and published."""
    published = list_speeds(rows)
    figures = [
        _draw_workload(workload, records, published, say)
        for workload in dict.fromkeys(r.plan.workload for r in records)
    ]
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


def _draw_workload(
    workload: str, records: Sequence[Record], published: Sequence[PublishedSpeed], say: Say
) -> Markup | None:
    alike = [record for record in records if record.plan.workload == workload and is_published_network(record)]
    alike = [record for record in alike if rate_per_device(record, "p_core") is not None]
    theirs = [speed for speed in published if speed.row.workload == workload]
    if not alike or not theirs:
        return None
    base = max(alike, key=lambda record: rate_per_device(record, "p_core") or 0.0)
    own = [_place_record(record, base, say) for record in alike[:_MAX_OWN]]
    others = [_place_published(speed, base, say) for speed in theirs]
    places = sorted([*own, *others], key=lambda place: -place.rate)
    rates = log_axis([place.rate for place in places])
    unit = say("{item}/s per device").format(item=base.item)
    left_out = sum(record.plan.workload == workload for record in records) - len(own)
    sources = list(dict.fromkeys(place.source for place in places if place.source))
    heads: list[Child] = [el("th", say("Machine"), scope="col"), el("td", draw_ruler(rates), class_="room")]
    numbers = ((say("Throughput"), "number"), (say("Which"), "which"), (say("Times yours"), "number"))
    heads += [el("th", word, scope="col", class_=kind) for word, kind in (*numbers, (say("Source"), "number"))]
    keys = [("own", say("measured by trainmark")), ("other", say("published"))]
    if any(place.doubts for place in others):
        keys.append(("doubted", say("published, and doubted by the audit")))
    definition = say(
        "p_core counts computing only, p_train also waiting for data, p_whole also evaluation; each row is held "
        "against yours by its own."
    )
    more = say("{count} runs are not in it: another network, not valid, or one of many.").format(count=left_out)
    dated = [(source, f", {source.date}" if source.date else "") for source in sources]
    body = [_draw_row(place, rates, unit, sources) for place in places]
    return el(
        "figure",
        el("figcaption", el("b", title(workload)), el("span", unit, class_="unit")),
        el("table", el("thead", el("tr", heads)), el("tbody", body), class_="strips places"),
        el("p", [_draw_key(kind, word) for kind, word in keys], class_="keys"),
        el("p", definition, class_="note"),
        el("p", more, class_="note") if left_out else None,
        el("ol", [el("li", _link(source.title, source), date) for source, date in dated], class_="sources"),
    )


def _draw_row(place: _Place, axis: Axis, unit: str, sources: Sequence[Source]) -> Markup:
    parts = [f"{place.name}, {place.facts}: {number(place.rate)} {unit} ({place.metric})", *place.doubts]
    parts += [part for part in (place.why, place.source.title if place.source else "") if part]
    dot = Dot(
        at=place.rate,
        spread=place.spread,
        own=place.own,
        doubted=bool(place.doubts) and not place.own,
        tip=". ".join(parts),
        leads_to=_web_address(place.source),
    )
    times = NOTHING if place.times is None else number(place.times, 2)
    if place.times is not None and place.times >= 1:
        times = format_times(place.times, 1.0)
    source = _link(f"[{sources.index(place.source) + 1}]", place.source) if place.source else None
    marks: list[Child] = [el("small", doubt, class_="doubt") for doubt in place.doubts]
    return el(
        "tr",
        el("th", place.name, el("small", place.facts), marks, scope="row"),
        el("td", draw_dots([dot], axis), class_="room"),
        el("td", number(place.rate), class_="number"),
        el("td", place.metric, class_="which"),
        el("td", times, class_="number"),
        el("td", source, class_="number"),
        class_="own" if place.own else None,
    )


def _link(text: str, source: Source) -> Markup:
    """A link to a source page, or its plain text where it has no web address."""
    address = _web_address(source)
    return el("a", text, href=address, rel="noreferrer") if address else el("span", text)


def _web_address(source: Source | None) -> str | None:
    return source.address if source and source.address.startswith(("https://", "http://")) else None


def _draw_key(kind: str, word: str) -> Markup:
    mark = el("svg", el("circle", cx=7, cy=7, r=5, class_=kind), class_="swatch dots", aria_hidden="true")
    return el("span", mark, word)


def _place_record(record: Record, base: Record, say: Say) -> _Place:
    devices = Topology.parse(record.plan.topology).devices
    low_high = drop_noisy(record.metrics["p_core"].interval)
    used = record.metrics.get("mfu")
    rate = rate_per_device(record, "p_core") or 0.0
    above = used is not None and used.value is not None and used.value > 100
    by_hand = " · " + say("hand-written gradients") if is_hand_written(record) else ""
    return _Place(
        name=device_name(record),
        facts=f"{record.plan.topology} · {record.precision}{by_hand}",
        rate=rate,
        metric="p_core",
        times=rate / (rate_per_device(base, "p_core") or rate),
        spread=None if low_high is None else (low_high[0] / devices, low_high[1] / devices),
        own=True,
        doubts=(_describe_mfu(used.value, record.precision, say),) if above and used and used.value else (),
    )


def _place_published(speed: PublishedSpeed, base: Record, say: Say) -> _Place:
    row = speed.row
    batch = f" · bs={row.batch_per_device}" if row.batch_per_device is not None else ""
    ours, used = rate_per_device(base, speed.metric), estimate_mfu(row)
    doubts = []
    if row.findings:
        doubts.append(say("wrong by the audit") if row.is_wrong else say("doubtful by the audit"))
        if used is not None and any(finding.check == "mfu" for finding in row.findings):
            doubts.append(_describe_mfu(used, row.precision, say))
    return _Place(
        name=row.device,
        facts=f"{row.topology} · {row.precision}{batch}",
        rate=speed.rate,
        metric=speed.metric,
        times=speed.rate / ours if ours else None,
        doubts=tuple(doubts),
        why=" ".join(finding.sentence for finding in row.findings),
        source=row.source,
    )


def _describe_mfu(used: float, precision: str, say: Say) -> str:
    return say("mfu {share} % of the {precision} peak").format(share=number(used), precision=precision)
