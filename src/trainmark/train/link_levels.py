"""Measures the links inside a node and those between nodes apart, with each collective that training uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import distributed

from trainmark.platforms.platform import Device
from trainmark.record.links import COLLECTIVES, AllReduce, Collective, LinkLevel, fit_level
from trainmark.train.collectives import Collectives
from trainmark.train.link_probe import exchange_s

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
SIZE_S = 0.025
"""For one size, if that is enough for the fewest repeats."""
MAX_S = 0.4
"""For all sizes of a collective, as far as that can be told before; two are measured whatever they take."""
MIN_REPEATS = 3
MAX_REPEATS = 15
# newer torch has other names for them, and warns of the old ones
_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)


class _Group(NamedTuple):
    """Ranks that exchange with each other over one kind of link, as one rank sees them."""

    level: Literal["node", "nodes"]
    ranks: int
    groups: int
    """Such groups that exchange at the same time."""
    process_group: Any = None
    """None is all ranks."""
    member: bool = True
    """Others only wait."""


def probe(
    device: Device, collectives: Collectives, local_ranks: int, together: Sequence[AllReduce] = ()
) -> list[LinkLevel]:
    """Latency and bandwidth by level and collective; all ranks must call together, and all get the same answer.

    `together` is what an all-reduce among all ranks took, which need not be measured again where they have one kind of
    link. A collective that the backend does not have is left out.
    """
    found = []
    for group in _groups(collectives, local_ranks):
        for collective in COLLECTIVES:
            times: list[tuple[int, float]] = []
            if collective == "all-reduce" and group.process_group is None and group.member:
                times = [(row.size_bytes, row.median_s) for row in together]
            times = times or _times(collective, group, device, collectives)
            if times:
                found.append(fit_level(group.level, collective, group.ranks, group.groups, times))
        if group.process_group is not None:
            distributed.destroy_process_group(group.process_group)  # it may hold memory of the device
    return found


def _groups(collectives: Collectives, local_ranks: int) -> list[_Group]:
    """Those of this rank. One node stands for all, as each has links of its own; ranks of the same place in all nodes
    are measured for all places at once, as these may share the way out of a node."""
    world, rank = collectives.world, collectives.rank
    if world == 1 or world % local_ranks:
        return []
    nodes = world // local_ranks
    if 1 in (nodes, local_ranks):
        return [_Group("node" if nodes == 1 else "nodes", world, 1)]
    # every rank makes every group, in the same order, so that none is mistaken for another of these or of training
    inside = _made(collectives, range(local_ranks))
    across = [_made(collectives, range(place, world, local_ranks)) for place in range(local_ranks)]
    own = across[rank % local_ranks]
    if inside is None or own is None:
        return []
    first = rank < local_ranks
    return [
        _Group("node", local_ranks, 1, inside if first else None, first),
        _Group("nodes", nodes, local_ranks, own),
    ]


def _made(collectives: Collectives, ranks: Sequence[int]) -> Any:
    """A group of ranks; None where the backend has no such thing."""
    made, failed = None, 0.0
    try:
        made = distributed.new_group(list(ranks))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        failed = _unsupported(error)
    return None if collectives.largest(failed) != [0.0] else made


def _unsupported(error: Exception) -> float:
    """1 for what a backend cannot do, on any rank; whatever else went wrong ends this rank, as the others wait."""
    if not isinstance(error, NotImplementedError) and "support" not in str(error):
        raise error
    print(f"a kind of link is not measured: {error}", file=sys.stderr)
    return 1.0


def _times(collective: Collective, group: _Group, device: Device, collectives: Collectives) -> list[tuple[int, float]]:
    """The median of what each message took; those that would take too long are left out."""
    times: list[tuple[int, float]] = []
    began_s, spent_s = time.perf_counter(), 0.0
    for size_bytes in SIZES_BYTES:
        next_s = times[-1][1] * size_bytes / times[-1][0] * (1 + MIN_REPEATS) if times else 0.0
        if len(times) > 1 and spent_s + next_s > MAX_S:
            break
        # a whole number of float32 for each rank
        size = max(1, size_bytes // 4 // group.ranks) * group.ranks
        call = _call(collective, size, group, device)
        warm_s = failed = 0.0
        try:
            warm_s = exchange_s(call, device, collectives)
        except (RuntimeError, NotImplementedError) as error:
            failed = _unsupported(error)
        # the clocks of ranks differ: all must decide the same
        warm_s, failed = collectives.largest(warm_s, failed)
        if failed:
            return []
        repeats = min(max(int(SIZE_S / max(warm_s, 1e-9)), MIN_REPEATS), MAX_REPEATS)
        own = [exchange_s(call, device, collectives) for _ in range(repeats)]
        *taken, spent_s = collectives.largest(*own, time.perf_counter() - began_s)
        times.append((4 * size, median(taken)))
    return times


def _call(collective: Collective, size: int, group: _Group, device: Device) -> Callable[[], object]:
    if not group.member:
        return lambda: None
    whole = torch.zeros(size, dtype=torch.float32, device=device.torch)
    part = torch.zeros(size // group.ranks, dtype=torch.float32, device=device.torch)
    among = group.process_group
    if collective == "all-reduce":
        return lambda: distributed.all_reduce(whole, group=among)
    if collective == "all-gather":
        return lambda: _gather(whole, part, group=among)
    return lambda: _scatter(part, whole, group=among)
