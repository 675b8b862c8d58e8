"""Judges a fleet: each host's deviation from the median, which are slow and why, and whether to accept it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist, fmean, median
from typing import Any, Literal

from trainmark.analysis import quantities
from trainmark.analysis.comparison import THRESHOLD, collect_values
from trainmark.analysis.judge import RunValues, place_interval, ratio_interval
from trainmark.analysis.quantities import Compared
from trainmark.features.fleet import causes, outliers
from trainmark.features.fleet.hosts import FleetRuns, HostRuns, check_alike
from trainmark.features.fleet.outliers import MIN_HOSTS, FleetLinks
from trainmark.features.verify.document import Verdict as ProofVerdict, VerifyDocument
from trainmark.features.verify.verdict import describe_difference
from trainmark.record.errors import UsageError
from trainmark.record.format import device_name, number
from trainmark.record.numbers import CONFIDENCE, Bounds, around, log_variance, quantile
from trainmark.record.record import Record
from trainmark.record.site import Expected
from trainmark.record.store import Subject

MAX_BLIND = 0.20
"""If a host slower by this share could go unnoticed, the verdict is inconclusive."""
MIN_REPEATS = 3
"""Fewer do not show how they vary."""
_Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)

Verdict = Literal["ok", "slow", "fast", "failed", "unclear"]
Outcome = Literal["accepted", "not accepted", "inconclusive"]
EXIT_CODES: Mapping[Outcome, int] = {"accepted": 0, "not accepted": 6, "inconclusive": 7}
_WORST_FIRST: tuple[Verdict, ...] = ("failed", "slow", "unclear", "fast", "ok")


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
    of_expected: float | None = None
    """Share of the site's expected value; None where there is none."""
    reasons: tuple[str, ...] = ()
    """Why it is not ok, and what may explain it."""
    remarks: tuple[str, ...] = ()
    """How it differs from the fleet; no fault by itself."""


@dataclass(frozen=True, kw_only=True)
class HostProof:
    """What one verify found on one host."""

    host: str
    verify_id: str
    created: str
    sentence: str
    """Of the whole verify."""
    verdict: ProofVerdict
    """Of this host alone."""
    wrong: tuple[str, ...] = ()
    """What is wrong on it."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The verdict over all hosts."""

    metric: str
    threshold: float
    hosts: tuple[FleetHost, ...]
    """The worst first."""
    unit: str = ""
    workload: str = ""
    recipe_name: str = ""
    topology: str = ""
    precision: str = ""
    device: str = ""
    median: float | None = None
    interval: Bounds | None = None
    spread: float | None = None
    """Standard deviation of good hosts, as a share of the median."""
    smallest: float | None = None
    """A host slower by this share is named four times in five; None where none could be."""
    expected: Expected | None = None
    links: FleetLinks | None = None
    proofs: tuple[HostProof, ...] = ()
    """Verifies of the hosts' arithmetic."""
    faults: tuple[str, ...] = ()
    """Reasons not to accept the fleet besides its hosts and links."""
    unsure: tuple[str, ...] = ()
    """Why the verdict is uncertain."""
    notes: tuple[str, ...] = ()
    created: str = ""
    """When its last run was made."""

    @property
    def outcome(self) -> Outcome:
        if (
            self.hosts_with("slow", "failed")
            or self.faults
            or (self.links and self.links.slow)
            or self.proofs_with("wrong")
        ):
            return "not accepted"
        doubtful = self.links is not None and any(way.slow for way in self.links.ways)
        unproved = self.proofs_with("unsettled", "incomplete") or self.unverified_hosts
        return "inconclusive" if self.unsure or doubtful or unproved else "accepted"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def hosts_with(self, *verdicts: Verdict) -> tuple[FleetHost, ...]:
        return tuple(one for one in self.hosts if one.verdict in verdicts)

    def proofs_with(self, *verdicts: str) -> tuple[HostProof, ...]:
        return tuple(one for one in self.proofs if one.verdict in verdicts)

    @property
    def unverified_hosts(self) -> tuple[str, ...]:
        """Hosts without a verify, where others have one."""
        known = {one.host for one in self.proofs}
        return tuple(one.host for one in self.hosts if known and one.host not in known)


