"""The page of a fleet: the verdict, heat maps of hosts and links, a table to sort, and lines to sign."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trainmark.features.fleet import view as fleet_view
from trainmark.features.fleet.outliers import Cable, FleetLinks
from trainmark.features.fleet.verdict import Fleet, FleetHost
from trainmark.record.format import NOTHING, number
from trainmark.record.language import Say, translator
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import STYLE, build_page, number_cell, page_footer, page_header, skip_link, sortable_table

FLEET_STYLE = ("trainmark.features.fleet", "fleet.css")
CELL = 22
"""Pixels of a heat map's cell with its gap."""
SMALL_CELL = 12
FEW_HOSTS = 48
"""More are drawn in small cells."""
MAX_IN_MATRIX = 64
"""With more hosts the pairs would be too small to see: cables are drawn instead."""
LEVELS = (0.03, 0.06, 0.12, 0.25)
"""Deviations from the median at which the colour changes."""
MORE_KEYS = (1, 3)
"""Values above the median have two colours, not four."""
TONES = {"accepted": "good", "not accepted": "bad", "inconclusive": "fair"}


def render(fleet: Fleet, *, language: str, trainmark: str, made: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    title = say("Acceptance of {count} hosts").format(count=len(fleet.hosts))
    facts = [fleet.workload, fleet.recipe_name, fleet.topology, fleet.precision, fleet.device, fleet.created[:10]]
    body = [
        skip_link(say),
        page_header(title, facts, say),
        el("main", _verdict(fleet, say), _maps(fleet, say), _hosts(fleet, say), _signature(say)),
        page_footer(trainmark, say, say("made {date}").format(date=made)),
    ]
    return build_page(
        f"{title} · trainmark",
        body,
        language=language,
        trainmark=trainmark,
        styles=(STYLE, FLEET_STYLE),
        class_="fleet",
    )


def _verdict(fleet: Fleet, say: Say) -> Markup:
    return el(
        "section",
        el(
            "div",
            el("h2", fleet_view.headline(fleet)),
            el("ul", [el("li", sentence) for sentence in fleet_view.describe(fleet)], class_="findings"),
            class_=f"card validity {TONES[fleet.outcome]}",
        ),
    )


# Heat maps


_Mark = tuple[int, int, str, str]
"""One cell: its column, row, class and tooltip."""


def _maps(fleet: Fleet, say: Say) -> Markup:
    hosts = sorted(fleet.hosts, key=lambda one: one.host)
    drawn = [_figure(say("Hosts"), say("from the median, by name"), _grid([_host_mark(one) for one in hosts]), say)]
    if fleet.links and len(fleet.links.cables) <= MAX_IN_MATRIX:
        drawn.append(_figure(say("Pairs of hosts"), "GB/s", _matrix(fleet.links), say))
    elif fleet.links:
        cables = sorted(fleet.links.cables, key=lambda one: one.host)
        marks = [
            (_level(one.away, named=one.slow), f"{one.host}: {number(one.gigabytes_per_s)} GB/s") for one in cables
        ]
        drawn.append(_figure(say("Cables"), say("from the median, by name"), _grid(marks), say))
    return el("section", el("div", drawn, class_="charts"))


def _figure(title: str, unit: str, drawing: Markup, say: Say) -> Markup:
    keys = [
        el("span", el("svg", el("rect", width=12, height=12, class_=f"heat {name}"), width=12, height=12), " ", word)
        for name, word in (
            ("near", f"±{100 * LEVELS[0]:.0f} %"),
            *((f"less{step}", f"−{100 * level:.0f} %") for step, level in enumerate(LEVELS, 1)),
            *((f"more{step}", f"+{100 * LEVELS[step - 1]:.0f} %") for step in MORE_KEYS),
            ("none", say("no result")),
            ("near named", say("named")),
        )
    ]
    caption = el("figcaption", el("b", title), " ", el("span", unit, class_="unit"))
    return el("figure", caption, drawing, el("p", keys, class_="keys"))


def _host_mark(one: FleetHost) -> tuple[str, str]:
    named = one.verdict in ("slow", "failed", "fast")
    return _level(one.away, named=named), f"{one.host}: {fleet_view.format_deviation(one)} {one.verdict}"


def _level(away: float | None, *, named: bool) -> str:
    """The class of a cell: `near` the median, or so many levels less or more than it."""
    if away is None:
        return "none named" if named else "none"
    steps = sum(abs(away) >= level for level in LEVELS)
    found = f"{'less' if away < 0 else 'more'}{steps}" if steps else "near"
    return f"{found} named" if named else found


def _grid(marks: Sequence[tuple[str, str]]) -> Markup:
    """One cell after the other, in rows about twice as long as there are rows."""
    columns = max(1, math.ceil(math.sqrt(2 * len(marks))))
    cells = [(index % columns, index // columns, class_, tip) for index, (class_, tip) in enumerate(marks)]
    return _cells(cells, columns, math.ceil(len(marks) / columns), len(marks))


def _matrix(links: FleetLinks) -> Markup:
    """Every pair that was measured, at both its places."""
    names = sorted(one.host for one in links.cables)
    place = {name: index for index, name in enumerate(names)}
    thin = {one.host for one in links.cables if one.slow}
    cells = []
    for way in links.ways:
        class_ = _level(way.gigabytes_per_s / links.median - 1, named=way.slow or bool(thin & {*way.hosts}))
        tip = f"{way.hosts[0]} – {way.hosts[1]}: {number(way.gigabytes_per_s)} GB/s"
        one, other = (place[host] for host in way.hosts)
        cells += [(one, other, class_, tip), (other, one, class_, tip)]
    return _cells(cells, len(names), len(names), len(names))


def _cells(marks: Iterable[tuple[int, int, str, str]], columns: int, rows: int, hosts: int) -> Markup:
    """Cells at their column and row, each with its class and tip."""
    side = CELL if hosts <= FEW_HOSTS else SMALL_CELL
    return el(
        "svg",
        [
            el(
                "rect",
                x=side * column,
                y=side * row,
                width=side - 2,
                height=side - 2,
                rx=3,
                class_=f"heat {class_}",
                data_tip=tip,
            )
            for column, row, class_, tip in marks
        ],
        class_="heatmap",
        viewBox=f"-1 -1 {side * columns} {side * rows}",
        width=side * columns,
        height=side * rows,
        role="img",
        aria_label=f"{hosts}",
    )


# The table


def _hosts(fleet: Fleet, say: Say) -> Markup:
    heads = [
        (say("Host"), False),
        (say("Verdict"), False),
        (fleet.metric, True),
        (say("From the median"), True),
        (say("95 % interval"), True),
        *([(say("Of what is expected"), True)] if fleet.expected else []),
        *([(say("Cable"), True)] if fleet.links else []),
        *([(say("Arithmetic"), False)] if fleet.proofs else []),
        (say("Why"), False),
    ]
    cables = {one.host: one for one in fleet.links.cables} if fleet.links else {}
    rows = [_row(one, fleet, cables, say) for one in fleet.hosts]
    return el("section", el("h2", say("Hosts"), id="summary-title"), sortable_table(heads, rows))


_SEVERITIES = {"ok": "passed", "slow": "wrong", "failed": "wrong", "unclear": "doubtful", "fast": "note"}


def _row(one: FleetHost, fleet: Fleet, cables: dict[str, Cable], say: Say) -> Markup:
    words = {
        "ok": say("ok"),
        "slow": say("slow"),
        "fast": say("fast"),
        "failed": say("failed"),
        "unclear": say("unclear"),
    }
    return el(
        "tr",
        el("th", one.host, scope="row"),
        el("td", el("span", words[one.verdict], class_=f"severity {_SEVERITIES[one.verdict]}")),
        number_cell(NOTHING if one.value is None else f"{number(one.value, 4)} {fleet.unit}", one.value),
        number_cell(fleet_view.format_deviation(one), one.away),
        number_cell(fleet_view.format_host_interval(one), one.interval[0] if one.interval else None),
        number_cell(fleet_view.format_share(one), one.of_expected) if fleet.expected else None,
        _cable(cables.get(one.host), say) if fleet.links else None,
        _arithmetic(one, fleet, say) if fleet.proofs else None,
        el("td", "; ".join((*one.reasons, *one.remarks))),
    )


def _cable(cable: Cable | None, say: Say) -> Markup:
    """A good host may have a slow cable."""
    if cable is None:
        return number_cell(NOTHING, None)
    slow = [el("span", say("slow"), class_="severity wrong"), " "] if cable.slow else []
    carries = f"{number(cable.gigabytes_per_s)} GB/s"
    return number_cell([*slow, carries], cable.gigabytes_per_s)


def _arithmetic(one: FleetHost, fleet: Fleet, say: Say) -> Markup:
    """The worst of several verifies counts."""
    verdicts = {proof.verdict for proof in fleet.proofs if proof.host == one.host}
    if "wrong" in verdicts:
        word, tone = say("wrong"), "wrong"
    elif verdicts == {"equal"}:
        word, tone = say("alike"), "passed"
    else:
        word, tone = say("open"), "doubtful"
    return el("td", el("span", word, class_=f"severity {tone}"))


def _signature(say: Say) -> Markup:
    """Lines for whoever accepts the cluster, on paper."""
    lines: list[Child] = [
        el("div", el("dt", word), el("dd", class_="line")) for word in (say("Accepted by"), say("Date"), say("Remarks"))
    ]
    return el("section", el("h2", say("To sign")), el("dl", lines, class_="sign"))
