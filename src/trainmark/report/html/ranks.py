"""Shows how alike the ranks of a run were: each one's own computing, and its exchange with the others."""

from __future__ import annotations

from trainmark.report.html.bars import Bar, bars
from trainmark.report.html.element import Markup, el
from trainmark.spec.format import NOTHING, number
from trainmark.spec.language import Say
from trainmark.spec.record import Record

_MOST = 16


def draw(record: Record, say: Say) -> Markup | None:
    timeline = record.timeline
    if len(timeline.ranks) < 2 or not timeline.steps:
        return None
    known = timeline.exchange_known
    own = {trace.rank: timeline.own_ns(trace) for trace in timeline.ranks}
    exchange = {trace.rank: timeline.counted(trace).exchange_ns if known else 0 for trace in timeline.ranks}
    traces = sorted(timeline.ranks, key=lambda trace: -own[trace.rank])
    longest = max(own[rank] + exchange[rank] for rank in own) or 1
    fastest = min(own.values()) or 1
    rows = [
        el(
            "tr",
            el("th", str(trace.rank), el("small", trace.host) if trace.host else None, scope="row"),
            el(
                "td",
                bars(
                    [
                        Bar(start=0, length=own[trace.rank] / longest),
                        Bar(start=own[trace.rank] / longest, length=exchange[trace.rank] / longest, color=2),
                    ]
                ),
                class_="room",
            ),
            el("td", f"{number(own[trace.rank] / 1e9)} s", class_="number"),
            el("td", f"{number(exchange[trace.rank] / 1e9)} s" if known else NOTHING, class_="number"),
            el("td", f"+{100 * (own[trace.rank] / fastest - 1):.1f} %", class_="number"),
        )
        for trace in traces[:_MOST]
    ]
    heads = (say("computing"), say("exchange"), say("over the fastest"))
    return el(
        "figure",
        el("figcaption", el("b", say("Ranks")), el("span", say("slowest first"), class_="unit")),
        el(
            "table",
            el(
                "thead",
                el(
                    "tr",
                    el("th", say("Rank"), scope="col"),
                    el("td", class_="room"),
                    [el("th", head, scope="col", class_="number") for head in heads],
                ),
            ),
            el("tbody", rows),
            class_="strips",
        ),
        el("p", say("{count} faster ranks are not shown.").format(count=len(traces) - _MOST), class_="note")
        if len(traces) > _MOST
        else None,
        None if known else el("p", say("The exchange was not measured, so ranks that wait look busy."), class_="note"),
    )
