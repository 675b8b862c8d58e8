"""Measured links between ranks and between nodes, and the latency and bandwidth fitted to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from trainmark.record.numbers import Count, Finite, Whole

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
    found: dict[tuple[int, int], PairLink] = {}
    for pair in measured:
        place = (pair.first, pair.second)
        if place not in found or found[place].bus_gigabytes_per_s < pair.bus_gigabytes_per_s:
            found[place] = pair
    return [pair for pair in found.values() if pair.bus_gigabytes_per_s > 0]


def format_size(size_bytes: int) -> str:
    """`4 KiB`, `64 MiB`."""
    unit, name = (2**20, "MiB") if size_bytes >= 2**20 else (2**10, "KiB")
    return f"{size_bytes / unit:g} {name}"


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
