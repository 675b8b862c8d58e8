"""Measures links within a node and between nodes separately, with each collective that training uses."""

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
from trainmark.train.link_probe import time_exchange_s

SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
SIZE_S = 0.025
"""Per message size, unless the minimum number of repeats takes longer."""
MAX_S = 0.4
"""Per collective, as far as it can be predicted; two sizes are always measured."""
MIN_REPEATS = 3
MAX_REPEATS = 15
# newer versions of torch rename these, and warn of the old names
_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)


class _Group(NamedTuple):
    """Ranks that exchange over one kind of link, as one rank sees them."""

    level: Literal["node", "nodes"]
    ranks: int
    groups: int
    """How many such groups exchange at the same time."""
    process_group: Any = None
    """None for all ranks."""
    member: bool = True
    """Non-members only wait."""


def probe(
    device: Device, collectives: Collectives, local_ranks: int, together: Sequence[AllReduce] = ()
) -> list[LinkLevel]:
    """Latency and bandwidth by level and collective; all ranks must call together, and all get the same answer.

    `together` are results of an all-reduce among all ranks, which is not repeated where there is one kind of link.
    Collectives that the backend does not support are left out.
    """
    found = []
    for group in _make_groups(collectives, local_ranks):
        for collective in COLLECTIVES:
            times: list[tuple[int, float]] = []
            if collective == "all-reduce" and group.process_group is None and group.member:
                times = [(row.size_bytes, row.median_s) for row in together]
            times = times or _measure_times(collective, group, device, collectives)
            if times:
                found.append(fit_level(group.level, collective, group.ranks, group.groups, times))
        if group.process_group is not None:
            distributed.destroy_process_group(group.process_group)  # it may hold memory of the device
    return found


def _make_groups(collectives: Collectives, local_ranks: int) -> list[_Group]:
    """The groups of this rank. One node stands for all, as each has its own links; groups across nodes are measured
    for all local ranks at once, as these may share the uplink of a node."""
    world, rank = collectives.world, collectives.rank
    if world == 1 or world % local_ranks:
        return []
    nodes = world // local_ranks
    if 1 in (nodes, local_ranks):
        return [_Group("node" if nodes == 1 else "nodes", world, 1)]
    # torch requires that every rank makes every group, in the same order
    inside = _make_group(collectives, range(local_ranks))
    across = [_make_group(collectives, range(place, world, local_ranks)) for place in range(local_ranks)]
    own = across[rank % local_ranks]
    if inside is None or own is None:
        return []
    first = rank < local_ranks
    return [
        _Group("node", local_ranks, 1, inside if first else None, first),
        _Group("nodes", nodes, local_ranks, own),
    ]


def _make_group(collectives: Collectives, ranks: Sequence[int]) -> Any:
    """A process group of these ranks; None where the backend does not support it."""
    made, failed = None, 0.0
    try:
        made = distributed.new_group(list(ranks))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        failed = _check_unsupported(error)
    return None if collectives.reduce_max(failed) != [0.0] else made


def _check_unsupported(error: Exception) -> float:
    """1 where the backend does not support it; any other error is raised."""
    if not isinstance(error, NotImplementedError) and "support" not in str(error):
        raise error
    print(f"a kind of link is not measured: {error}", file=sys.stderr)
    return 1.0


def _measure_times(
    collective: Collective, group: _Group, device: Device, collectives: Collectives
) -> list[tuple[int, float]]:
    """The median time per message size; sizes that would take too long are left out."""
    times: list[tuple[int, float]] = []
    began_s, spent_s = time.perf_counter(), 0.0
    for size_bytes in SIZES_BYTES:
        next_s = times[-1][1] * size_bytes / times[-1][0] * (1 + MIN_REPEATS) if times else 0.0
        if len(times) > 1 and spent_s + next_s > MAX_S:
            break
        # the same whole number of float32 per rank
        size = max(1, size_bytes // 4 // group.ranks) * group.ranks
        call = _make_call(collective, size, group, device)
        warm_s = failed = 0.0
        try:
            warm_s = time_exchange_s(call, device, collectives)
        except (RuntimeError, NotImplementedError) as error:
            failed = _check_unsupported(error)
        # clocks of ranks differ: all must decide the same
        warm_s, failed = collectives.reduce_max(warm_s, failed)
        if failed:
            return []
        repeats = min(max(int(SIZE_S / max(warm_s, 1e-9)), MIN_REPEATS), MAX_REPEATS)
        own = [time_exchange_s(call, device, collectives) for _ in range(repeats)]
        *taken, spent_s = collectives.reduce_max(*own, time.perf_counter() - began_s)
        times.append((4 * size, median(taken)))
    return times


def _make_call(collective: Collective, size: int, group: _Group, device: Device) -> Callable[[], object]:
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