def judge_runs(
    runs: FleetRuns,
    *,
    metric: str = "p_core",
    threshold: float = THRESHOLD,
    expected: Sequence[Expected] = (),
    wanted: int | None = None,
    verifies: Sequence[VerifyDocument] = (),
) -> Fleet:
    """Judges hosts, measured links and verifies; UsageError where a verify is of other hosts."""
    measured = runs.links
    links = outliers.judge_links(measured.hosts, measured.pairs) if measured and measured.pairs else None
    fleet = judge_hosts(runs.hosts, metric=metric, threshold=threshold, expected=expected, links=links, wanted=wanted)
    if measured and measured.failed:
        fleet = replace(fleet, faults=(*fleet.faults, f"the links could not be measured: {measured.failed}"))
    # a verify may use the name that the host gives itself
    names = {one.host: (one.host, *(record.hosts[0] for record in one.records[-1:])) for one in runs.hosts}
    fleet = replace(fleet, proofs=tuple(find_proofs(verifies, names)))
    for one in verifies:
        if not any(proof.verify_id == one.verify_id for proof in fleet.proofs):
            raise UsageError(f"verify {one.verify_id} ran on {', '.join(one.hosts)}, none of which is in this fleet")
    return fleet


def find_proofs(verifies: Iterable[VerifyDocument], names: Mapping[str, Sequence[str]]) -> Iterator[HostProof]:
    """Every verify of each host; `names` are the names that a host may have in it."""
    for one in verifies:
        for host, known in names.items():
            if not {*known} & {*one.hosts}:
                continue
            wrong = tuple(
                describe_difference(each, one.hosts)
                for each in one.differences
                if each.rank < len(one.hosts) and one.hosts[each.rank] in known
            )
            verdict = one.verdict
            if one.verdict == "wrong" and not wrong:
                verdict = "equal"  # another host is wrong
            yield HostProof(
                host=host,
                verify_id=one.verify_id,
                created=one.created,
                sentence=one.sentence,
                verdict=verdict,
                wrong=wrong if verdict == "wrong" else (),
            )


def judge_hosts(
    hosts: Sequence[HostRuns],
    *,
    metric: str = "p_core",
    threshold: float = THRESHOLD,
    expected: Sequence[Expected] = (),
    links: FleetLinks | None = None,
    wanted: int | None = None,
) -> Fleet:
    """`expected` are the site's figures, of which those for these runs count; `wanted` is the number of hosts
    expected. UsageError where the runs are not alike."""
    records = [record for host in hosts for record in host.records]
    failed = [_mark_failed(host) for host in hosts if not host.records]
    faults = [f"{wanted} hosts are expected and only {len(hosts)} have a run"] if len(hosts) < (wanted or 0) else []
    if not records:
        none = () if failed or faults else ("there is no run to judge",)
        return Fleet(
            metric=metric, threshold=threshold, hosts=tuple(failed), faults=tuple(faults), unsure=none, links=links
        )
    check_alike(records, metric)
    first = records[0]
    compared = quantities.find_compared(metric, [Subject(word=first.run_id, label=first.run_id, records=(first,))])
    reference = next((one for one in expected if _matches(one, first, compared)), None)
    known = [_Known.of(host, compared) for host in hosts if host.records]
    sure = [one for one in known if one.error is not None]
    found = _find_outliers(sure, compared, threshold)
    judged = [_judge_host(one, compared, found, sure, reference) for one in known]
    unsure = [f"host {one.host} cannot be judged" for one in judged if one.verdict == "unclear"]
    unsure += _explain_too_few(sure, threshold, reference) if found is None else _explain_low_power(found)
    centre = found.centre if found else median(one.value for one in sure) if sure else None
    if reference and found:
        faults += _find_slow_fleet(found, reference, compared)
    newest = {host.host: host.records[-1] for host in hosts if host.records}
    return Fleet(
        metric=compared.name,
        threshold=threshold,
        hosts=tuple(sorted([*failed, *_explain_hosts(judged, newest)], key=lambda one: _sort_key(one, compared))),
        unit=quantities.value_of_record(first, compared)[1],
        workload=first.plan.workload,
        recipe_name=first.plan.recipe_name,
        topology=first.plan.topology,
        precision=first.precision,
        device=device_name(first),
        median=math.exp(centre) if centre is not None else None,
        interval=around(math.exp(found.centre), _Z * found.error) if found else None,
        spread=found.spread if found else None,
        smallest=-math.expm1(-found.smallest) if found else None,
        expected=reference,
        links=links,
        faults=tuple(faults),
        unsure=tuple(unsure),
        notes=tuple(_notes(found, known, hosts)),
        created=max(record.created for record in records),
    )


