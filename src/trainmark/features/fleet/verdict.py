"""Judges a fleet: each host's deviation from the median, which are slow and why, and whether to accept it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import NormalDist, median
from typing import Any, Literal, NamedTuple

import msgspec

from trainmark.analysis import quantities
from trainmark.analysis.comparison import THRESHOLD, collect_values
from trainmark.analysis.judge import RunValues, own_interval, place_interval, ratio_interval
from trainmark.analysis.quantities import Compared
from trainmark.features.fleet import outliers
from trainmark.features.fleet.hosts import FleetRuns, HostRuns, PairsDone, check_alike
from trainmark.features.fleet.outliers import MIN_HOSTS, FleetLinks, Outliers
from trainmark.features.verify.document import VerifyDocument
from trainmark.features.verify.verdict import describe_difference
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.numbers import CONFIDENCE, Bounds, around, half_width
from trainmark.record.record import Record
from trainmark.record.site import Expected
from trainmark.record.store import Subject

MAX_BLIND = 0.20
"""If a host slower by this share could go unnoticed, the verdict is inconclusive."""
MAX_WRONG = 3
"""Wrong results named of a verify, which has them all."""
WHOLE, PATHS, ARITHMETIC = "the fleet as a whole", "the paths between hosts", "the arithmetic"
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

Verdict = Literal["ok", "slow", "fast", "failed", "unclear"]
Outcome = Literal["accepted", "not accepted", "inconclusive"]
EXIT_CODES: Mapping[Outcome, int] = {"accepted": 0, "not accepted": 6, "inconclusive": 7}
_WORST_FIRST: tuple[Verdict, ...] = ("failed", "slow", "unclear", "fast", "ok")


@dataclass(frozen=True)
class Finding:
    severity: Literal["fault", "doubt", "note"]
    """A fault fails the fleet, a doubt leaves it inconclusive."""
    kind: str
    """As the headline counts it: `slow hosts`."""
    about: str
    """The host, cable or other part, which is a test of its own for a build server: `cable of host node03`."""
    text: str


@dataclass(frozen=True, kw_only=True)
class FleetHost:
    host: str
    verdict: Verdict
    runs: tuple[str, ...] = ()
    value: float | None = None
    """Mean of its runs; None where it failed."""
    away: float | None = None
    """Deviation from the fleet's median, as a share: -0.08 is 8 % less."""
    interval: Bounds | None = None
    """95 % interval of the deviation; None where there are too few steps."""
    reasons: tuple[str, ...] = ()
    """Why it is not ok, what may explain it, and how it differs from the fleet."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The verdict over all hosts."""

    metric: str
    hosts: tuple[FleetHost, ...]
    """The worst first."""
    findings: tuple[Finding, ...]
    unit: str = ""
    subject: tuple[str, ...] = ()
    """Workload, recipe, topology, precision and device."""
    median: float | None = None
    interval: Bounds | None = None
    smallest: float | None = None
    """A host slower by this share is named four times in five; None where none could be."""
    expected: Expected | None = None
    links: FleetLinks | None = None
    created: str = ""
    """When its last run was made."""

    @property
    def outcome(self) -> Outcome:
        severities = {finding.severity for finding in self.findings}
        return "not accepted" if "fault" in severities else "inconclusive" if "doubt" in severities else "accepted"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def hosts_with(self, *verdicts: Verdict) -> tuple[FleetHost, ...]:
        return tuple(one for one in self.hosts if one.verdict in verdicts)


def to_json(fleet: Fleet) -> dict[str, Any]:
    """For programs; intervals are [low, high] at 95 %, null where unknown."""
    return {"outcome": fleet.outcome, "exit_code": fleet.exit_code, **msgspec.to_builtins(fleet)}


def judge(
    runs: FleetRuns,
    *,
    metric: str = "p_core",
    threshold: float = THRESHOLD,
    expected: Sequence[Expected] = (),
    wanted: Sequence[str] = (),
    verifies: Sequence[VerifyDocument] = (),
) -> Fleet:
    """Judges hosts, measured links and verifies; UsageError where runs are not alike, or a verify is of other hosts.

    `expected` are the site's figures, of which the first for these runs counts; `wanted` are the hosts that
    must be there, by name where it is known.
    """
    fleet = Fleet(metric=metric, hosts=(), findings=())
    if any(one.records for one in runs.hosts):
        fleet = _judge_speed(runs.hosts, metric, threshold, expected)
    failed = [one for one in runs.hosts if not one.records]
    lines = [FleetHost(host=one.host, verdict="failed", reasons=(one.failed,)) for one in failed]
    hosts = (*lines, *fleet.hosts)
    links, of_links = _judge_links(runs.links) if runs.links else (None, [])
    findings = [*map(_describe_host, (one for one in hosts if one.verdict != "ok" or one.reasons)), *fleet.findings]
    there = {_shorten(one.host) for one in runs.hosts}
    if missing := [name for name in wanted if name and _shorten(name) not in there]:
        findings.append(_fault(f"{len(missing)} of {len(wanted)} expected hosts have no run: {', '.join(missing)}"))
    elif len(runs.hosts) < len(wanted):
        findings.append(_fault(f"{len(wanted)} hosts are expected and only {len(runs.hosts)} have a run"))
    return replace(
        fleet, hosts=hosts, links=links, findings=(*findings, *of_links, *_judge_arithmetic(runs.hosts, verifies))
    )


