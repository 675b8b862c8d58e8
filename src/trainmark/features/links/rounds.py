"""Rounds of disjoint pairs of nodes whose links are measured at once, and what they say of each node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from trainmark.record.links import PairLink, best_pairs
from trainmark.record.numbers import number

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


def estimate_node_bandwidths(measured: Iterable[PairLink]) -> dict[int, float]:
    """Bandwidth of each node's own link in GB/s: the median of the better half of its pairs, as the slower
    link limits a pair, and half of a node's partners may be bad."""
    of_node: dict[int, list[float]] = {}
    for pair in measured:
        for node in (pair.first, pair.second):
            of_node.setdefault(node, []).append(pair.bus_gigabytes_per_s)
    return {node: median(sorted(values)[len(values) // 2 :]) for node, values in sorted(of_node.items())}


def summarise_pairs(measured: Sequence[PairLink], rounds: int) -> str:
    """One sentence: the number of pairs, the bandwidth of the slowest and of the median one."""
    ordered = sorted(best_pairs(measured), key=lambda pair: pair.bus_gigabytes_per_s)
    slowest = ordered[0]
    if len(ordered) == 1:
        return f"nodes {slowest.first} and {slowest.second} carry {number(slowest.bus_gigabytes_per_s, 2)} GB/s"
    return (
        f"{len(ordered)} pairs of nodes in {rounds} rounds: the median one carries "
        f"{number(median(pair.bus_gigabytes_per_s for pair in ordered), 2)} GB/s, the slowest, nodes {slowest.first} "
        f"and {slowest.second}, {number(slowest.bus_gigabytes_per_s, 2)} GB/s"
    )
