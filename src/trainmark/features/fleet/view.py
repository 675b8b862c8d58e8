"""Renders the verdict over a fleet as sentences, as a terminal table and as JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trainmark.features.fleet.outliers import FleetLinks
from trainmark.features.fleet.verdict import Fleet, FleetHost
from trainmark.record.format import NOTHING, format_interval, number
from trainmark.view.junit import JunitCase, junit_document, junit_suite
from trainmark.view.terminal import Cell, Column, TableModel, TerminalWriter, draw_table

MAX_HOSTS = 30
"""Lines of the table, unless all are requested; hosts that are not ok are always shown."""
MAX_WRONG = 3
"""Wrong results named per host; its verify has them all."""
STYLES = {"slow": "red", "failed": "red", "unclear": "yellow", "fast": "cyan", "ok": ""}
OUTCOMES = {"accepted": "bold green", "not accepted": "bold red", "inconclusive": "bold yellow"}


def headline(fleet: Fleet) -> str:
    """The verdict in one sentence, with what decided it."""
    hosts, links = len(fleet.hosts), fleet.links
    counts = {
        "slow hosts": (len(fleet.hosts_with("slow")), f" of {hosts}"),
        "failed hosts": (len(fleet.hosts_with("failed")), f" of {hosts}"),
        "unclear hosts": (len(fleet.hosts_with("unclear")), f" of {hosts}"),
        "slow cables": (sum(one.slow for one in links.cables) if links else 0, ""),
        "doubtful paths": (sum(one.slow for one in links.ways) if links else 0, ""),
        "wrong arithmetic": (len({one.host for one in fleet.proofs_with("wrong")}), f" of {hosts}"),
    }
    parts = [f"{what}: {count}{of}" for what, (count, of) in counts.items() if count]
    if fleet.faults and not parts:
        parts.append(f"faults of the fleet as a whole: {len(fleet.faults)}")
    if not parts:
        parts.append(f"judged hosts: {hosts}")
    if fleet.median is not None:
        median = f"the median is {number(fleet.median)} {fleet.unit}"
        parts.append(f"{median} {format_interval(fleet.interval)}".rstrip())
    return f"{fleet.outcome}; {'; '.join(parts)}"


def describe(fleet: Fleet) -> Iterator[str]:
    """Describes each host that differs, the fleet as a whole, its links and its arithmetic."""
    words = {"slow": "is slow", "fast": "is fast", "failed": "failed", "unclear": "is unclear"}
    for one in fleet.hosts:
        if one.verdict != "ok" or one.reasons or one.remarks:
            what = words.get(one.verdict, "differs from the others")
            yield f"host {one.host} {what}: {'; '.join((*one.reasons, *one.remarks))}"
    yield from (*fleet.faults, *fleet.unsure, *fleet.notes)
    if fleet.smallest is not None:
        yield f"a host slower by {_percent(fleet.smallest)} than the median would be named four times in five"
    if fleet.links:
        yield from describe_links(fleet.links)
    yield from _describe_proofs(fleet)


def describe_links(links: FleetLinks) -> Iterator[str]:
    if links.smallest is None:
        yield f"two hosts have one link, and nothing to compare it with: it carries {number(links.median)} GB/s"
        return
    yield (
        f"of the links {len(links.ways)} pairs of hosts were measured in {links.rounds} rounds: the median cable "
        f"carries {number(links.median)} GB/s"
    )
    yield from _slow_cables(links)
    yield from _slow_paths(links)
    if not links.whole:
        yield (
            f"not all {links.all_rounds} rounds were measured: each cable is known, a bad path between two good cables "
            "may not be"
        )


def _slow_cables(links: FleetLinks, host: str | None = None) -> list[str]:
    return [
        f"the cable of host {one.host} carries {number(one.gigabytes_per_s)} GB/s, {_percent(-one.away)} less than the "
        "fleet's median"
        for one in links.cables
        if one.slow and host in (None, one.host)
    ]


def _slow_paths(links: FleetLinks, host: str | None = None) -> list[str]:
    """Slow paths between good cables, each measured by one pair: a busy node may be the cause."""
    return [
        f"between hosts {one.hosts[0]} and {one.hosts[1]} pass {number(one.gigabytes_per_s)} GB/s, "
        f"{_percent(one.short)} less than the cables of both carry; measure these two again while they are idle"
        for one in links.ways
        if one.slow and host in (None, *one.hosts)
    ]


def _describe_proofs(fleet: Fleet) -> Iterator[str]:
    """Describes wrong arithmetic, what is open, then each verify."""
    for one in fleet.proofs_with("wrong"):
        why = "; ".join(one.wrong[:MAX_WRONG])
        yield f"the arithmetic of host {one.host} is wrong: {why}"
    if open_ := sorted({one.host for one in fleet.proofs_with("unsettled", "incomplete")}):
        yield f"the arithmetic is not settled on hosts {', '.join(open_)}"
    if fleet.unverified_hosts:
        yield f"the arithmetic was not verified on hosts {', '.join(fleet.unverified_hosts)}"
    for verify_id in dict.fromkeys(one.verify_id for one in fleet.proofs):
        members = [one for one in fleet.proofs if one.verify_id == verify_id]
        date, sentence = members[0].created[:10], members[0].sentence
        yield f"verify {verify_id} of {date} on {len(members)} of {len(fleet.hosts)} hosts: {sentence}"


def format_deviation(one: FleetHost) -> str:
    """`−8.1 %`."""
    return NOTHING if one.away is None else f"{100 * one.away:+.1f} %".replace("-", "−")


def format_host_interval(one: FleetHost) -> str:
    """`[−9.6, −6.5] %`."""
    if one.interval is None:
        return NOTHING
    low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in one.interval)
    return f"[{low}, {high}] %"


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def render(
    fleet: Fleet, *, everything: bool = False, width: int = 100, color: bool = False, encoding: str = "utf-8"
) -> str:
    """One line per host, worst first, then explanations, links and verdict."""
    writer = TerminalWriter(width=width, color=color, encoding=encoding)
    facts = (fleet.workload, fleet.recipe_name, fleet.topology, fleet.precision, fleet.device)
    if title := " · ".join(fact for fact in facts if fact):
        writer.put(writer.text(title, "bold"))
    bad = [one for one in fleet.hosts if one.verdict != "ok"]
    shown = fleet.hosts if everything else fleet.hosts[: max(MAX_HOSTS, len(bad))]
    if shown:
        draw_table(writer, _table(fleet, shown))
    if len(shown) < len(fleet.hosts):
        writer.put(f"{len(fleet.hosts) - len(shown)} more hosts are ok; --all shows them")
    if findings := list(describe(fleet)):
        writer.put("", writer.numbered_list(findings), "")
    writer.put(writer.text(headline(fleet), OUTCOMES[fleet.outcome]))
    return writer.getvalue()


def _table(fleet: Fleet, hosts: tuple[FleetHost, ...]) -> TableModel:
    unit = tuple(fleet.unit.split())
    columns: list[tuple[Column, Callable[[FleetHost], str]]] = [
        (Column(title="host", right=False, label=True), lambda one: one.host),
        (Column(title=fleet.metric, unit=unit), lambda one: NOTHING if one.value is None else number(one.value, 4)),
        (Column(title="from median"), format_deviation),
        (Column(title="95 % interval", spare=True), format_host_interval),
    ]
    if fleet.expected:
        columns.append((Column(title="of expected"), format_share))
    if any(len(one.runs) > 1 for one in hosts):
        columns.append((Column(title="runs", spare=True), lambda one: str(len(one.runs))))
    columns.append((Column(title="verdict", right=False), lambda one: one.verdict))
    return TableModel(
        columns=[column for column, _ in columns],
        rows=[[Cell(pieces=(shown(one),), style=STYLES[one.verdict]) for _, shown in columns] for one in hosts],
    )


def format_share(one: FleetHost) -> str:
    return NOTHING if one.of_expected is None else f"{100 * one.of_expected:.1f} %"


def to_junit(fleet: Fleet) -> str:
    """One test per host and cable, named by host, so that a server can follow a node over builds."""
    plan = ".".join(part for part in (fleet.workload, fleet.recipe_name, fleet.topology, fleet.precision) if part)
    facts = {"metric": fleet.metric, "outcome": fleet.outcome, "hosts": str(len(fleet.hosts)), "device": fleet.device}
    if fleet.median is not None:
        facts["median"] = f"{number(fleet.median, 6)} {fleet.unit}"
    name = f"trainmark.fleet.{plan}".rstrip(".")
    return junit_document([junit_suite(name, created=fleet.created, properties=facts, cases=[*_cases(fleet)])])


def _cases(fleet: Fleet) -> Iterator[JunitCase]:
    yield _case("the fleet as a whole", "not accepted", fleet.faults, fleet.unsure, [headline(fleet)])
    for one in sorted(fleet.hosts, key=lambda one: one.host):
        why = [*one.reasons, *one.remarks]
        value = "" if one.value is None else f"{number(one.value, 4)} {fleet.unit}"
        passed = "; ".join(filter(None, [value, format_deviation(one), format_host_interval(one), *why]))
        failed, unclear = one.verdict in ("slow", "failed"), one.verdict == "unclear"
        yield _case(f"host {one.host}", one.verdict, why if failed else [], why[:1] if unclear else [], [passed])
    links = fleet.links
    for cable in sorted(links.cables, key=lambda one: one.host) if links else ():
        # a slow path is skipped at both ends: one pair is not enough for a failure
        slow, doubtful = (find(links, cable.host) for find in (_slow_cables, _slow_paths)) if links else ([], [])
        carries = f"{number(cable.gigabytes_per_s)} GB/s"
        yield _case(f"cable of host {cable.host}", "slow", slow, doubtful, [carries])
    for host in sorted({one.host for one in fleet.proofs}):
        wrong = [line for one in fleet.proofs_with("wrong") if one.host == host for line in one.wrong]
        open_ = [one.sentence for one in fleet.proofs_with("unsettled", "incomplete") if one.host == host]
        passed = "; ".join(one.sentence for one in fleet.proofs if one.host == host)
        yield _case(f"arithmetic of host {host}", "wrong", wrong, open_, [passed])


def _case(name: str, kind: str, failures: Sequence[str], doubts: Sequence[str], passed: Sequence[str]) -> JunitCase:
    if failures:
        return JunitCase(name, "failed", failures, kind)
    return JunitCase(name, "skipped", ["; ".join(doubts)]) if doubts else JunitCase(name, "passed", passed)
