"""Draws the judgement of a fleet: a line a host, the worst first, then what explains them, the links, the verdict."""

from __future__ import annotations

from collections.abc import Callable

from trainmark.analysis.fleet.verdict import Fleet, FleetHost
from trainmark.report import fleet_text
from trainmark.report.terminal import Cell, Column, TableModel, TerminalWriter, draw
from trainmark.spec.format import NOTHING, number

MOST_HOSTS = 30
"""Lines of a table, unless all are asked for; who is not ok is always among them."""
STYLES = {"slow": "red", "failed": "red", "unclear": "yellow", "fast": "cyan", "ok": ""}
OUTCOMES = {"accepted": "bold green", "not accepted": "bold red", "inconclusive": "bold yellow"}


def render(
    fleet: Fleet, *, everything: bool = False, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    facts = (fleet.workload, fleet.recipe_name, fleet.topology, fleet.precision, fleet.device)
    if title := " · ".join(fact for fact in facts if fact):
        writer.put(writer.text(title, "bold"))
    bad = [one for one in fleet.hosts if one.verdict != "ok"]
    shown = fleet.hosts if everything else fleet.hosts[: max(MOST_HOSTS, len(bad))]
    if shown:
        draw(writer, _table(fleet, shown))
    if len(shown) < len(fleet.hosts):
        writer.put(f"{len(fleet.hosts) - len(shown)} more hosts are ok; --all shows them")
    sentences = [*fleet_text.host_sentences(fleet), *fleet_text.fleet_sentences(fleet)]
    if fleet.links:
        sentences += fleet_text.link_sentences(fleet.links)
    sentences += fleet_text.proof_sentences(fleet)
    if sentences:
        writer.put("", writer.numbered(sentences), "")
    writer.put(writer.text(fleet_text.headline(fleet), OUTCOMES[fleet.outcome]))
    return writer.drawn()


def _table(fleet: Fleet, hosts: tuple[FleetHost, ...]) -> TableModel:
    unit = tuple(fleet.unit.split())
    columns: list[tuple[Column, Callable[[FleetHost], str]]] = [
        (Column(title="host", right=False, label=True), lambda one: one.host),
        (Column(title=fleet.metric, unit=unit), lambda one: NOTHING if one.value is None else number(one.value, 4)),
        (Column(title="from median"), fleet_text.away),
        (Column(title="95 % interval", spare=True), fleet_text.interval),
    ]
    if fleet.expected:
        columns.append((Column(title="of expected"), _of_expected))
    if any(len(one.runs) > 1 for one in hosts):
        columns.append((Column(title="runs", spare=True), lambda one: str(len(one.runs))))
    columns.append((Column(title="verdict", right=False), lambda one: one.verdict))
    return TableModel(
        columns=[column for column, _ in columns],
        rows=[[Cell(pieces=(shown(one),), style=STYLES[one.verdict]) for _, shown in columns] for one in hosts],
    )


def _of_expected(one: FleetHost) -> str:
    return NOTHING if one.of_expected is None else f"{100 * one.of_expected:.1f} %"
