"""Sorts runs by the host they ran on; refuses runs that are not one plan by one version, or shared by several hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trainmark.analysis.compare import quantities
from trainmark.analysis.compare.likeness import differences
from trainmark.spec.errors import UsageError
from trainmark.spec.record import Record
from trainmark.store.lookup import Subject

_MOST_SAID = 4
"""Differences named in a refusal."""


@dataclass(frozen=True, kw_only=True)
class HostRuns:
    """What came of one host."""

    host: str
    records: tuple[Record, ...] = ()
    """Its valid runs, repeats of one plan; none where it failed."""
    failed: str = ""
    """Why it has none, in a sentence."""


def by_host(records: Sequence[Record]) -> list[HostRuns]:
    """A host's valid runs count; one that has none has failed, for the reason its last run ended."""
    found: dict[str, list[Record]] = {}
    for record in {record.run_id: record for record in records}.values():
        found.setdefault(host_of(record), []).append(record)
    return [of_host(host, found[host]) for host in sorted(found)]


def of_host(host: str, records: Sequence[Record]) -> HostRuns:
    valid = tuple(record for record in records if record.status == "valid")
    if valid:
        return HostRuns(host=host, records=valid)
    last = max(records, key=lambda record: record.created)
    return HostRuns(host=host, failed=f"run {last.run_id} is {last.status} ({last.ended})")


def host_of(record: Record) -> str:
    """The one host of a run; UsageError where it ran on several, or does not say on which."""
    hosts = record.hosts
    if len(hosts) > 1:
        raise UsageError(
            f"run {record.run_id} ran on {len(hosts)} hosts at once ({', '.join(hosts[:_MOST_SAID])}); a fleet is "
            "judged by runs that each host made by itself"
        )
    if not hosts[0]:
        raise UsageError(f"run {record.run_id} does not say on which host it ran; leave it out")
    return hosts[0]


def check_alike(records: Sequence[Record], metric: str) -> None:
    """UsageError that names the run which is not as most of them are, and in what."""
    if not records:
        return
    versions = Counter(record.trainmark for record in records)
    usual, _ = versions.most_common(1)[0]
    if len(versions) > 1:
        odd = next(record for record in records if record.trainmark != usual)
        raise UsageError(
            f"run {odd.run_id} was made by trainmark {odd.trainmark} and most others by {usual}; install the same "
            "version on every host and run those again"
        )
    plans = Counter(record.plan.fingerprint for record in records)
    if len(plans) == 1:
        return
    fingerprint, _ = plans.most_common(1)[0]
    like = next(record for record in records if record.plan.fingerprint == fingerprint)
    odd = next(record for record in records if record.plan.fingerprint != fingerprint)
    raise UsageError(
        f"run {odd.run_id} is of another plan than run {like.run_id}: {_differing(odd, like, metric)}; a fleet is "
        "judged by runs of one plan, name them or their folder"
    )


def _differing(odd: Record, like: Record, metric: str) -> str:
    sides = [Subject(word=one.run_id, label=one.run_id, records=(one,)) for one in (odd, like)]
    compared = quantities.find(metric, sides)
    found = [str(one) for one in differences(sides[0], sides[1], compared) if one.unlike]
    if not found:
        found = [f"limits {odd.plan.limits} and {like.plan.limits}"]
    more = f" and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
    return f"{', '.join(found[:_MOST_SAID])}{more}"
