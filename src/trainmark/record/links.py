"""Measured links between ranks and between nodes, and the latency and bandwidth fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct, field

from trainmark.record.numbers import Count, Finite, Whole

FEW_NODES = 16
"""Up to this many nodes, all pairs are measured."""

GOLDEN = 0.618
"""Stride through the rounds as a share of all, so that any number of them is spread evenly."""

Pairs = tuple[tuple[int, int], ...]


def all_rounds(nodes: int) -> int:
    """Rounds until every pair has met."""
    return max(0, nodes - 1 + nodes % 2)


def usual_rounds(nodes: int) -> int:
    """All rounds for few nodes, else about 2 log2(nodes), which is enough to judge each node."""
    return all_rounds(nodes) if nodes <= FEW_NODES else min(all_rounds(nodes), 2 * math.ceil(math.log2(nodes)))


def plan_rounds(nodes: int, count: int | None = None) -> list[Pairs]:
    """`count` rounds of disjoint pairs, no pair twice, spread evenly, as neighbours often share a switch."""
    if nodes < 2:
        return []
    places = nodes + nodes % 2  # the partner of the extra place rests
    stride = next(step for step in range(round(GOLDEN * (places - 1)), places) if math.gcd(step, places - 1) == 1)
    found = []
    for index in range(min(usual_rounds(nodes) if count is None else count, places - 1)):
        turn = index * stride % (places - 1)
        pairs = [(turn, places - 1)]
        pairs += [((turn + step) % (places - 1), (turn - step) % (places - 1)) for step in range(1, places // 2)]
        found.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < nodes)))
    return found


def split_into_rounds(pairs: Sequence[tuple[int, int]]) -> list[Pairs]:
    """Splits pairs into rounds of disjoint pairs."""
    found: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = (one for one in found if not any(node in other for other in one for node in pair))
        if (place := next(free, None)) is None:
            found.append([pair])
        else:
            place.append(pair)
    return [tuple(one) for one in found]


Collective = Literal["all-reduce", "all-gather", "reduce-scatter"]
COLLECTIVES: tuple[Collective, ...] = ("all-reduce", "all-gather", "reduce-scatter")


class AllReduce(Struct, frozen=True, kw_only=True):
    """Times of one message size."""

    size_bytes: Whole = field(name="bytes")
    repeats: Whole = 0
    median_s: Finite
    best_s: Finite = 0.0
    bus_gigabytes_per_s: Finite


class LinkLevel(Struct, frozen=True, kw_only=True):
    """Latency and bandwidth of one collective over one kind of link.

    A message of s bytes among k ranks takes `rounds x latency + passes x s / bandwidth`. Gathering and scattering
    move (k - 1) / k of what the ranks hold together through every rank, in log2 k rounds at least; an all-reduce is
    one of each.
    """

    level: Literal["node", "nodes"]
    """Among the ranks of a node, or among the nodes: ranks of the same place in each."""
    collective: Collective
    ranks: Count
    """Ranks per group."""
    groups: Whole = 1
    """Groups that exchange at the same time, as in training."""
    latency_s: Finite
    bytes_per_s: Finite
    times: Sequence[tuple[Whole, Finite]] = ()
    """Bytes of each message, and its median time."""

    def seconds(self, size_bytes: float, messages: float, ranks: int) -> float:
        """Time of a step's messages, of `size_bytes` in total, one after the other."""
        passed = passes(self.collective, ranks) * size_bytes / self.bytes_per_s
        return passed + rounds(self.collective, ranks) * self.latency_s * messages


def passes(collective: Collective, ranks: int) -> float:
    """How often the message passes through every rank."""
    return (2 if collective == "all-reduce" else 1) * (ranks - 1) / ranks


def rounds(collective: Collective, ranks: int) -> int:
    """Minimum number of times a rank waits for another."""
    return (2 if collective == "all-reduce" else 1) * math.ceil(math.log2(ranks))


def fit_level(
    level: Literal["node", "nodes"], collective: Collective, ranks: int, groups: int, times: Sequence[tuple[int, float]]
) -> LinkLevel:
    """The latency from the smallest message, the bandwidth from the two largest; with one size, both from that one."""
    (small, small_s), (large, large_s) = times[0], times[-1]
    before, before_s = times[-2] if len(times) > 1 else (0, 0.0)
    # noise may make a larger message faster: then all its time counts as bandwidth
    slope_s = (large_s - before_s) / (large - before) if large_s > before_s else large_s / large
    latency_s = max(0.0, small_s - slope_s * small) / rounds(collective, ranks) if len(times) > 1 else 0.0
    return LinkLevel(
        level=level,
        collective=collective,
        ranks=ranks,
        groups=groups,
        latency_s=latency_s,
        bytes_per_s=passes(collective, ranks) / slope_s,
        times=list(times),
    )


class PairLink(Struct, frozen=True, kw_only=True):
    """Bandwidth and latency between two nodes, with all their ranks exchanging."""

    first: Whole
    """The node's number in the topology."""
    second: Whole
    size_bytes: Whole = field(name="bytes")
    """Of the largest message there was time for."""
    bus_gigabytes_per_s: Finite
    latency_s: Finite
    """Of the smallest message."""


def best_pairs(measured: Iterable[PairLink]) -> list[PairLink]:
    """The best measurement of each pair."""
    found: dict[tuple[int, int], PairLink] = {}
    for pair in measured:
        place = (pair.first, pair.second)
        if place not in found or found[place].bus_gigabytes_per_s < pair.bus_gigabytes_per_s:
            found[place] = pair
    return [pair for pair in found.values() if pair.bus_gigabytes_per_s > 0]


def estimate_node_bandwidths(measured: Iterable[PairLink]) -> dict[int, float]:
    """Bandwidth of each node's own link in GB/s: the median of the better half of its pairs, as the slower
    link limits a pair, and half of a node's partners may be bad."""
    of_node: dict[int, list[float]] = {}
    for pair in measured:
        for node in (pair.first, pair.second):
            of_node.setdefault(node, []).append(pair.bus_gigabytes_per_s)
    return {node: median(sorted(values)[len(values) // 2 :]) for node, values in sorted(of_node.items())}


def format_size(size_bytes: int) -> str:
    """`4 KiB`, `64 MiB`."""
    unit, name = (2**20, "MiB") if size_bytes >= 2**20 else (2**10, "KiB")
    return f"{size_bytes / unit:g} {name}"
