"""Who is measured with whom, and when: rounds in which every node has one partner at most, as in a tournament."""

from __future__ import annotations

import math
from collections.abc import Sequence

FEW_NODES = 16
"""Of so many all pairs are measured."""

GOLDEN = 0.618
"""Of all turns, the share by which one takes the next: however few are taken, they are spread well."""

Pairs = tuple[tuple[int, int], ...]


def all_rounds(nodes: int) -> int:
    """In how many rounds everybody meets everybody."""
    return max(0, nodes - 1 + nodes % 2)


def usual_rounds(nodes: int) -> int:
    """All where they are few, else about twice the logarithm: each node then meets enough others to be known."""
    return all_rounds(nodes) if nodes <= FEW_NODES else min(all_rounds(nodes), 2 * math.ceil(math.log2(nodes)))


def plan_rounds(nodes: int, count: int | None = None) -> list[Pairs]:
    """So many rounds of disjoint pairs, no pair twice; those that are left out lie evenly among the others, for
    neighbours often hang on one switch."""
    if nodes < 2:
        return []
    places = nodes + nodes % 2  # who is paired with the last of an odd number rests
    stride = next(step for step in range(round(GOLDEN * (places - 1)), places) if math.gcd(step, places - 1) == 1)
    found = []
    for index in range(min(usual_rounds(nodes) if count is None else count, places - 1)):
        turn = index * stride % (places - 1)
        pairs = [(turn, places - 1)]
        pairs += [((turn + step) % (places - 1), (turn - step) % (places - 1)) for step in range(1, places // 2)]
        found.append(tuple(sorted((min(pair), max(pair)) for pair in pairs if max(pair) < nodes)))
    return found


def split_into_rounds(pairs: Sequence[tuple[int, int]]) -> list[Pairs]:
    """The same pairs in rounds in which no node has two partners."""
    found: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = (one for one in found if not any(node in other for other in one for node in pair))
        if (place := next(free, None)) is None:
            found.append([pair])
        else:
            place.append(pair)
    return [tuple(one) for one in found]
