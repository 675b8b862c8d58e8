"""Renders the verdict over a fleet: on a terminal, as JUnit XML, and as a page with lines to sign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from trainmark.features.fleet.verdict import WHOLE, Fleet, FleetHost
from trainmark.record.format import NOTHING, format_interval, number
from trainmark.record.language import Say, translator
from trainmark.view.element import Child, Markup, el
from trainmark.view.frame import STYLE, build_page, number_cell, page_footer, page_header, skip_link, sortable_table
from trainmark.view.junit import JunitCase, junit_document, junit_suite
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table

STYLES = {"slow": "red", "failed": "red", "unclear": "yellow", "fast": "cyan", "ok": ""}
OUTCOMES = {"accepted": "bold green", "not accepted": "bold red", "inconclusive": "bold yellow"}
FLEET_STYLE = ("trainmark.features.fleet", "fleet.css")
TONES = {"accepted": "good", "not accepted": "bad", "inconclusive": "fair"}
SEVERITIES = {"slow": "wrong", "failed": "wrong", "unclear": "doubtful"}
"""How the page marks a verdict; others have passed."""


def headline(fleet: Fleet) -> str:
    """The verdict in one sentence, with what decided it."""
    counts = Counter(finding.kind for finding in fleet.findings if finding.severity != "note")
    parts = [f"{kind}: {count}" for kind, count in counts.items()]
    parts.append(f"judged hosts: {len(fleet.hosts)}")
    if fleet.median is not None:
        median = f"the median is {number(fleet.median)} {fleet.unit}"
        parts.append(f"{median} {format_interval(fleet.interval)}".rstrip())
    return f"{fleet.outcome}; {'; '.join(parts)}"


class _FleetColumn(NamedTuple):
    title: str
    text: Callable[[FleetHost], str]
    key: Callable[[FleetHost], float | None] | None = None
    """What numbers are sorted by."""


def _columns(fleet: Fleet, say: Say) -> Iterator[_FleetColumn]:
    yield _FleetColumn(say("Host"), lambda one: one.host)
    yield _FleetColumn(say("Verdict"), lambda one: one.verdict)
    yield _FleetColumn(
        f"{fleet.metric}, {fleet.unit}" if fleet.unit else fleet.metric,
        lambda one: NOTHING if one.value is None else number(one.value, 4),
        lambda one: one.value,
    )
    yield _FleetColumn(
        say("From the median"),
        lambda one: NOTHING if one.away is None else _use_minus_sign(f"{100 * one.away:+.1f} %"),
        lambda one: one.away,
    )
    yield _FleetColumn(
        say("95 % interval"),
        lambda one: NOTHING if one.interval is None else _use_minus_sign("[{:+.1%}, {:+.1%}]".format(*one.interval)),
        lambda one: one.interval[0] if one.interval else None,
    )
    if fleet.links:
        cables = {cable.host: cable for cable in fleet.links.cables}
        shown = {
            host: f"{'slow ' if cable.slow else ''}{number(cable.gigabytes_per_s)}" for host, cable in cables.items()
        }
        yield _FleetColumn(
            say("Cable, GB/s"),
            lambda one: shown.get(one.host, NOTHING),
            lambda one: cables[one.host].gigabytes_per_s if one.host in cables else None,
        )


def _use_minus_sign(text: str) -> str:
    return text.replace("-", "−")


def render(fleet: Fleet, *, width: int = 100, color: bool = False, encoding: str = "utf-8") -> str:
    """One line per host, worst first, then what was found, and the verdict."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    if fleet.subject:
        writer.put(writer.text(" · ".join(fleet.subject), "bold"))
    columns = list(_columns(fleet, translator("en")))
    heads = [Column(title=one.title, right=one.key is not None, label=one is columns[0]) for one in columns]
    rows = [[Cell(pieces=(column.text(one),), style=STYLES[one.verdict]) for column in columns] for one in fleet.hosts]
    if rows:
        draw_table(writer, TableModel(columns=heads, rows=rows))
    if fleet.findings:
        writer.put("", writer.numbered_list(finding.text for finding in fleet.findings), "")
    writer.put(writer.text(headline(fleet), OUTCOMES[fleet.outcome]))
    return writer.getvalue()