def _shorten(host: str) -> str:
    """A host without its domain: records and lists of hosts may name it either way."""
    return host if host.replace(".", "").isdigit() else host.partition(".")[0].casefold()


def _fault(text: str) -> Finding:
    return Finding("fault", "faults of the fleet as a whole", WHOLE, text)


def _doubt(text: str) -> Finding:
    return Finding("doubt", "doubts about the fleet as a whole", WHOLE, text)


def _note(text: str) -> Finding:
    return Finding("note", "", WHOLE, text)


def _describe_host(one: FleetHost) -> Finding:
    severities: Mapping[Verdict, Literal["fault", "doubt"]] = {"slow": "fault", "failed": "fault", "unclear": "doubt"}
    words = {"failed": "failed", "ok": "differs from the others"}
    text = f"host {one.host} {words.get(one.verdict, f'is {one.verdict}')}: {'; '.join(one.reasons)}"
    return Finding(severities.get(one.verdict, "note"), f"{one.verdict} hosts", f"host {one.host}", text)


# Speed


class _HostValue(NamedTuple):
    """A host's value, as a logarithm, and how well it is known."""

    runs: HostRuns
    side: RunValues
    value: float
    half_width: float | None
    """Of its 95 % interval; None where there are too few steps."""


def _measure_host(runs: HostRuns, compared: Compared) -> _HostValue:
    side = collect_values(runs.records, compared)
    interval = own_interval(side)
    return _HostValue(runs, side, math.log(side.mean), half_width(interval) if interval else None)


def _judge_speed(hosts: Sequence[HostRuns], metric: str, threshold: float, expected: Sequence[Expected]) -> Fleet:
    records = [record for host in hosts for record in host.records]
    check_alike(records, metric)
    first, plan = records[0], records[0].plan
    compared = quantities.find_compared(metric, [Subject(word=first.run_id, label=first.run_id, records=(first,))])
    reference = next((one for one in expected if _matches(one, first, compared)), None)
    known = [_measure_host(host, compared) for host in hosts if host.records]
    sure = [one for one in known if one.half_width is not None] or known
    errors = [(one.half_width or 0.0) / _Z for one in sure]
    found = outliers.find_outliers([one.value for one in sure], errors, floor=-math.log1p(-threshold))
    named = {one.runs.host for one, is_named in zip(sure, found.named, strict=True) if is_named}
    judged = [_judge_host(one, compared, found, named=one.runs.host in named) for one in known]
    judged = list(_explain_hosts(judged, {one.runs.host: one.runs.records[-1] for one in known}))
    direction = 1 if compared.better == "higher" else -1
    judged.sort(key=lambda one: (_WORST_FIRST.index(one.verdict), direction * (one.away or 0.0), one.host))
    interval = around(math.exp(found.centre), _Z * found.error)
    findings = [*_find_on_whole(found, sure, threshold, reference)]
    if reference:
        findings += _compare_with_site(interval, reference, compared)
    return Fleet(
        metric=compared.name,
        hosts=tuple(judged),
        findings=tuple(findings),
        unit=quantities.value_of_record(first, compared)[1],
        subject=(plan.workload, plan.recipe_name, plan.topology, first.precision, device_name(first)),
        median=math.exp(found.centre),
        interval=interval if len(sure) >= MIN_HOSTS else None,
        smallest=-math.expm1(-found.smallest) if len(sure) >= MIN_HOSTS else None,
        expected=reference,
        created=max(record.created for record in records),
    )


