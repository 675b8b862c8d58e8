"""What the links between ranks were measured to carry, and the two numbers that sum it up."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from trainmark.spec.format import number
from trainmark.spec.numbers import Finite, Whole


class AllReduce(Struct, frozen=True, kw_only=True):
    """What one message size took."""

    size_bytes: Whole = field(name="bytes")
    repeats: Whole = 0
    median_s: Finite
    best_s: Finite = 0.0
    bus_gigabytes_per_s: Finite


def summary(measured: Sequence[AllReduce], *, ranks: int, hosts: int) -> str:
    """Latency of the smallest message and bandwidth of the largest, in a sentence."""
    smallest, largest = measured[0], measured[-1]
    where = f"{ranks} ranks on {hosts} host{'s' if hosts > 1 else ''}"
    latency = f"{number(smallest.median_s * 1e3, 2)} ms for {size(smallest.size_bytes)}"
    bandwidth = f"{number(largest.bus_gigabytes_per_s, 2)} GB/s for {size(largest.size_bytes)}"
    return f"all-reduce among {where}: {latency}, {bandwidth}"


def size(size_bytes: int) -> str:
    """`4 KiB`, `64 MiB`."""
    unit, name = (2**20, "MiB") if size_bytes >= 2**20 else (2**10, "KiB")
    return f"{size_bytes / unit:g} {name}"