def to_junit(fleet: Fleet) -> str:
    """One test per host and cable, named by host, so that a server can follow a node over builds; one of all paths."""
    name = ".".join(("trainmark.fleet", *fleet.subject[:-1]))
    facts = {"metric": fleet.metric, "outcome": fleet.outcome, "hosts": str(len(fleet.hosts))}
    passed = {WHOLE: headline(fleet)}
    for one in sorted(fleet.hosts, key=lambda one: one.host):
        value = "" if one.value is None else f"{number(one.value, 4)} {fleet.unit}"
        passed[f"host {one.host}"] = value
    for cable in fleet.links.cables if fleet.links else ():
        passed[f"cable of host {cable.host}"] = f"{number(cable.gigabytes_per_s)} GB/s"
    cases = []
    for about in dict.fromkeys([*passed, *(finding.about for finding in fleet.findings)]):
        found = [finding for finding in fleet.findings if finding.about == about]
        if faults := [finding for finding in found if finding.severity == "fault"]:
            cases.append(JunitCase(about, "failed", [fault.text for fault in faults], faults[0].kind))
        elif doubts := [finding.text for finding in found if finding.severity == "doubt"]:
            cases.append(JunitCase(about, "skipped", doubts))
        else:
            cases.append(JunitCase(about, "passed", [passed.get(about, ""), *(finding.text for finding in found)]))
    suite = junit_suite(name, created=fleet.created, properties=facts, cases=cases)
    return junit_document([suite])


def render_page(fleet: Fleet, *, language: str, trainmark: str, made: str) -> str:
    """The whole page as text, to be written as UTF-8."""
    say = translator(language)
    title = say("Acceptance of {count} hosts").format(count=len(fleet.hosts))
    findings = [el("li", finding.text) for finding in fleet.findings]
    found = el("div", el("h2", headline(fleet)), el("ul", findings, class_="findings"))
    verdict = el("section", el("div", found, class_=f"card validity {TONES[fleet.outcome]}"))
    columns = list(_columns(fleet, say))
    heads = [*((column.title, column.key is not None) for column in columns), (say("Why"), False)]
    rows = [el("tr", [*_cells(one, columns, say)], el("td", "; ".join(one.reasons))) for one in fleet.hosts]
    table = el("section", el("h2", say("Hosts"), id="summary-title"), sortable_table(heads, rows))
    # for whoever accepts the cluster, on paper
    lines: list[Child] = [
        el("div", el("dt", word), el("dd", class_="line")) for word in (say("Accepted by"), say("Date"), say("Remarks"))
    ]
    signature = el("section", el("h2", say("To sign")), el("dl", lines, class_="sign"))
    body = [
        skip_link(say),
        page_header(title, [*fleet.subject, fleet.created[:10]], say),
        el("main", verdict, table, signature),
        page_footer(trainmark, say, say("made {date}").format(date=made)),
    ]
    styles = (STYLE, FLEET_STYLE)
    return build_page(
        f"{title} · trainmark", body, language=language, trainmark=trainmark, styles=styles, class_="fleet"
    )


def _cells(one: FleetHost, columns: Sequence[_FleetColumn], say: Say) -> Iterator[Markup]:
    words = {
        "ok": say("ok"),
        "slow": say("slow"),
        "fast": say("fast"),
        "failed": say("failed"),
        "unclear": say("unclear"),
    }
    for column in columns:
        text = column.text(one)
        if column is columns[0]:
            yield el("th", text, scope="row")
        elif column.key is None:
            yield el("td", el("span", words[text], class_=f"severity {SEVERITIES.get(text, 'passed')}"))
        else:
            yield number_cell(text, column.key(one))