def _judge_host(one: _HostValue, compared: Compared, found: Outliers, *, named: bool) -> FleetHost:
    away = one.value - found.centre
    judged = FleetHost(
        host=one.runs.host,
        verdict="ok",
        runs=tuple(record.run_id for record in one.runs.records),
        value=math.exp(one.value),
        away=math.expm1(away),
    )
    if one.half_width is None:
        why = "its run has too few steps for an interval; run longer, or repeat it"
        return replace(judged, verdict="unclear", reasons=(why,))
    low, high = around(math.exp(away), math.hypot(one.half_width, _Z * found.error))
    judged = replace(judged, interval=(low - 1, high - 1))
    if not named:
        return judged
    slow = away < 0 if compared.better == "higher" else away > 0
    reason = f"{_percent(judged.away)} from the fleet's median, further than good hosts"
    return replace(judged, verdict="slow" if slow else "fast", reasons=(reason,))


def _find_on_whole(
    found: Outliers, sure: Sequence[_HostValue], threshold: float, reference: Expected | None
) -> Iterator[Finding]:
    smallest = -math.expm1(-found.smallest)
    if len(sure) == 1 and not reference:
        yield _doubt("one host has nothing to be compared with; name more, or set [[expected]] in trainmark.toml")
    elif len(sure) == 2:
        yield from _compare_two(sure[0], sure[1], threshold)
    elif len(sure) >= MIN_HOSTS:
        if found.assumed:
            yield _note(
                f"{len(sure)} hosts are too few to tell how far good ones lie apart: a standard deviation of "
                f"{100 * outliers.ASSUMED_SPREAD:g} % is assumed"
            )
        yield _note(f"a host slower by {number(100 * smallest, 2)} % than the median would be named four times in five")
        if smallest > MAX_BLIND:
            yield _doubt("the hosts lie too far apart to accept them; run longer, repeat, or stop other programs there")


def _compare_two(one: _HostValue, other: _HostValue, threshold: float) -> Iterator[Finding]:
    """A doubt, unless both are certainly equal within the threshold."""
    bounds = ratio_interval(other.side, one.side)
    outcome = place_interval(bounds, threshold) if bounds else "inconclusive"
    names = f"{one.runs.host} lies {_percent(math.expm1(one.value - other.value))} from {other.runs.host}"
    if outcome == "inconclusive":
        yield _doubt(f"{names}, and their runs are too noisy to tell whether they are equal; run longer, or repeat")
    elif outcome != "same":
        yield _doubt(f"{names}, and two hosts do not tell which of them is right; a third would")


def _matches(one: Expected, record: Record, compared: Compared) -> bool:
    facts = (record.plan.workload, record.plan.recipe_name, record.plan.topology, record.precision)
    wanted = (one.workload, one.recipe, one.topology, one.precision)
    alike = all(word in (None, fact) for word, fact in zip(wanted, facts, strict=True))
    measured = one.metric in (compared.name, compared.metric.name if compared.metric else "")
    return alike and measured and (one.device or "").casefold() in device_name(record).casefold()


def _compare_with_site(median_interval: Bounds, reference: Expected, compared: Compared) -> Iterator[Finding]:
    """A fault where the median is certainly worse than the site allows."""
    low, high = (bound / reference.value for bound in median_interval)
    allowed = reference.within_percent / 100
    if high < 1 - allowed if compared.better == "higher" else low > 1 + allowed:
        away = _percent(math.sqrt(low * high) - 1)
        yield _fault(
            f"the fleet as a whole is slow: its median lies {away} from the {number(reference.value)} that the site "
            f"expects, and {reference.within_percent:g} % are allowed"
        )


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):+.1f} %".replace("-", "−")


# Causes

SENSORS = (
    ("clock_mhz", 0.97, "its slowest device ran at {own:.0f} MHz, the fleet's median at {usual:.0f} MHz"),
    ("temperature_c", 1.10, "its hottest device had {own:.0f} °C, the fleet's median {usual:.0f} °C"),
    ("power_w", 0.92, "a device drew {own:.0f} W, the fleet's median {usual:.0f} W"),
)
"""What devices measure, beyond which share of the fleet's median it may explain a slow host, and how that is said."""
SOFTWARE = {
    "device": attrgetter("device.name"),
    "driver": attrgetter("device.driver"),
    "processor": attrgetter("cpu.name"),
    "usable cores": attrgetter("cpu.usable_cores"),
    "threads": attrgetter("threads"),
    "kernel": attrgetter("os"),
    "torch": attrgetter("torch"),
    "python": attrgetter("python"),
}
"""Facts that all hosts of a fleet should share."""