def to_json(fleet: Fleet) -> dict[str, Any]:
    """For programs; intervals are [low, high] at 95 %, null where unknown."""
    fields = {
        name: value for name, value in vars(fleet).items() if name not in ("hosts", "links", "proofs", "expected")
    }
    expected = fleet.expected
    return {
        "outcome": fleet.outcome,
        "exit_code": fleet.exit_code,
        **fields,
        "expected": {"value": expected.value, "within_percent": expected.within_percent} if expected else None,
        "hosts": [asdict(one) for one in fleet.hosts],
        "proofs": [asdict(one) for one in fleet.proofs],
        "links": {**asdict(fleet.links), "all_rounds": fleet.links.all_rounds} if fleet.links else None,
    }


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A host's value, as a logarithm, and how well it is known."""

    runs: HostRuns
    side: RunValues
    value: float
    error: float | None
    """None where there are too few steps."""
    degrees: float = math.inf

    @classmethod
    def of(cls, runs: HostRuns, compared: Compared) -> _Known:
        side = collect_values(runs.records, compared)
        value, count = fmean(map(math.log, side.values)), len(side.values)
        spreads = [spread for spread in side.spreads if spread]
        if count >= MIN_REPEATS:
            error, degrees = math.sqrt(log_variance(side.values) / count), count - 1
        elif len(spreads) == count:
            error = math.sqrt(sum(one.error**2 + one.between for one in spreads)) / count
            degrees = min(one.degrees for one in spreads)
        else:
            return cls(runs=runs, side=side, value=value, error=None)
        return cls(runs=runs, side=side, value=value, error=error, degrees=degrees)

    def ratio(self, to: float, error: float, confidence: float = CONFIDENCE) -> Bounds:
        """The interval of its value over another one, whose logarithm and error are given."""
        share = 0.5 + confidence / 2
        own = quantile(share, self.degrees) * (self.error or 0.0)
        return around(math.exp(self.value - to), math.hypot(own, NormalDist().inv_cdf(share) * error))


def _mark_failed(host: HostRuns) -> FleetHost:
    return FleetHost(host=host.host, verdict="failed", reasons=(host.failed,))


def _matches(one: Expected, record: Record, compared: Compared) -> bool:
    plan = record.plan
    return (
        (one.workload, one.recipe) == (plan.workload, plan.recipe_name)
        and one.metric in (compared.name, compared.metric.name if compared.metric else "")
        and one.topology in (None, plan.topology)
        and one.precision in (None, record.precision)
        and (one.device or "").casefold() in device_name(record).casefold()
    )


def _find_outliers(sure: Sequence[_Known], compared: Compared, threshold: float) -> outliers.Outliers | None:
    if len(sure) < MIN_HOSTS:
        return None
    floor = -math.log1p(-threshold) if compared.better == "higher" else math.log1p(threshold)
    return outliers.find_outliers([one.value for one in sure], [one.error or 0.0 for one in sure], floor=floor)


def _judge_host(
    one: _Known,
    compared: Compared,
    found: outliers.Outliers | None,
    sure: Sequence[_Known],
    reference: Expected | None,
) -> FleetHost:
    value = math.exp(one.value)
    host = FleetHost(
        host=one.runs.host,
        verdict="ok",
        runs=tuple(record.run_id for record in one.runs.records),
        value=value,
        of_expected=value / reference.value if reference else None,
    )
    if one.error is None:
        reason = "too few steps to measure its speed; run longer, or repeat"
        return replace(host, verdict="unclear", reasons=(reason,))
    if found:
        low, high = one.ratio(found.centre, found.error)
        host = replace(host, away=math.expm1(one.value - found.centre), interval=(low - 1, high - 1))
        if found.named[sure.index(one)]:
            worse = _is_worse(one.value - found.centre, compared)
            reason = f"{_percent(host.away)} from the fleet's median, further than good hosts"
            host = replace(host, verdict="slow" if worse else "fast", reasons=(reason,))
    if reference:
        # so certain that at most one in a hundred good fleets has a host named
        bounds = one.ratio(math.log(reference.value), 0.0, 1 - 2 * outliers.FALSE_ALARMS / len(sure))
        if _is_beyond(bounds, reference, compared):
            reason = f"{_percent(value / reference.value - 1)} from the {number(reference.value)} that the site expects"
            host = replace(host, verdict="slow", reasons=(*host.reasons, reason))
    return host


