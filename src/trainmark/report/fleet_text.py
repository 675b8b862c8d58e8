"""What is said of a fleet in words, on every view: the verdict, each host that is not as the others, the links."""

from __future__ import annotations

from collections.abc import Iterator

from trainmark.analysis.fleet.links import FleetLinks
from trainmark.analysis.fleet.verdict import Fleet, FleetHost
from trainmark.spec.format import NOTHING, number, plus_minus

MOST_WRONG = 3
"""Lines of one host; its verify has them all."""


def headline(fleet: Fleet) -> str:
    """Whether the fleet is accepted, in one sentence with what decided it."""
    told = []
    hosts = len(fleet.hosts)
    if slow := len(fleet.of("slow")):
        told.append(f"slow hosts: {slow} of {hosts}")
    if failed := len(fleet.of("failed")):
        told.append(f"failed hosts: {failed} of {hosts}")
    if unclear := len(fleet.of("unclear")):
        told.append(f"unclear hosts: {unclear} of {hosts}")
    if fleet.links and (bad := len(slow_cables(fleet.links))):
        told.append(f"slow cables: {bad}")
    if fleet.links and (doubtful := len(slow_ways(fleet.links))):
        told.append(f"doubtful ways: {doubtful}")
    if wrong := len({one.host for one in fleet.proved("wrong")}):
        told.append(f"wrong arithmetic: {wrong} of {hosts}")
    if fleet.faults and not told:
        told.append(f"faults of the fleet as a whole: {len(fleet.faults)}")
    if not told:
        told.append(f"judged hosts: {hosts}")
    if fleet.median is not None:
        median = f"the median is {number(fleet.median)} {fleet.unit}"
        told.append(f"{median} {plus_minus(fleet.interval)}".rstrip())
    return f"{fleet.outcome}; {'; '.join(told)}"


def host_sentences(fleet: Fleet) -> Iterator[str]:
    """A line for each host that is not as the others, with all that explains it."""
    for one in fleet.hosts:
        why = "; ".join((*one.reasons, *one.remarks))
        match one.verdict:
            case "slow":
                yield f"host {one.host} is slow: {why}"
            case "fast":
                yield f"host {one.host} is fast: {why}"
            case "failed":
                failed = why
                yield f"host {one.host} failed: {failed}"
            case "unclear":
                yield f"host {one.host} is unclear: {why}"
            case _ if why:
                yield f"host {one.host} is not as the others: {why}"


def fleet_sentences(fleet: Fleet) -> Iterator[str]:
    """What is to be known beside the hosts and the links."""
    yield from fleet.faults
    yield from fleet.unsure
    yield from fleet.notes
    if fleet.smallest is not None:
        yield f"a host slower by {_percent(fleet.smallest)} than the median would be named four times in five"


def slow_cables(links: FleetLinks) -> list[str]:
    return [
        f"the cable of host {one.host} carries {number(one.gigabytes_per_s)} GB/s, {_percent(-one.away)} less than the "
        "fleet's median"
        for one in links.cables
        if one.slow
    ]


def slow_ways(links: FleetLinks) -> list[str]:
    """Ways between good cables that look slow: by one pair each, so that a busy node may be all there is to it."""
    return [
        f"between hosts {one.hosts[0]} and {one.hosts[1]} pass {number(one.gigabytes_per_s)} GB/s, "
        f"{_percent(one.short)} less than the cables of both carry; measure these two again while they are idle"
        for one in links.ways
        if one.slow
    ]


def link_sentences(links: FleetLinks) -> Iterator[str]:
    if links.smallest is None:
        yield f"two hosts have one link, and nothing to hold it against: it carries {number(links.median)} GB/s"
        return
    yield (
        f"of the links {len(links.ways)} pairs of hosts were measured in {links.rounds} rounds: the median cable "
        f"carries {number(links.median)} GB/s"
    )
    yield from slow_cables(links)
    yield from slow_ways(links)
    if not links.whole:
        yield (
            f"not all {links.all_rounds} rounds were measured: each cable is known, a bad way between two good cables "
            "may not be"
        )


def proof_sentences(fleet: Fleet) -> Iterator[str]:
    """What is wrong with the arithmetic, what is open, then each verify in its own words."""
    for one in fleet.proved("wrong"):
        why = "; ".join(one.wrong[:MOST_WRONG])
        yield f"the arithmetic of host {one.host} is wrong: {why}"
    if open_ := sorted({one.host for one in fleet.proved("unsettled", "incomplete")}):
        yield f"it is open whether the arithmetic is right of hosts {', '.join(open_)}"
    if fleet.unproved:
        yield f"nobody verified the arithmetic of hosts {', '.join(fleet.unproved)}"
    for verify_id in dict.fromkeys(one.verify_id for one in fleet.proofs):
        members = [one for one in fleet.proofs if one.verify_id == verify_id]
        date, sentence = members[0].created[:10], members[0].sentence
        yield f"verify {verify_id} of {date} on {len(members)} of {len(fleet.hosts)} hosts: {sentence}"


def away(one: FleetHost) -> str:
    """`−8.1 %`."""
    return NOTHING if one.away is None else signed(one.away)


def interval(one: FleetHost) -> str:
    """`[−9.6, −6.5] %`."""
    if one.interval is None:
        return NOTHING
    low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in one.interval)
    return f"[{low}, {high}] %"


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"
