"""Shows how alike the ranks of a run were: each one's own computing, and its exchange with the others."""

from __future__ import annotations

from trainmark.report.breakdown import MOST_RANKS, RankTime, rank_times
from trainmark.report.html.bars import Bar, bars
from trainmark.report.html.element import Markup, el
from trainmark.spec.format import NOTHING, number
from trainmark.spec.language import Say
from trainmark.spec.record import Record


def draw(record: Record, say: Say) -> Markup | None:
    found = rank_times(record)
    if not found:
        return None
    longest = max(one.own_ns + (one.exchange_ns or 0) for one in found) or 1
    known = found[0].exchange_ns is not None
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
            el("tbody", [_row(one, longest) for one in found[:MOST_RANKS]]),
            class_="strips",
        ),
        el("p", say("{count} faster ranks are not shown.").format(count=len(found) - MOST_RANKS), class_="note")
        if len(found) > MOST_RANKS
        else None,
        None if known else el("p", say("The exchange was not measured, so ranks that wait look busy."), class_="note"),
    )


def _row(one: RankTime, longest: float) -> Markup:
    exchange = one.exchange_ns or 0
    pieces = [
        Bar(start=0, length=one.own_ns / longest),
        Bar(start=one.own_ns / longest, length=exchange / longest, color=2),
    ]
    return el(
        "tr",
        el("th", str(one.rank), el("small", one.host) if one.host else None, scope="row"),
        el("td", bars(pieces), class_="room"),
        el("td", f"{number(one.own_ns / 1e9)} s", class_="number"),
        el("td", NOTHING if one.exchange_ns is None else f"{number(exchange / 1e9)} s", class_="number"),
        el("td", f"+{100 * one.over_fastest:.1f} %", class_="number"),
    )