def _is_worse(away: float, compared: Compared) -> bool:
    return away < 0 if compared.better == "higher" else away > 0


def _is_beyond(bounds: Bounds, reference: Expected, compared: Compared) -> bool:
    """Whether a ratio to the expected value is certainly worse than the site allows."""
    allowed = reference.within_percent / 100
    return bounds[1] < 1 - allowed if compared.better == "higher" else bounds[0] > 1 + allowed


def _explain_too_few(sure: Sequence[_Known], threshold: float, reference: Expected | None) -> Iterator[str]:
    """Why one or two hosts are too few; each may still be compared with what the site expects."""
    if len(sure) == 2:
        one, other = sure
        bounds = ratio_interval(one.side, other.side)
        if bounds and place_interval(bounds, threshold) == "same":
            return
        apart = _percent(math.expm1(one.value - other.value))
        names = f"{one.runs.host} lies {apart} from {other.runs.host}"
        if not bounds or place_interval(bounds, threshold) == "inconclusive":
            yield f"{names}, which is not significant; run longer, or repeat"
        else:
            yield f"{names}, and two hosts do not tell which of them is right; a third would"
    elif not reference:
        yield "one host has nothing to be compared with; name more, or set [[expected]] in trainmark.toml"


def _explain_low_power(found: outliers.Outliers) -> Iterator[str]:
    smallest = -math.expm1(-found.smallest)
    if smallest > MAX_BLIND:
        yield (
            f"the hosts lie so far apart that one slower by less than {100 * smallest:.0f} % could hide; run longer, "
            "repeat, or stop other programs there"
        )


def _find_slow_fleet(found: outliers.Outliers, reference: Expected, compared: Compared) -> Iterator[str]:
    bounds = around(math.exp(found.centre) / reference.value, _Z * found.error)
    if _is_beyond(bounds, reference, compared):
        away = math.exp(found.centre) / reference.value - 1
        yield (
            f"the fleet as a whole is slow: its median lies {_percent(away)} from the {number(reference.value)} that "
            f"the site expects, and {reference.within_percent:g} % are allowed"
        )


def _explain_hosts(judged: Sequence[FleetHost], newest: Mapping[str, Record]) -> Iterator[FleetHost]:
    """Adds what telemetry, doubts and software show of hosts that differ."""
    seen = {host: causes.read_figures(record) for host, record in newest.items()}
    usual = causes.take_medians(list(seen.values()))
    unlike = causes.find_differences(newest)
    for one in judged:
        why: tuple[str, ...] = ()
        if one.verdict in ("slow", "unclear"):
            why = (
                *causes.explain(seen[one.host], usual),
                *causes.find_own_doubts(newest[one.host], list(newest.values())),
            )
        yield replace(one, reasons=(*one.reasons, *why), remarks=tuple(unlike.get(one.host, ())))


def _sort_key(one: FleetHost, compared: Compared) -> tuple[int, float, str]:
    away = one.away or 0.0
    return _WORST_FIRST.index(one.verdict), away if compared.better == "higher" else -away, one.host


def _notes(found: outliers.Outliers | None, known: Sequence[_Known], hosts: Sequence[HostRuns]) -> Iterator[str]:
    if found and found.assumed:
        yield (
            f"{len(known)} hosts are too few to tell how far good ones lie apart: a standard deviation of "
            f"{100 * outliers.ASSUMED_SPREAD:g} % is assumed"
        )
    machines: dict[str, list[str]] = {}
    for host in hosts:
        for record in host.records[-1:]:
            machines.setdefault(record.hosts[0], []).append(host.host)
    for machine, names in machines.items():
        if len(names) > 1:
            yield f"hosts {', '.join(names)} all call themselves {machine}; see that they are different machines"


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):+.1f} %".replace("-", "−")
