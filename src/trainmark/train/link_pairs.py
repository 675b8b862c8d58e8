"""Measures what pairs of nodes carry between them, in rounds in which all pairs exchange at once, no two of one node.

Each pair is a process group of its own for one round. What the whole network carries when everybody talks is part of
what is measured: a slow cable shows in every round, and a switch that cannot carry all at once shows as slow rounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.record import endings, events
from trainmark.record.event_files import EventWriter
from trainmark.record.links import AllReduce, PairLink, best_pairs, estimate_node_bandwidths
from trainmark.record.plan import Plan, Topology
from trainmark.record.tournament import Pairs, plan_rounds, split_into_rounds
from trainmark.train import link_probe, setup
from trainmark.train.collectives import Collectives, RankGroup
from trainmark.train.ranks import Ranks, host_name

SIZES_BYTES = (4096, 1 << 20, 16 << 20, 64 << 20)
"""One for the latency, the largest for the bandwidth, and two on the way for links too slow for it."""
SUSPICIOUS = 0.9
"""A pair that carries less than this part of what both its nodes can is measured again."""
GROUPS = 2
"""That a pair makes: one on its devices, and one by which its ranks agree."""
TRIES = 4
"""So often."""
LONGEST_NAME = 64
BUDGET_S = 1.0
"""Of a pair, connecting left out."""


def work(plan: Plan, ranks: Ranks, log: EventWriter, *, count: int | None) -> None:
    """One rank's part: it joins the others, measures with them, and writes each round down."""
    device = setup.open_device(plan, ranks)
    everybody = setup.join(device, ranks)
    nodes = Topology.parse(plan.topology).nodes
    hosts = host_names(everybody, nodes=nodes, own=host_name(os.environ))
    for pairs in measure(device, everybody, nodes=nodes, count=count):
        log.write(events.PairsMeasured(pairs=pairs, hosts=hosts) if ranks.rank == 0 else events.Alive(phase="init"))
    log.write(events.End(ended=endings.LINKS_MEASURED))
    everybody.leave()


def measure(
    device: Device, everybody: Collectives, *, nodes: int, count: int | None = None, budget_s: float = BUDGET_S
) -> Iterator[list[PairLink]]:
    """The pairs of one round after the other; all ranks must go through it together and all get the same answer.

    Pairs that carried less than both their nodes can are measured again, in rounds of their own: a way is not bad
    because something else kept a node busy for a second.
    """
    measured: list[PairLink] = []
    for pairs in plan_rounds(nodes, count):
        measured += (told := _round(device, everybody, pairs, nodes, budget_s, again=0))
        yield told
    for again in range(1, 1 + TRIES):
        for pairs in split_into_rounds(_suspicious(measured)):
            measured += (told := _round(device, everybody, pairs, nodes, budget_s, again=again))
            yield told


def _suspicious(measured: list[PairLink]) -> list[tuple[int, int]]:
    known = best_pairs(measured)
    carries = estimate_node_bandwidths(known)
    return [
        (pair.first, pair.second)
        for pair in known
        if pair.bus_gigabytes_per_s < SUSPICIOUS * min(carries[pair.first], carries[pair.second])
    ]


def _round(
    device: Device, everybody: Collectives, pairs: Pairs, nodes: int, budget_s: float, *, again: int
) -> list[PairLink]:
    on_each = everybody.world // nodes
    node = everybody.rank // on_each
    mine = next((index for index, pair in enumerate(pairs) if node in pair), None)
    found = [0.0] * 3 * len(pairs)
    if mine is not None:
        results = _between(device, everybody.rank, pairs[mine], on_each, budget_s, again=again)
        largest = results[-1]
        found[3 * mine : 3 * mine + 3] = [largest.size_bytes, largest.bus_gigabytes_per_s, results[0].median_s]
    return _told(pairs, everybody.largest(*found))


def host_names(everybody: Collectives, *, nodes: int, own: str) -> list[str]:
    """What each node calls itself, told as numbers, which need no unpacking of what others send."""
    node = everybody.rank // (everybody.world // nodes)
    letters = [0.0] * LONGEST_NAME * nodes
    for place, byte in enumerate(own.encode()[:LONGEST_NAME]):
        letters[LONGEST_NAME * node + place] = byte
    told = bytes(int(letter) for letter in everybody.largest(*letters))
    return [
        told[LONGEST_NAME * each : LONGEST_NAME * (each + 1)].rstrip(b"\0").decode(errors="replace")
        for each in range(nodes)
    ]


def _between(
    device: Device, rank: int, pair: tuple[int, int], on_each: int, budget_s: float, *, again: int
) -> list[AllReduce]:
    """Among all ranks of two nodes, so that every cable between them is used."""
    ranks = [node * on_each + local for node in pair for local in range(on_each)]
    # torch names a group by its ranks and by how many groups there are: made again with as many, it would find the
    # addresses of the first
    alone = [RankGroup([rank]) for _ in range(GROUPS * again)]
    group = distributed.new_group(ranks, use_local_synchronization=True)
    together = RankGroup(ranks)
    try:
        return link_probe.measure(device, together, sizes_bytes=SIZES_BYTES, budget_s=budget_s, group=group)
    finally:
        together.leave()
        distributed.destroy_process_group(group)
        for one in alone:
            one.leave()


def _told(pairs: Pairs, found: list[float]) -> list[PairLink]:
    return [
        PairLink(
            first=first,
            second=second,
            size_bytes=int(found[3 * index]),
            bus_gigabytes_per_s=found[3 * index + 1],
            latency_s=found[3 * index + 2],
        )
        for index, (first, second) in enumerate(pairs)
    ]
