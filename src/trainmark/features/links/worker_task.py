"""One rank that measures links: among all ranks, or in rounds of disjoint pairs of nodes.

Each pair is a process group for one round. All pairs of a round load the network at once, so a slow cable shows in
every round of its node, and an oversubscribed switch shows as slow rounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torch import distributed

from trainmark.features.links import probe, rank_check
from trainmark.features.links.rounds import Pairs, estimate_node_bandwidths, plan_rounds, split_into_rounds
from trainmark.platforms.platform import Device
from trainmark.record import endings, events
from trainmark.record.events import EventWriter
from trainmark.record.links import AllReduce, PairLink, best_pairs
from trainmark.record.plan import Plan, Topology
from trainmark.train import setup
from trainmark.train.collectives import Collectives, RankGroup
from trainmark.train.ranks import Ranks, read_host_name

NAME = "links"
SIZES_BYTES = (4096, 1 << 20, 16 << 20, 64 << 20)
"""The smallest for latency, the largest for bandwidth, two between for links too slow for that."""
SUSPICIOUS_SHARE = 0.9
"""A pair below this share of the bandwidth of both its nodes is measured again."""
GROUPS_PER_PAIR = 2
"""One on its devices, and one by which its ranks agree."""
MAX_RETRIES = 4
BUDGET_S = 1.0
"""Per pair, connecting excluded."""


def work(plan: Plan, folder: Path, ranks: Ranks, log: EventWriter, rounds: str | None = None) -> None:
    """Joins the other ranks and measures with them, without training: among all, or so many rounds of pairs."""
    device = setup.open_device(plan, ranks)
    everybody = setup.join_ranks(device, ranks)
    if rounds is None:
        rank_check.check(device, everybody, ranks, log, budget_s=probe.BUDGET_S)
    else:
        nodes = Topology.parse(plan.topology).nodes
        hosts = [name.decode() for name in everybody.gather(read_host_name(os.environ).encode())]
        hosts = hosts[:: len(hosts) // nodes]
        for pairs in measure(device, everybody, nodes=nodes, count=int(rounds)):
            log.write(events.PairsMeasured(pairs=pairs, hosts=hosts) if ranks.rank == 0 else events.Alive(phase="init"))
    log.write(events.End(ended=endings.LINKS_MEASURED))
    everybody.leave()


def measure(
    device: Device, everybody: Collectives, *, nodes: int, count: int | None = None, budget_s: float = BUDGET_S
) -> Iterator[list[PairLink]]:
    """The pairs of one round after the other; all ranks must iterate together and all get the same results.

    Suspicious pairs are measured again, in further rounds: a node may just have been busy for a second.
    """
    measured: list[PairLink] = []
    for pairs in plan_rounds(nodes, count):
        measured += (found := _measure_round(device, everybody, pairs, nodes, budget_s, again=0))
        yield found
    for again in range(1, 1 + MAX_RETRIES):
        for pairs in split_into_rounds(_find_suspicious(measured)):
            measured += (found := _measure_round(device, everybody, pairs, nodes, budget_s, again=again))
            yield found


def _find_suspicious(measured: list[PairLink]) -> list[tuple[int, int]]:
    known = best_pairs(measured)
    carries = estimate_node_bandwidths(known)
    return [
        (pair.first, pair.second)
        for pair in known
        if pair.bus_gigabytes_per_s < SUSPICIOUS_SHARE * min(carries[pair.first], carries[pair.second])
    ]


def _measure_round(
    device: Device, everybody: Collectives, pairs: Pairs, nodes: int, budget_s: float, *, again: int
) -> list[PairLink]:
    on_each = everybody.world // nodes
    node = everybody.rank // on_each
    mine = next((index for index, pair in enumerate(pairs) if node in pair), None)
    found = [0.0] * 3 * len(pairs)
    if mine is not None:
        results = _measure_pair(device, everybody.rank, pairs[mine], on_each, budget_s, again=again)
        largest = results[-1]
        found[3 * mine : 3 * mine + 3] = [largest.size_bytes, largest.bus_gigabytes_per_s, results[0].median_s]
    return _to_pair_links(pairs, everybody.reduce_max(*found))


def _measure_pair(
    device: Device, rank: int, pair: tuple[int, int], on_each: int, budget_s: float, *, again: int
) -> list[AllReduce]:
    """An all-reduce among all ranks of two nodes, so that every cable between them is used."""
    ranks = [node * on_each + local for node in pair for local in range(on_each)]
    # torch names a group by its ranks and the number of groups so far: with an equal number, a repeated group would
    # find the addresses of the first
    alone = [RankGroup([rank]) for _ in range(GROUPS_PER_PAIR * again)]
    group = distributed.new_group(ranks, use_local_synchronization=True)
    together = RankGroup(ranks)
    try:
        return probe.measure(device, together, sizes_bytes=SIZES_BYTES, budget_s=budget_s, group=group)
    finally:
        together.leave()
        distributed.destroy_process_group(group)
        for one in alone:
            one.leave()


def _to_pair_links(pairs: Pairs, found: list[float]) -> list[PairLink]:
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