def _explain_hosts(judged: Sequence[FleetHost], newest: Mapping[str, Record]) -> Iterator[FleetHost]:
    """Adds what telemetry, doubts and software show of hosts that differ."""
    measured = [
        {host: _find_worst(record, name, limit) for host, record in newest.items()} for name, limit, _ in SENSORS
    ]
    doubts = Counter(code for record in newest.values() for code in {doubt.code for doubt in record.doubts})
    software = _find_differences(newest)
    for one in judged:
        why = []
        if one.verdict in ("slow", "unclear"):
            for (_, limit, text), by_host in zip(SENSORS, measured, strict=True):
                own, usual = by_host[one.host], median([value for value in by_host.values() if value] or [0.0])
                if own and (own < limit * usual if limit < 1 else own > limit * usual):
                    why.append(text.format(own=own, usual=usual))
            own_doubts = [doubt for doubt in newest[one.host].doubts if doubts[doubt.code] * 4 < len(newest)]
            why += [doubt.text for doubt in own_doubts]
        yield replace(one, reasons=(*one.reasons, *why, *software.get(one.host, ())))


def _find_worst(record: Record, name: str, limit: float) -> float | None:
    """The lowest median of a device, or the highest; None where no sensor measured it."""
    devices = (device for machine in record.telemetry.machines for device in machine.devices)
    medians = [median(series.values) for device in devices if (series := device.series.get(name)) and series.values]
    return (min if limit < 1 else max)(medians, default=None)


def _find_differences(records: Mapping[str, Record]) -> dict[str, list[str]]:
    """By host, the facts that differ from those of the majority; facts without a majority are left out."""
    found: dict[str, list[str]] = {}
    for name, fact in SOFTWARE.items():
        values = {host: str(value) for host, record in records.items() if (value := fact(record.environment))}
        common, count = Counter(values.values()).most_common(1)[0] if len(values) >= MIN_HOSTS else ("", 0)
        for host, value in values.items() if count * 2 > len(values) else ():
            if value != common:
                found.setdefault(host, []).append(f"its {name} is {value}, the fleet's {common}")
    return found


# Links and arithmetic


def _judge_links(measured: PairsDone) -> tuple[FleetLinks | None, list[Finding]]:
    findings = [_fault(f"the links could not be measured: {measured.failed}")] if measured.failed else []
    if not measured.pairs:
        return None, findings
    links = outliers.judge_links(measured.hosts, measured.pairs)
    for cable in links.cables:
        if cable.slow:
            name, less = f"cable of host {cable.host}", f"{number(-100 * cable.away, 2)} % less than the fleet's median"
            text = f"the {name} carries {number(cable.gigabytes_per_s)} GB/s, {less}"
            findings.append(Finding("fault", "slow cables", name, text))
    for path in links.slow_paths:
        less = f"{number(100 * path.short, 2)} % less than the cables of both"
        text = f"the path between hosts {' and '.join(path.hosts)} carries {number(path.gigabytes_per_s)} GB/s, {less}"
        # a doubt only: a path is measured by one pair, which a busy host can slow down
        findings.append(Finding("doubt", "slow paths", PATHS, f"{text}; measure it again while both hosts are idle"))
    one, other, carries = links.slowest
    count = len(links.cables)
    text = (
        f"{links.pairs} of {count * (count - 1) // 2} pairs of hosts were measured: the median cable carries "
        f"{number(links.median)} GB/s; the slowest pair of good cables is {one} and {other} with {number(carries)} GB/s"
    )
    return links, [*findings, Finding("note", "", PATHS, text)]


def _judge_arithmetic(hosts: Sequence[HostRuns], verifies: Sequence[VerifyDocument]) -> Iterator[Finding]:
    # a verify may use the name that the host gives itself
    names = {one.host: {one.host, *(record.hosts[0] for record in one.records[-1:])} for one in hosts}
    unverified = {*names}
    for one in verifies:
        members = {host for host in names if names[host] & {*one.hosts}}
        if not members:
            raise UsageError(f"verify {one.verify_id} ran on {', '.join(one.hosts)}, none of which is in this fleet")
        unverified -= members
        wrong = [describe_difference(each, one.hosts) for each in one.differences[:MAX_WRONG]]
        where = f"on {len(members)} of {len(hosts)} hosts"
        text = f"verify {one.verify_id} of {one.created[:10]} {where}: {'; '.join([one.sentence, *wrong])}"
        if one.verdict == "wrong":
            yield Finding("fault", "verifies with wrong arithmetic", ARITHMETIC, text)
        else:
            yield Finding("note" if one.verdict == "equal" else "doubt", "open verifies", ARITHMETIC, text)
    if verifies and unverified:
        text = f"the arithmetic was not verified on hosts {', '.join(sorted(unverified))}"
        yield Finding("doubt", "unverified hosts", ARITHMETIC, text)
